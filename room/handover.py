"""Who takes over from a peer that leaves its chain or is lost, and what spares load for that. Free of I/O."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from room.deal import Slice
from room.members import Member, Span

HANDOVER = 25.0
"""Seconds a peer that leaves stays at most for others to take over; less than it waits itself."""

Holds = Callable[[Member, Slice], bool]
"""Whether a peer lends enough for a slice."""


def stand_ins(
    slices: Sequence[Slice], holders: Sequence[Member | None], spares: Sequence[Member], holds: Holds
) -> list[Member] | None:
    """The holders of the slices with a spare in each free place; None where the spares cannot hold those slices.

    Who has the slice already, or is loading it, goes first.
    """
    members: list[Member] = []
    for part, holder in zip(slices, holders, strict=True):
        taken = {*members, *holders}
        free = [each for each in spares if each not in taken and holds(each, part)] if holder is None else [holder]
        if not free:
            return None
        members.append(min(free, key=lambda each: _distance(each, part)))
    return members


def reserves(
    slices: Sequence[Slice], weights: Sequence[int], spares: Sequence[Member], holds: Holds
) -> Iterator[tuple[Member, Span]]:
    """What each of the spares is to load that has none of the slices at work.

    The slice that would take longest to load when its peer is lost goes first, and none twice before all are covered.
    `weights` has the bytes of each.
    """
    spans = [(part.start, part.end) for part in slices]
    covered = Counter(span for spare in spares if (span := spare.held or spare.preparing))
    for spare in spares:
        if (spare.held or spare.preparing) in spans:
            continue
        fitting = [at for at, part in enumerate(slices) if holds(spare, part)]
        if fitting:
            at = min(fitting, key=lambda at: (covered[spans[at]], -weights[at]))
            covered[spans[at]] += 1
            yield spare, spans[at]


def _distance(spare: Member, part: Slice) -> int:
    span = (part.start, part.end)
    return 0 if spare.held == span else 1 if spare.preparing == span else 2
