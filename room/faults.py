"""Peers that return what is wrong: what is counted against them, and whom the room does without. Free of I/O."""

import logging
from collections.abc import Sequence

from room.dealer import Dealer
from room.members import Member, Roster
from room.session import Session

log = logging.getLogger("pooled.room")

MOST_FAULTS = 3
"""Frames of a peer that failed before it is put out."""


class Faults:
    """Counts by peer, in its place, so that a peer which joins again takes its count along."""

    def __init__(self, roster: Roster, dealer: Dealer) -> None:
        self._roster = roster
        self._dealer = dealer

    def __repr__(self) -> str:
        return (
            f"<Faults [{', '.join(f'{each.name} {each.place.faults}' for each in self._roster if each.place.faults)}]>"
        )

    def count(self, member: Member, reason: str) -> None:
        """The peer did something wrong once more."""
        member.place.faults, member.why = member.place.faults + 1, reason
        log.error("peer at fault", extra={"peer": member.name, "why": reason, "faults": member.place.faults})

    def too_many(self, member: Member) -> bool:
        """Whether it does so as a rule."""
        return member.place.faults >= MOST_FAULTS

    def guilty(self, member: Member, failed: Sequence[Session]) -> list[Session]:
        """Of the sessions whose frame failed at the peer, those that are to blame themselves.

        They failed at a second peer: each peer that they failed at is cleared of one fault.
        """
        for session in failed:
            session.faulted.add(member.id)
            session.faulted_at = max(session.faulted_at, session.sent)
        guilty = [session for session in failed if len(session.faulted) > 1]
        for peer in (peer for session in guilty for peer in session.faulted):
            place = self._roster.place_of(peer)
            if place is not None:
                place.faults, place.aside = max(place.faults - 1, 0), False
        return guilty

    def set_aside(self, member: Member) -> bool:
        """Deal the peer nothing as long as others hold the model. False: nobody else can."""
        member.place.aside = self._dealer.spares(self._roster, member)
        return member.place.aside
