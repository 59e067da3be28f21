"""What waits to be written to a stream: filled from plain code, drained by the one task that owns the stream."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """An ordered buffer between a planner that never awaits and a writer that does.

    One event loop, one consumer. `put` after `close` is ignored: the stream's end may race with a last message.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake = asyncio.Event()
        self._closed = self._patient = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def last(self) -> T | None:
        """The newest item nobody has taken yet."""
        return self._items[-1] if self._items else None

    def put(self, item: T) -> None:
        if not self._closed:
            self._items.append(item)
            self._wake.set()

    def replace_last(self, item: T) -> None:
        """Put `item` in place of the newest one, which it makes out of date."""
        self._items[-1] = item

    def close(self, error: Exception | None = None) -> None:
        """End the stream once what is in it has been taken; `error` is then raised at the consumer."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake.set()

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            while self._items:
                yield self._items.popleft()
            if self._closed:
                break
            self._wake.clear()
            await self._wake.wait()
            if self._patient:
                await asyncio.sleep(0)
        if self._error is not None:
            raise self._error

    def patiently(self) -> "Outbox[T]":
        """To read from it so that all who are woken in the same moment go first: what they write is waited for more."""
        self._patient = True
        return self
