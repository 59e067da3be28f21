"""What lets peers and clients in, for how long, and how many of them. Free of I/O: the time comes in."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from room.errors import InvalidValue, InviteExpired, InviteRevoked, InviteUsedUp, TooManyInvites, UnknownInvite
from room.names import checked_name

MOST_INVITES = 256
MOST_GUESTS = 4096
"""Guests that one invite remembers; more do not come in by it."""

NAMING = 8
"""Characters at a key's beginning, 48 of its 192 bits, that name the invite; the others open it."""


class Side(StrEnum):
    """On which side of a room its guests are."""

    PEER = "peer"
    CLIENT = "client"


def side_named(name: str) -> Side:
    """Raises InvalidValue."""
    try:
        return Side(name)
    except ValueError as error:
        raise InvalidValue("side", f"an invite is for a peer or a client, not for {name[:20]!r}") from error


OWN, PEERS, CLIENTS = "host", "peers", "clients"
"""Names of the invites every room has: for the host's own processes, and those that are told when it opens."""


@dataclass(eq=False)
class Invitation:
    """One key to the door.

    A guest is a peer or the user of a machine. Whoever came in by an invite may come back by it when it has expired or
    is used up: only revoking it puts him out.
    """

    name: str
    side: Side
    key: str = field(repr=False)
    expires: float | None = None
    """Unix seconds from which on nobody new comes in by it."""
    uses: int | None = None
    """How many guests may come in by it."""
    revoked: bool = False
    guests: list[str] = field(default_factory=list, repr=False)

    def opens_to(self, key: str) -> bool:
        """Whether it is this one's key. Takes the same time wherever a wrong one begins to be wrong."""
        return secrets.compare_digest(self.key.encode(), key.encode())

    def check(self, guest: str, now: float) -> None:
        """Raise InviteRevoked, InviteExpired or InviteUsedUp unless `guest` may come in at `now`."""
        if self.revoked:
            raise InviteRevoked()
        if guest in self.guests:
            return
        if self.expires is not None and now >= self.expires:
            raise InviteExpired()
        if len(self.guests) >= min(self.uses or MOST_GUESTS, MOST_GUESTS):
            raise InviteUsedUp()

    def admit(self, guest: str, now: float) -> None:
        """`guest` comes in by it. Raises as `check` does."""
        self.check(guest, now)
        if guest not in self.guests:
            self.guests.append(guest)

    def state(self, now: float) -> str:
        """What somebody new would find, in words for people."""
        if self.revoked:
            return "revoked"
        if self.expires is not None and now >= self.expires:
            return "expired"
        return "used up" if self.uses is not None and len(self.guests) >= self.uses else "open"


class InviteBook:
    """All invites of a room, by name."""

    def __init__(self, kept: Iterable[Invitation] = (), clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._invites = {each.name: each for each in kept}
        for name, side in ((OWN, Side.PEER), (PEERS, Side.PEER), (CLIENTS, Side.CLIENT)):
            if name not in self._invites or self._invites[name].revoked:
                self._invites[name] = Invitation(name, side, _fresh_key())

    def __iter__(self) -> Iterator[Invitation]:
        return iter(self._invites.values())

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def kept(self) -> list[dict[str, Any]]:
        """All invites, for another run of this room."""
        return [{**vars(each), "guests": list(each.guests)} for each in self]

    def __getitem__(self, name: str) -> Invitation:
        """Raises UnknownInvite."""
        if name not in self._invites:
            raise UnknownInvite(name)
        return self._invites[name]

    def issue(
        self, side: Side, name: str = "", *, lifetime: float | None = None, uses: int | None = None
    ) -> Invitation:
        """A new invite, open for `lifetime` seconds and `uses` guests. Raises InvalidValue, TooManyInvites."""
        checked_name("name", name)
        now = self.now
        if len(self._invites) >= MOST_INVITES:
            self._forget_one(now)
        expires = now + lifetime if lifetime is not None else None
        made = Invitation(self._free_name(name or side), side, _fresh_key(), expires, uses)
        self._invites[made.name] = made
        return made

    def withdraw(self, invite: Invitation) -> None:
        """As if it had never been issued."""
        del self._invites[invite.name]

    def revoke(self, name: str) -> Invitation:
        """Raises UnknownInvite, or InvalidValue for the host's own."""
        if name == OWN:
            raise InvalidValue("name", f"{OWN} is what the room's own host comes in by; stop the room instead")
        invite = self[name]
        invite.revoked = True
        return invite

    def named_by(self, key: str) -> Invitation | None:
        """The invite whose key begins alike. Takes the same time wherever a wrong key begins to be wrong."""
        found, beginning = None, key[:NAMING].encode()
        for invite in self:
            if secrets.compare_digest(invite.key[:NAMING].encode(), beginning):
                found = invite
        return found

    def _forget_one(self, now: float) -> None:
        """Make room by dropping the oldest that lets nobody new in and let nobody in, or is revoked."""
        for invite in list(self):
            if invite.revoked or not (invite.guests or invite.state(now) == "open"):
                del self._invites[invite.name]
                return
        raise TooManyInvites(MOST_INVITES)

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._invites:
            number += 1
            name = f"{wanted}-{number}"
        return name


def _fresh_key() -> str:
    return secrets.token_urlsafe(24)
