"""The room's gRPC service: lets callers in, and pumps messages between their streams and the room."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from protos import dial, peer_pb2, room_pb2, room_pb2_grpc
from protos.lanes import lane_named
from room import report
from room.border import checked_frame, checked_hello, checked_word
from room.door import Context, Door, abort
from room.errors import CallError, InvalidValue, UnknownMember
from room.identity import Challenge
from room.intake import Intake
from room.members import Member
from room.room import Room

log = logging.getLogger("pooled.room")

T = TypeVar("T")
WATCH_INTERVAL = 0.5
"""Seconds between two looks at the state for a watcher."""

HELLO_WITHIN = 10.0
"""Seconds for a peer to answer the challenge."""

HANG_UP = 5.0
"""Seconds that a refused peer gets to read why."""


class RoomService(room_pb2_grpc.RoomServicer):
    """One servicer per room."""

    def __init__(self, room: Room, intake: Intake, door: Door) -> None:
        self._room = room
        self._intake = intake
        self._door = door

    async def Join(
        self, request_iterator: AsyncIterator[room_pb2.FromMember], context: Context
    ) -> AsyncIterator[room_pb2.ToMember]:
        await self._door.let_in(context)
        challenge = Challenge(self._door.fingerprint)
        yield room_pb2.ToMember(challenge=room_pb2.Challenge(nonce=challenge.nonce))
        # Ended by its time-out, the read ends the call: who does not answer is not waited for.
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                first = await anext(request_iterator, None)
        except DecodeError:
            await abort(context, InvalidValue("hello", "a peer says hello first, in protobuf"))
        try:
            hello = checked_hello(first)
            challenge.check(hello)
            member = self._room.join(hello)
        except CallError as error:
            yield room_pb2.ToMember(refused=room_pb2.Refused(reason=str(error)))
            await _hung_up(request_iterator)
            return
        reader = _pump(request_iterator, lambda said: self._room.heard(member, checked_word(said)), member.outbox.close)
        try:
            async for message in member.outbox:
                yield message
        finally:
            reader.cancel()
            self._room.leave(member, "its stream broke")

    async def Frames(
        self, request_iterator: AsyncIterator[peer_pb2.FromPeer], context: Context
    ) -> AsyncIterator[peer_pb2.ToPeer]:
        said = await self._door.let_in(context)
        member = self._room.roster.by_token(said.get(dial.MEMBER, ""))
        lane = lane_named(said.get(dial.LANE, ""))
        if member is None or lane is None:
            await abort(context, UnknownMember())
        outbox = member.lanes[lane]
        reader = _pump(request_iterator, lambda sent: self._room.arrived(member, checked_frame(sent)), outbox.close)
        try:
            async for message in outbox:
                yield message
        finally:
            reader.cancel()
            self._room.leave(member, "one of its lanes broke")

    async def Generate(
        self, request: room_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[room_pb2.GenerateEvent]:
        await self._door.let_in(context)
        try:
            self._room.check_open()
            job, answer = await self._intake.prepare(request, self._room.effective_ctx)
            session = self._room.submit(job, answer)
        except CallError as error:
            await abort(context, error)
        try:
            async for event in session.outbox:
                yield event
        except CallError as error:
            await abort(context, error)
        finally:
            self._room.close(session)

    async def Watch(self, request: room_pb2.WatchRequest, context: Context) -> AsyncIterator[room_pb2.RoomState]:
        await self._door.let_in(context)
        told = None
        while True:
            state = self._room.state()
            if state != told:
                yield state
                told = state
            await asyncio.sleep(WATCH_INTERVAL)

    async def Holders(self, request: room_pb2.HoldersRequest, context: Context) -> room_pb2.HoldersReply:
        return report.holders(self._room, await self.let_member_in(context))

    async def let_member_in(self, context: Context) -> Member:
        """The peer that makes a call; a call by anybody else is ended."""
        said = await self._door.let_in(context)
        member = self._room.roster.by_token(said.get(dial.MEMBER, ""))
        if member is None:
            await abort(context, UnknownMember())
        return member


def _pump(messages: AsyncIterator[T], take: Callable[[T], None], ended: Callable[[], None]) -> "asyncio.Task[None]":
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
    reader = _pump(messages, lambda message: None, ended.set)
    await asyncio.wait({reader}, timeout=HANG_UP)
    reader.cancel()
