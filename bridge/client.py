"""The room as its clients see it: what it is like now, and answers. Knows gRPC, and nothing of HTTP."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import grpc

from bridge import errors
from protos import dial, room_pb2
from protos.invite import Invite
from protos.room_pb2_grpc import RoomStub
from protos.tunnel import TunnelFailed, reached

log = logging.getLogger("pooled.bridge")

_FIRST_BACKOFF, _MAX_BACKOFF = 0.2, 5.0
"""Seconds between attempts to reach a room that is gone."""

_CHANNEL_OPTIONS: dial.Options = (
    # What a reader leaves is to wait in the room, not here: a small window that gRPC does not widen by itself.
    ("grpc.http2.lookahead_bytes", 256 << 10),
    ("grpc.http2.bdp_probe", 0),
)

_DOOR = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
"""Turned away: wrong key, removed by the host, unknown code, another protocol."""

_BY_CODE: dict[str, type[errors.ApiError]] = {
    kind.code: kind
    for kind in (
        errors.QueueFull,
        errors.RoomUnavailable,
        errors.NoPipeline,
        errors.Loading,
        errors.ShuttingDown,
        errors.CancelledByRoom,
        errors.PipelineLost,
        errors.RoomTimeout,
        errors.QueueTimeout,
        errors.InternalError,
    )
}


class RoomClient:
    """A connection to one room that keeps the room's latest state and comes back when the room does.

    >>> async with await RoomClient.connect(invite) as room:
    ...     print(room.state.model)
    ...     async for event in room.generate(request):
    ...         print(event.text.text, end="")
    """

    def __init__(self, invite: Invite, version: str = "", *, asks: bool = True) -> None:
        self.id = secrets.token_hex(8)
        """Names this client to the room, which counts its waiting requests by it."""
        self.state = room_pb2.RoomState()
        """The latest the room said of itself; stays when the connection is lost."""
        self.connected = False
        self._lost = False
        self.refused: errors.RoomRefused | None = None
        """Set while the room turns this client away."""
        self._invite = invite
        self._metadata = dial.credentials(invite, version)
        self._asks = asks
        self._channel: grpc.aio.Channel | None = None
        self._ways = AsyncExitStack()
        self._answering = asyncio.Event()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def connect(cls, invite: Invite, *, version: str = "", timeout: float = 10.0, asks: bool = True) -> Self:
        """A client whose invite the room has accepted: as one to ask by, unless it `asks` nothing and only looks.

        Raises RoomRefused, with the room's sentence, or RoomUnreachable when nobody answers within `timeout` seconds.
        """
        ways = AsyncExitStack()
        try:
            near = await ways.enter_async_context(reached(invite))
        except TunnelFailed as error:
            raise errors.RoomUnreachable(str(error)) from error
        client = cls(near, version, asks=asks)
        client._ways = ways
        try:
            # The future is waited for, not the call itself: a time-out around a gRPC read cancels the call.
            async with asyncio.timeout(timeout):
                await asyncio.shield(client._first)
        except TimeoutError as error:
            await client.close()
            raise client._unreachable() from error
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection and every answer on it."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        self._first.cancel()
        if self._channel is not None:
            await self._channel.close()
        await self._ways.aclose()

    def __repr__(self) -> str:
        link = "connected" if self.connected else "refused" if self.refused else "unreachable"
        return f"<RoomClient [{self._invite.place}: {link} | {self.state.model or 'no model'}]>"

    @property
    def ready(self) -> bool:
        """Whether the room would take a request now, as far as this client knows."""
        return self.connected and self.state.ready

    async def until_it_answers(self) -> None:
        """Wait until the room has been ready for the first time."""
        await self._answering.wait()

    def check(self) -> None:
        """Raise what keeps this client from the room at all, so that asking costs nothing while it is gone."""
        if self.refused is not None:
            raise errors.RoomRefused(str(self.refused))
        if not self.connected:
            raise self._unreachable()

    async def generate(self, request: room_pb2.GenerateRequest) -> AsyncGenerator[room_pb2.GenerateEvent, None]:
        """The events of one answer. Leaving the iterator cancels the request in the room.

        Put no time-out or cancel scope around single steps: it would cancel the call. Raises ApiError.
        """
        if self._channel is None:
            raise self._unreachable()
        call = RoomStub(self._channel).Generate(request, metadata=self._metadata)
        started = False
        try:
            async for event in call:
                started = True
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._translate(error, started=started) from error
        finally:
            call.cancel()

    async def _watch(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            try:
                stub = RoomStub(await self._reached())
                async for state in stub.Watch(room_pb2.WatchRequest(asks=self._asks), metadata=self._metadata):
                    backoff = _FIRST_BACKOFF
                    self._enter(state)
                self._leave(self._unreachable())
            except dial.Unreachable:
                self._leave(self._unreachable())
            except dial.WrongCertificate as error:
                self._leave(errors.RoomRefused(str(error)))
            except grpc.aio.AioRpcError as error:
                self._leave(self._translate(error, started=False))
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    async def _reached(self) -> grpc.aio.Channel:
        """The channel to the room, once its certificate was seen: gRPC alone could not tell that another one is there.

        Raises Unreachable, WrongCertificate.
        """
        certificate = await dial.pinned(self._invite)
        if self._channel is None:
            self._channel = dial.channel_to(self._invite.address, certificate, _CHANNEL_OPTIONS)
        return self._channel

    def _enter(self, state: room_pb2.RoomState) -> None:
        if not self.connected:
            # Whoever reads that it was lost wants to read that it is back.
            level = logging.WARNING if self._lost else logging.INFO
            log.log(level, "connected to room %s at %s", state.code, self._invite.place)
            self._lost = False
        self.state, self.connected, self.refused = state, True, None
        if state.ready:
            self._answering.set()
        if not self._first.done():
            self._first.set_result(None)

    def _leave(self, reason: errors.ApiError) -> None:
        refused = reason if isinstance(reason, errors.RoomRefused) else None
        if not self._first.done():
            self._first.set_exception(reason)
        elif self.connected:
            log.warning("lost the room at %s: %s", self._invite.place, reason)
            self._lost = True
        elif refused and not self.refused:
            log.warning("the room at %s turns this client away: %s", self._invite.place, reason)
        self.connected, self.refused = False, refused

    def _translate(self, error: grpc.aio.AioRpcError, *, started: bool) -> errors.ApiError:
        """The one place where a gRPC failure becomes one of ours."""
        said = dial.refusal(error)
        if said.code in ("", errors.RoomUnavailable.code) and error.code() in _DOOR:
            return errors.RoomRefused(said.message)
        if said.code == errors.ContextTooLong.code:
            return errors.ContextTooLong(said.message, param=said.param or "messages")
        if said.code and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return errors.InvalidRequest(said.message, param=said.param, code=said.code)
        if said.code == errors.QueueFull.code:
            wait = min(max(said.retry_after or errors.QueueFull.retry_after, 1), 60)
            return errors.QueueFull(said.message, retry_after=wait)
        if said.code in _BY_CODE:
            return _BY_CODE[said.code](said.message, retry_after=said.retry_after)
        if said.code or error.code() is grpc.StatusCode.UNKNOWN:
            # A code we do not know, or a bug over there: its text may hold anything, so it is not passed on.
            return errors.InternalError("The room failed while it worked on this request.")
        if started:
            return errors.PipelineLost("The connection to the room broke in the middle of the answer.")
        return self._unreachable()

    def _unreachable(self) -> errors.RoomUnreachable:
        where = self._invite.place
        return errors.RoomUnreachable(
            f"nobody answers for the room at {where}; check that its host runs and that the invite is fresh"
        )
