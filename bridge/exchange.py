"""One request's talk with the room, and all that are going on now."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator

import anyio

from bridge.client import RoomClient
from bridge.config import Timeouts
from bridge.errors import ApiError, QueueTimeout, RoomTimeout, ShuttingDown, as_api_error
from protos import room_pb2

_BUFFERED_EVENTS = 16
"""Between the room and the writer. What a slow reader leaves beyond that, gRPC's flow control keeps in the room."""


class Patience:
    """What the room's silence means. Fed with events and the time in seconds; knows no clock of its own."""

    def __init__(self, timeouts: Timeouts, now: float) -> None:
        self.ahead = 0
        """How many must make way before the request starts; 0 once it runs."""
        self._starts_at = 0.0  # by the room's estimate; 0: it has none
        self._timeouts = timeouts
        self._heard_at = self._queued_at = now
        self._running = False

    def heard(self, event: room_pb2.GenerateEvent, now: float) -> None:
        self._heard_at = now
        match event.WhichOneof("event"):
            case "queued" if not self._running:
                if not self.ahead:
                    self._queued_at = now
                self.ahead = event.queued.ahead
                self._starts_at = now + event.queued.eta if event.queued.eta else 0.0
            case "prefill" | "text" | "reasoning" | "call" | "call_delta" | "finish" | "usage":
                self._running, self.ahead = True, 0

    def eta(self, now: float) -> int:
        """Whole seconds until the request should start, 1 or more; 0: nobody knows, or it took longer already."""
        return max(0, math.ceil(self._starts_at - now)) if self.ahead else 0

    def left(self, now: float) -> float:
        """Seconds until patience ends; may be negative."""
        if self.ahead:
            return self._queued_at + self._timeouts.queue - now
        return self._heard_at + self._timeouts.room - now

    def lost(self) -> ApiError:
        """What to tell the caller when patience has ended."""
        if self.ahead:
            return QueueTimeout(f"The request waited in the queue for {self._timeouts.queue / 60:g} minutes.")
        return RoomTimeout(f"The room was silent for {self._timeouts.room / 60:g} minutes.")


class Inbox:
    """A bounded buffer with one writer and one reader, who may wait for so long and no longer.

    anyio's streams and cancel scopes do the same for several times the processor time, which each token would pay.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[room_pb2.GenerateEvent] = deque()
        self._waiting: asyncio.Future[None] | None = None
        """The reader, while there is nothing; the writer, while there is no space."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def put(self, event: room_pb2.GenerateEvent) -> None:
        """Add an event once there is space for it. After `close` it is dropped."""
        while len(self._events) >= _BUFFERED_EVENTS and not self._closed:
            await self._wait()
        if not self._closed:
            self._events.append(event)
            self._wake()

    async def take(self, until: float) -> room_pb2.GenerateEvent | None:
        """The oldest event, or None when there is none until that time, by the loop's clock.

        What is here counts, however late the reader is. Raises EndOfStream after the last event of a closed one.
        """
        while not self._events:
            if self._closed:
                raise anyio.EndOfStream
            if self._loop.time() >= until:
                return None
            self._ring_by(until)
            await self._wait()
        event = self._events.popleft()
        self._wake()
        return event

    def close(self) -> None:
        self._closed = True
        self._wake()
        if self._timer is not None:
            self._timer.cancel()

    def _ring_by(self, until: float) -> None:
        """Have the reader look at the clock at `until` at the latest: a timer that is set already may ring first."""
        if self._timer is None or self._timer.when() > until:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(until, self._ring) if until < math.inf else None

    def _ring(self) -> None:
        self._timer = None
        self._wake()

    async def _wait(self) -> None:
        self._waiting = self._loop.create_future()
        await self._waiting

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Exchange:
    """Events of one answer, pumped into a bounded buffer by a task of its own: time-outs may surround reading it."""

    def __init__(self, room: RoomClient, request: room_pb2.GenerateRequest, timeouts: Timeouts) -> None:
        self._room = room
        self._request = request
        self._clock = asyncio.get_running_loop().time
        self._inbox = Inbox()
        self._patience = Patience(timeouts, self._clock())
        self._pumping = anyio.CancelScope()
        self._failure: ApiError | None = None
        self.answered = False
        """Whether the answer came to its end."""

    @property
    def ahead(self) -> int:
        return self._patience.ahead

    @property
    def eta(self) -> int:
        return self._patience.eta(self._clock())

    async def pump(self) -> None:
        """Run the request in the room. Cancelling this task cancels it there."""
        with self._pumping, contextlib.closing(self._inbox):
            try:
                async with contextlib.aclosing(self._room.generate(self._request)) as events:
                    async for event in events:
                        await self._inbox.put(event)
            except Exception as error:  # whatever it is, the reader must hear of it
                self._failure = as_api_error(error, self._request.request_id)

    def stop(self) -> None:
        """The bridge ends, and the request with it; its reader gets what has come, then ShuttingDown."""
        self._failure = _stopped()
        self._pumping.cancel()

    async def next(self, within: float = math.inf) -> room_pb2.GenerateEvent | None:
        """The next event, None when there is none for `within` seconds.

        Raises EndOfStream after the last one, ApiError when the request failed or the room was silent for too long.
        """
        now = self._clock()
        patience = self._patience.left(now)
        try:
            event = await self._inbox.take(now + min(within, patience))
        except anyio.EndOfStream:
            if self._failure is not None:
                raise self._failure from None
            raise
        if event is not None:
            self._patience.heard(event, self._clock())
            self.answered = self.answered or event.HasField("usage")
        elif patience <= within:
            raise self._patience.lost()
        return event

    async def events(self) -> AsyncIterator[room_pb2.GenerateEvent]:
        """All events up to the end. Raises ApiError."""
        while True:
            try:
                event = await self.next()
            except anyio.EndOfStream:
                return
            if event is not None:
                yield event

    def close(self) -> None:
        self._pumping.cancel()
        self._inbox.close()


class Exchanges:
    """Every request this bridge has in the room, waiting or running."""

    def __init__(self, room: RoomClient, timeouts: Timeouts) -> None:
        self.served = 0
        """Answers that came to their end."""
        self._room = room
        self._timeouts = timeouts
        self._open: set[Exchange] = set()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def open(self, request: room_pb2.GenerateRequest) -> Iterator[Exchange]:
        """A place for `request`; the caller runs `pump`. Raises ApiError when there is no sense in asking the room."""
        if self._stopping:
            raise _stopped()
        self._room.check()
        exchange = Exchange(self._room, request, self._timeouts)
        self._open.add(exchange)
        try:
            yield exchange
        finally:
            self.served += exchange.answered
            self._open.discard(exchange)
            exchange.close()

    def stop(self) -> None:
        """The bridge ends: finish every answer with an error, take no more."""
        self._stopping = True
        for exchange in self._open:
            exchange.stop()


def _stopped() -> ShuttingDown:
    return ShuttingDown("The bridge is shutting down.")
