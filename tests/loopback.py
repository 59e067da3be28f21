"""A server on a free port, in a thread of its own: on loopback, unless it is told another address."""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


class Loopback(ABC):
    """Listens while it is a context manager's. Each connection is a task, which is cancelled at the end.

    `enter` is called first in its thread: it may take it to a network namespace, say.
    """

    def __init__(self, listen: str = "127.0.0.1", enter: Callable[[], None] = lambda: None) -> None:
        self.port = 0
        self._listen = listen
        self._enter = enter
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    @abstractmethod
    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""

    def _run(self) -> None:
        self._enter()
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, self._listen, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # cut, which ends this task and is nobody's error
                await self._connect(reader, writer)
        finally:
            self._connections.discard(task)
