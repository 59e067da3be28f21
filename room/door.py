"""The room's door: who may call it, and how a call ends that may not, or fails."""

import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc

from protos import PROTOCOL, dial, room_pb2
from protos.invite import Invite
from room.errors import (
    CallError,
    InternalError,
    InviteRevoked,
    NoKey,
    ProtocolMismatch,
    TooManyTries,
    UnknownRoom,
    WrongHostKey,
    WrongKey,
    WrongSide,
)
from room.invites import Invitation, InviteBook, Side
from room.knocks import Knock, Knocks
from room.names import MAX_NAME
from room.tries import MOST_REMEMBERED, Tries, address_of

log = logging.getLogger("pooled.room")

Context = grpc.aio.ServicerContext[Any, Any]

KNOCK = "/pooled.v1.Room/Knock"
"""The one method for which no key is needed."""
HOST = "/pooled.v1.Host/"
"""How the names of methods begin that only the host may call."""


_Who = str | tuple[str, str]
"""An address, and the invite that was named from there, if any."""


@dataclass(frozen=True)
class Caller:
    """Somebody whose key opens the door."""

    said: dict[str, str]
    invite: Invitation
    guest: str
    """Who it is, by its own account: a peer proves that as it joins."""


class Door:
    """Checks the metadata that every call carries, and puts out those whose invite is revoked."""

    def __init__(
        self,
        code: str,
        version: str,
        fingerprint: str | None,
        book: InviteBook,
        *,
        allow_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`version` is that of this side's pooled; `fingerprint` the certificate's, None for plain text.

        With `allow_all` the host need not be asked about those who come without a key.
        """
        self.code = code
        self.version = version
        self.host_key = secrets.token_urlsafe(24)
        """What only the host has."""
        self.fingerprint = fingerprint
        self.ways: tuple[Invite, ...] = ()
        """How the room is reached, keys left out; set once it listens."""
        self.book = book
        self.knocks = Knocks()
        self.origins: dict[tuple[str, int], str] = {}
        """Where those are who come by WebSocket, by the address and port at which the tunnel calls for them."""
        self._allow_all = allow_all
        self._clock = clock
        self._tries = Tries()
        self._trusted: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Addresses, and the invites by which somebody came in from there."""
        self._inside: dict[str, list[Callable[[CallError], None]]] = {}
        """How to put out who is inside, by invite."""
        self._staying: Counter[str] = Counter()

    async def greet(self, context: Context, method: str) -> None:
        """End the call of a stranger, before anything of what he sends is read."""
        said = _metadata(context)
        try:
            self._check_room(said)
            if dial.HOST_KEY in said or method.startswith(HOST):
                self._check_host_key(said, self._address(context))
            elif method != KNOCK:
                self._opened(said.get(dial.KEY, ""), self._address(context))
        except CallError as error:
            await abort(context, error)

    async def let_in(self, context: Context, *sides: Side) -> Caller:
        """Whoever calls, if it is one of `sides` and may go on; any other call is ended."""
        said = _metadata(context)
        try:
            self._check_room(said)
            invite = self._opened(said.get(dial.KEY, ""), self._address(context))
            caller = Caller(said, invite, said.get(dial.GUEST, "")[:MAX_NAME])
            invite.check(caller.guest, self.book.now)
            if invite.side not in sides:
                raise WrongSide(invite.side, sides[0])
        except CallError as error:
            await abort(context, error)
        return caller

    async def let_host_in(self, context: Context) -> None:
        """End the call unless the host makes it."""
        said, address = _metadata(context), self._address(context)
        try:
            self._check_room(said)
            self._check_host_key(said, address)
        except CallError as error:
            await abort(context, error)

    async def let_knock(self, context: Context) -> str:
        """The address of somebody who has the room's code; any other call is ended."""
        try:
            self._check_room(_metadata(context))
        except CallError as error:
            await abort(context, error)
        return self._address(context)

    @contextmanager
    def inside(self, invite: Invitation, put_out: Callable[[CallError], None], *, stays: bool = True) -> Iterator[None]:
        """Somebody is in the room as long as the block runs; `put_out` is called if its invite is revoked meanwhile.

        `stays`: to be counted as one who is here, which each peer and each bridge is once. Raises InviteRevoked if it
        was already.
        """
        if invite.revoked:
            raise InviteRevoked()
        ways_out = self._inside.setdefault(invite.name, [])
        ways_out.append(put_out)
        self._staying[invite.name] += stays
        try:
            yield
        finally:
            ways_out.remove(put_out)
            self._staying[invite.name] -= stays

    def revoke(self, name: str) -> None:
        """Close an invite and put out all who came in by it. Raises UnknownInvite, InvalidValue."""
        invite = self.book.revoke(name)
        for put_out in list(self._inside.get(invite.name, ())):
            put_out(InviteRevoked())

    def texts(self, invite: Invitation) -> tuple[Invite, ...]:
        """The invite as people paste it, one for each way to the room."""
        return tuple(replace(way, key=invite.key) for way in self.ways)

    def invites(self) -> list[room_pb2.InviteState]:
        """All invites, as the host is shown them: without their keys."""
        now = self.book.now
        return [
            room_pb2.InviteState(
                name=each.name,
                side=each.side,
                expires=int(each.expires or 0),
                uses=each.uses or 0,
                guests=len(each.guests),
                inside=self._staying[each.name],
                state=each.state(now),
            )
            for each in self.book
        ]

    def allow(self, name: str) -> None:
        """Let in who waits under that name, and nobody else, by an invite. Raises UnknownKnock, TooManyInvites."""
        knock = self.knocks[name]
        knock.answer.set_result(self.book.issue(knock.side, knock.name, uses=1))

    def deny(self, name: str) -> None:
        """Raises UnknownKnock."""
        self.knocks[name].answer.set_result(None)

    @contextmanager
    def knocking(self, name: str, side: Side, address: str) -> Iterator[Knock]:
        """Somebody without a key waits for the host as long as the block runs. Raises TooManyKnocks."""
        with self.knocks.waiting(name, side, address) as knock:
            log.info("somebody asks to be let in", extra={"who": knock.name, "side": side, "address": address})
            if self._allow_all:
                self.allow(knock.name)
            yield knock

    def _check_room(self, said: dict[str, str]) -> None:
        _check_protocol(said.get(dial.PROTOCOL_KEY, ""), said.get(dial.VERSION, "unknown"), self.version)
        if said.get(dial.CODE) != self.code:
            raise UnknownRoom(said.get(dial.CODE, "")[:8])

    def _check_host_key(self, said: dict[str, str], address: str) -> None:
        """Raise WrongHostKey, or TooManyTries after wrong ones. The host itself is never held up."""
        if not secrets.compare_digest(said.get(dial.HOST_KEY, "").encode(), self.host_key.encode()):
            self._check_patience(address)
            self._turn_away(address)
            raise WrongHostKey()

    def _opened(self, key: str, address: str) -> Invitation:
        """The invite of a key. Raises NoKey, WrongKey, or TooManyTries after wrong ones.

        A key's beginning names the invite, and its end opens it. Beginnings that name none make their address wait; an
        end that is wrong, right ones after it too, but only with the same beginning. So who has a right key does not
        wait for what others guess, and guesses learn nothing beside the refusals. Who came in from there before does
        not wait at all.
        """
        if not key:
            raise NoKey()
        invite = self.book.named_by(key)
        who = (address, invite.name) if invite else address
        if who not in self._trusted:
            self._check_patience(who)
        if invite is None or not invite.opens_to(key):
            self._turn_away(who)
            raise WrongKey()
        self._trusted[address, invite.name] = None
        if len(self._trusted) > MOST_REMEMBERED:
            self._trusted.popitem(last=False)
        return invite

    def _check_patience(self, who: _Who) -> None:
        """Raise TooManyTries as long as wrong keys make `who` wait."""
        wait = self._tries.wait(who, self._clock())
        if wait:
            raise TooManyTries(wait)

    def _turn_away(self, who: _Who) -> None:
        self._tries.wrong(who, self._clock())
        log.warning("turned away: wrong key", extra={"address": who if isinstance(who, str) else who[0]})

    def _address(self, context: Context) -> str:
        return address_of(context.peer(), self.origins)


def _metadata(context: Context) -> dict[str, str]:
    return {key: str(value) for key, value in (context.invocation_metadata() or ())}


def _check_protocol(theirs: str, their_version: str, our_version: str) -> None:
    """Raise ProtocolMismatch, which says which side is older and what to do."""
    if theirs == str(PROTOCOL):
        return
    if not theirs.isdigit():
        raise ProtocolMismatch("this is a Pooled room; the caller does not speak its protocol")
    older = "yours is the older one" if int(theirs) < PROTOCOL else "the room's is the older one"
    raise ProtocolMismatch(
        f"your pooled {their_version} speaks protocol {theirs}, the room's pooled {our_version} speaks {PROTOCOL}: "
        f"{older}, upgrade it: git pull in its clone, then the same pip install as before"
    )


async def abort(context: Context, error: CallError) -> NoReturn:
    """End a call with what the error says."""
    if isinstance(error, InternalError):
        log.error("request failed", extra={"why": str(error)})
    trailing = [(dial.ERROR, error.code)]
    if error.param is not None:
        trailing.append((dial.PARAM, error.param))
    if error.retry_after is not None:
        trailing.append((dial.RETRY_AFTER, str(error.retry_after)))
    await context.abort(error.status, str(error), tuple(trailing))
    raise AssertionError("abort raises")
