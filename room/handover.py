"""Who takes over from a peer that is to leave its chain: a pure function of the chain and the spares."""

from collections.abc import Callable, Sequence

from room.chain import Chain, Stage
from room.deal import Deal, Shortfall
from room.members import Member

HANDOVER = 25.0
"""Seconds a peer that leaves stays at most for others to take over; less than it waits itself."""


def stand_ins(
    chain: Chain, spares: Sequence[Member], fits: Callable[[Sequence[Member]], Deal | Shortfall]
) -> list[Member] | None:
    """The chain's members with a spare for each that is to leave; None where the spares cannot hold those slices.

    `fits` says whether members can hold the chain's slices, in order. Who has the slice already, or is loading it, goes
    first.
    """
    members = [stage.member for stage in chain.stages]
    for at, stage in enumerate(chain.stages):
        if stage.member.stays:
            continue
        for spare in sorted(spares, key=lambda each: _distance(each, stage)):
            tried = [*members[:at], spare, *members[at + 1 :]]
            if spare not in members and isinstance(fits(tried), Deal):
                members = tried
                break
        else:
            return None
    return members


def _distance(spare: Member, stage: Stage) -> int:
    span = (stage.slice.start, stage.slice.end)
    return 0 if spare.held == span else 1 if spare.preparing == span else 2
