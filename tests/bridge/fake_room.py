"""A room that plays scripts: a real gRPC server with no model behind it.

It speaks the whole client side of the Room service, checks invites as a real room does, and records what it was asked
and which requests were cancelled.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from protos import PROTOCOL, dial, peer_pb2, room_pb2
from protos.certificate import Certificate
from protos.invite import Invite
from protos.room_pb2_grpc import RoomServicer, add_RoomServicer_to_server
from protos.serving import new_server

MODEL = "pooled/fake-1b"
CTX = 4096
CODE, KEY = "ABC234", "open sesame"
CERTIFICATE = Certificate.made()

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Refuse:
    """End the call as a room does: a status, a sentence and the code in the trailing metadata ('' for none)."""

    code: str
    message: str = "the room says no"
    param: str | None = None
    retry_after: int | None = None
    status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Crash:
    """A bug in the room."""

    text: str


Step = room_pb2.GenerateEvent | Refuse | Pause | Crash | asyncio.Event
"""An event to send, an error to end with, a time to wait, or something to wait for."""


def queued(ahead: int, eta: int = 0) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(queued=room_pb2.Queued(ahead=ahead, eta=eta))


def prefill(done: int, total: int) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(prefill=room_pb2.Prefill(done=done, total=total))


def text(piece: str) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(text=room_pb2.TextDelta(text=piece))


def reasoning(piece: str) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(reasoning=room_pb2.ReasoningDelta(text=piece))


def call(index: int, name: str) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(call=room_pb2.ToolCallStart(index=index, name=name))


def call_delta(index: int, arguments: str) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(call_delta=room_pb2.ToolCallDelta(index=index, arguments=arguments))


def notice(sentence: str) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(notice=room_pb2.Notice(text=sentence))


def finish(reason: room_pb2.FinishReason.ValueType = room_pb2.FINISH_REASON_STOP) -> room_pb2.GenerateEvent:
    return room_pb2.GenerateEvent(finish=room_pb2.Finish(reason=reason))


def usage(prompt: int = 31, completion: int = 2, cached: int = 0, thought: int = 0) -> room_pb2.GenerateEvent:
    counts = room_pb2.Usage(
        prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, reasoning_tokens=thought
    )
    return room_pb2.GenerateEvent(usage=counts)


def answer(*pieces: str) -> list[Step]:
    """The script of an undisturbed answer."""
    return [queued(0), prefill(31, 31), *map(text, pieces), finish(), usage(completion=len(pieces))]


class FakeRoom(RoomServicer):
    def __init__(self) -> None:
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Condition()
        self._version = 0
        self.reset()

    def reset(self) -> None:
        """As new, but at the same address."""
        self.script: Sequence[Step] = answer("Hello", " there")
        self.requests: list[room_pb2.GenerateRequest] = []
        self.cancelled: list[str] = []
        self.sent = 0
        self._live: set[object] = set()
        self.turned_away: grpc.StatusCode | None = None
        self.state = room_pb2.RoomState(
            code=CODE, model=MODEL, ready=True, ctx=CTX, name="fake", created=1_700_000_000, layers=24
        )

    async def start(self) -> None:
        self._server = new_server()
        add_RoomServicer_to_server(self, self._server)
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", CERTIFICATE.server_credentials())
        await self._server.start()

    async def stop(self) -> None:
        """Gone, as a crashed room is: calls break without a word."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def invite(self) -> Invite:
        return Invite("127.0.0.1", self.port, CODE, KEY, CERTIFICATE.fingerprint)

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return len(self._live)

    @property
    def asked(self) -> room_pb2.GenerateRequest:
        """The latest request."""
        return self.requests[-1]

    async def tell(self, **members: Any) -> None:
        """Change the state and tell every watcher."""
        for name, value in members.items():
            setattr(self.state, name, value)
        self._version += 1
        await self._notify()

    async def until_cancelled(self, count: int = 1) -> None:
        await self._until(lambda: len(self.cancelled) >= count)

    async def until_running(self, count: int = 1) -> None:
        await self._until(lambda: self.running >= count)

    async def until_asked(self, count: int) -> None:
        await self._until(lambda: len(self.requests) >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _until_newer(self, version: int) -> None:
        await self._until(lambda: self._version != version)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------ the service

    async def Generate(
        self, request: room_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[room_pb2.GenerateEvent]:
        await self._let_in(context)
        self.requests.append(request)
        # Of the test that asked: a cancelled handler may end when the room is already as new again.
        live, cancelled, token = self._live, self.cancelled, object()
        live.add(token)
        await self._notify()
        try:
            for step in tuple(self.script):
                match step:
                    case Refuse():
                        await _refuse(context, step)
                    case Pause():
                        await asyncio.sleep(step.seconds)
                    case Crash():
                        raise RuntimeError(step.text)
                    case asyncio.Event():
                        await step.wait()
                    case room_pb2.GenerateEvent():
                        yield step
                        self.sent += step.ByteSize()
        except (asyncio.CancelledError, GeneratorExit):
            cancelled.append(request.request_id)
            raise
        finally:
            live.discard(token)
            # A cancelled handler must not wait; whoever waits here is told by a task of its own.
            self._telling = asyncio.ensure_future(self._notify())

    async def Watch(self, request: room_pb2.WatchRequest, context: Context) -> AsyncIterator[room_pb2.RoomState]:
        while True:
            await self._let_in(context)
            told = self._version
            yield self.state
            await self._until_newer(told)

    async def Join(
        self, request_iterator: AsyncIterator[room_pb2.FromMember], context: Context
    ) -> AsyncIterator[room_pb2.ToMember]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this room takes no peers")
        yield room_pb2.ToMember()

    async def Frames(
        self, request_iterator: AsyncIterator[peer_pb2.FromPeer], context: Context
    ) -> AsyncIterator[peer_pb2.ToPeer]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this room takes no peers")
        yield peer_pb2.ToPeer()

    async def _let_in(self, context: Context) -> None:
        said = dict(context.invocation_metadata() or ())
        door = [
            (said.get(dial.PROTOCOL_KEY) == str(PROTOCOL), grpc.StatusCode.FAILED_PRECONDITION, "another protocol"),
            (said.get(dial.CODE) == CODE, grpc.StatusCode.NOT_FOUND, "there is no such room"),
            (said.get(dial.KEY) == KEY, grpc.StatusCode.UNAUTHENTICATED, "the key does not open this room"),
        ]
        if self.turned_away is not None:
            door.append((False, self.turned_away, "the host removed you"))
        for fine, status, sentence in door:
            if not fine:
                await _refuse(context, Refuse("room_unavailable", sentence, status=status))


async def _refuse(context: Context, refusal: Refuse) -> None:
    metadata = [(dial.ERROR, refusal.code)] if refusal.code else []
    if refusal.param is not None:
        metadata.append((dial.PARAM, refusal.param))
    if refusal.retry_after is not None:
        metadata.append((dial.RETRY_AFTER, str(refusal.retry_after)))
    await context.abort(refusal.status, refusal.message, tuple(metadata))
