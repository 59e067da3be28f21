"""A TCP proxy that makes a link bad: it delays bytes, limits their rate, holds them back or cuts the line.

For tests and bench.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.loopback import Loopback

T = TypeVar("T")

CHUNK = 64 << 10
IN_FLIGHT = 8 << 20
"""Bytes on their way in one direction; the sender is held up beyond, as by a TCP window."""

QUEUE = 0.05
"""Seconds of bytes that wait in front of a link of limited rate, as in a router's buffer."""


class Wire:
    """When bytes come out of one direction of a link. Free of I/O: time comes in, in seconds."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def put(self, size: int, now: float, rate: float | None) -> tuple[float, float]:
        """When the last of `size` bytes has gone into the wire, and when the next may be taken from the sender."""
        self._free_at = max(self._free_at, now) + (size / rate if rate else 0.0)
        return self._free_at, max(now, self._free_at - QUEUE)


class SlowLink(Loopback):
    """Listens on a free port of `listen` and forwards to `host:port`. Use as a context manager.

    `delay` is one way, in seconds; `rate` in bytes a second and direction, None: no limit; `hole` swallows everything
    without a word to either end. All may be set while bytes are on their way and hold for those that come later.
    """

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        delay: float = 0.0,
        rate: float | None = None,
        listen: str = "127.0.0.1",
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(listen, enter)
        self.delay = delay
        self.rate = rate
        self.hole = False
        self.carried = 0
        """Bytes taken from either end."""
        self._target = (host, port)

    def cut(self) -> None:
        """Break every connection; new ones are let through."""
        for task in list(self._connections):
            self._loop.call_soon_threadsafe(task.cancel)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        for end in (writer, onward_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.gather(self._forward(reader, onward_writer), self._forward(onward_reader, writer))
        finally:
            for end in (writer, onward_writer):
                end.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        wire = Wire()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        in_flight = asyncio.Semaphore(IN_FLIGHT // CHUNK)

        async def depart() -> None:
            while data := await _quietly(lambda: reader.read(CHUNK), b""):
                if self.hole:
                    continue
                self.carried += len(data)
                await in_flight.acquire()
                gone_at, next_at = wire.put(len(data), loop.time(), self.rate)
                on_the_way.put_nowait((gone_at + self.delay, data))
                await _sleep_until(next_at)
            on_the_way.put_nowait((loop.time() + self.delay, b""))

        async def arrive() -> None:
            while True:
                due, data = await on_the_way.get()
                await _sleep_until(due)
                if not data:
                    if writer.can_write_eof():
                        with contextlib.suppress(OSError):
                            writer.write_eof()
                    return
                writer.write(data)
                await _quietly(writer.drain, None)
                in_flight.release()

        await asyncio.gather(depart(), arrive())


async def _sleep_until(moment: float) -> None:
    ahead = moment - asyncio.get_running_loop().time()
    if ahead > 0:  # to sleep for nothing would still let all others go first
        await asyncio.sleep(ahead)


async def _quietly(act: Callable[[], Awaitable[T]], otherwise: T) -> T:
    """A link that breaks just ends."""
    try:
        return await act()
    except OSError:
        return otherwise
