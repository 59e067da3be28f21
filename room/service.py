"""The room's gRPC service: lets callers in, and pumps messages between their streams and the room."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from protos import dial, peer_pb2, room_pb2, room_pb2_grpc, weights_pb2
from protos.lanes import lane_named
from room import report
from room.border import checked_frame, checked_hello, checked_word
from room.door import Context, Door, abort
from room.errors import CallError, ClientPutOut, DeniedByHost, InvalidValue, InviteRevoked, UnknownMember
from room.identity import Challenge
from room.intake import Intake
from room.invites import OWN, Side, side_named
from room.members import Member
from room.names import checked_name
from room.relay import Relay
from room.room import Room

log = logging.getLogger("pooled.room")

T = TypeVar("T")
WATCH_INTERVAL = 0.5
"""Seconds between two looks at the state for a watcher."""

HELLO_WITHIN = 10.0
"""Seconds for a peer to answer the challenge."""

MAX_PADDING = 1 << 20
"""Bytes of an echo, either way."""

HANG_UP = 5.0
"""Seconds that a refused peer gets to read why."""


class RoomService(room_pb2_grpc.RoomServicer):
    """One servicer per room."""

    def __init__(self, room: Room, intake: Intake, door: Door) -> None:
        self._room = room
        self._intake = intake
        self._door = door
        self.relay = Relay(lambda: bool(room.running))

    async def Knock(self, request: room_pb2.KnockRequest, context: Context) -> AsyncIterator[room_pb2.KnockReply]:
        address = await self._door.let_knock(context)
        try:
            name, side = checked_name("name", request.name) or request.side, side_named(request.side)
            with self._door.knocking(name, side, address) as knock:
                yield room_pb2.KnockReply(waiting=room_pb2.Waiting(name=knock.name))
                invite = await knock.answer
            if invite is None:
                raise DeniedByHost()
        except CallError as error:
            await abort(context, error)
        yield room_pb2.KnockReply(key=invite.key)

    async def Join(
        self, request_iterator: AsyncIterator[room_pb2.FromMember], context: Context
    ) -> AsyncIterator[room_pb2.ToMember]:
        caller = await self._door.let_in(context, Side.PEER)
        challenge = Challenge(self._door.fingerprint)
        yield room_pb2.ToMember(challenge=room_pb2.Challenge(nonce=challenge.nonce))
        first = asyncio.create_task(_first(request_iterator))
        await asyncio.wait({first}, timeout=HELLO_WITHIN)
        try:
            hello = checked_hello(first.result() if first.done() else None)
            challenge.check(hello)
            caller.invite.admit(hello.peer_id, self._door.book.now)
            member = self._room.join(hello, own=caller.invite.name == OWN)
        except CallError as error:
            yield room_pb2.ToMember(refused=room_pb2.Refused(reason=str(error)))
            await (_hung_up(request_iterator) if first.done() else abort(context, error))
            return
        reader = pump(request_iterator, lambda said: self._room.heard(member, checked_word(said)), member.outbox.close)
        try:
            with self._door.inside(caller.invite, partial(self._room.put_out, member)):
                async for message in member.outbox:
                    yield message
        finally:
            reader.cancel()
            self._room.leave(member, "its stream broke")

    async def Frames(
        self, request_iterator: AsyncIterator[peer_pb2.FromPeer], context: Context
    ) -> AsyncIterator[peer_pb2.ToPeer]:
        said = (await self._door.let_in(context, Side.PEER)).said
        member = self._room.roster.by_token(said.get(dial.MEMBER, ""))
        lane = lane_named(said.get(dial.LANE, ""))
        if member is None or lane is None or lane in member.opened:
            await abort(context, UnknownMember())
        member.opened.add(lane)
        outbox = member.lanes[lane]
        reader = pump(request_iterator, lambda sent: self._room.arrived(member, checked_frame(sent)), outbox.close)
        try:
            async for message in outbox:
                yield message
        finally:
            reader.cancel()
            self._room.leave(member, "one of its lanes broke")

    async def Generate(
        self, request: room_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[room_pb2.GenerateEvent]:
        caller = await self._door.let_in(context, Side.CLIENT)
        try:
            caller.invite.admit(caller.guest, self._door.book.now)
            self._room.check_open()
            job, answer = await self._intake.prepare(request, self._room.effective_ctx)
            session = self._room.submit(job, answer)
        except CallError as error:
            await abort(context, error)
        try:
            with self._door.inside(caller.invite, lambda _: self._room.cut_off(session, ClientPutOut()), stays=False):
                # A frame that leaves later holds up all its answers, a word that does only one reader.
                async for event in session.outbox.patiently():
                    yield event
        except CallError as error:
            await abort(context, error)
        finally:
            self._room.close(session)

    async def Watch(self, request: room_pb2.WatchRequest, context: Context) -> AsyncIterator[room_pb2.RoomState]:
        sides = (Side.CLIENT,) if request.asks else (Side.PEER, Side.CLIENT)
        caller = await self._door.let_in(context, *sides)
        told, revoked = None, asyncio.Event()
        with self._door.inside(caller.invite, lambda reason: revoked.set(), stays=request.asks):
            while not revoked.is_set():
                state = self._room.state()
                if state != told:
                    yield state
                    told = state
                await asyncio.sleep(WATCH_INTERVAL)
        await abort(context, InviteRevoked())

    async def Echo(self, request: room_pb2.EchoRequest, context: Context) -> room_pb2.EchoReply:
        caller = await self._door.let_in(context, Side.PEER, Side.CLIENT)
        if max(len(request.padding), request.wanted) > MAX_PADDING:
            await abort(context, InvalidValue("padding", f"an echo has at most {MAX_PADDING} bytes either way"))
        return room_pb2.EchoReply(
            padding=bytes(request.wanted),
            side=caller.invite.side,
            version=self._door.version,
            transformers=self._room.versions.ours,
        )

    async def Holders(self, request: room_pb2.HoldersRequest, context: Context) -> room_pb2.HoldersReply:
        return report.holders(self._room, await self.let_member_in(context))

    async def Give(
        self, request_iterator: AsyncIterator[weights_pb2.Given], context: Context
    ) -> AsyncIterator[weights_pb2.Asked]:
        member = await self.let_member_in(context)
        number = dict(context.invocation_metadata() or ()).get(dial.ERRAND, "")
        try:
            async for asked in self.relay.carry(member, str(number), request_iterator):
                yield asked
        except CallError as error:
            await abort(context, error)
        except DecodeError:
            await abort(context, InvalidValue("given", "this gives nothing that can be read"))

    async def let_member_in(self, context: Context) -> Member:
        """The peer that makes a call; a call by anybody else is ended."""
        said = (await self._door.let_in(context, Side.PEER)).said
        member = self._room.roster.by_token(said.get(dial.MEMBER, ""))
        if member is None:
            await abort(context, UnknownMember())
        return member


async def _first(messages: AsyncIterator[T]) -> T | None:
    """The first message; None where there is none, or none that can be read."""
    try:
        return await anext(messages, None)
    except DecodeError:
        return None


def pump(messages: AsyncIterator[T], take: Callable[[T], None], ended: Callable[[], None]) -> "asyncio.Task[None]":
    """Read a stream to its end in a task of its own, then say so. Reads are never timed out: that ends the call."""

    async def run() -> None:
        try:
            async for message in messages:
                take(message)
        except grpc.RpcError:
            log.debug("a stream broke")
        except (InvalidValue, DecodeError) as error:
            log.warning("a message makes no sense; its stream ends", extra={"why": str(error)})
        except Exception:
            log.exception("a message could not be taken")
        finally:
            ended()

    return asyncio.create_task(run())


async def _hung_up(messages: AsyncIterator[Any]) -> None:
    """Wait a while for the caller to end its side, so that it reads what was said last."""
    ended = asyncio.Event()
    reader = pump(messages, lambda message: None, ended.set)
    await asyncio.wait({reader}, timeout=HANG_UP)
    reader.cancel()
