"""Bounds what a peer sends, for volunteers who share their line with others."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeVar

from google.protobuf.message import Message

T = TypeVar("T", bound=Message)

BURST = 0.25
"""Seconds of its rate that a peer may send at once after it was silent."""


class Pacer:
    """One for all that a peer sends. `rate` is in bytes a second; None: no limit."""

    def __init__(self, rate: int | None = None) -> None:
        self._rate = rate
        self._free_at = 0.0
        self._last_in_line = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Pacer [{self._rate or 'no'} bytes a second]>"

    async def paced(self, messages: AsyncIterable[T]) -> AsyncIterator[T]:
        """The messages, each once there is room for it: for gRPC to write."""
        async for message in messages:
            if self._rate is not None:
                await asyncio.sleep(self.delay(message.ByteSize(), time.monotonic()))
            yield message

    async def paced_last(self, messages: AsyncIterable[T]) -> AsyncIterator[T]:
        """The same for what can wait: one message at a time, and none before what waits already."""
        async for message in messages:
            if self._rate is not None:
                async with self._last_in_line:
                    await asyncio.sleep(self.delay(0, time.monotonic()))
                    await asyncio.sleep(self.delay(message.ByteSize(), time.monotonic()))
            yield message

    def delay(self, size: int, now: float) -> float:
        """Seconds to wait before `size` bytes may go out, which are then counted as sent."""
        if self._rate is None:
            return 0.0
        start = max(self._free_at, now - BURST)
        self._free_at = start + size / self._rate
        return max(0.0, start - now)
