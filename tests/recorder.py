"""A proxy that writes down all that goes through it: one that speaks CONNECT, or one that leads to a port."""

import asyncio
from dataclasses import dataclass, field

from tests.loopback import Loopback

CHUNK = 64 << 10


@dataclass
class Recorded:
    """One connection's bytes, without the request for CONNECT."""

    sent: bytearray = field(default_factory=bytearray)
    """By who dialled."""
    answered: bytearray = field(default_factory=bytearray)


class Recorder(Loopback):
    """Listens on a free loopback port. Use as a context manager.

    With `target` it leads to that port of loopback, else to where CONNECT says; `heads` are the requests for that.
    """

    def __init__(self, target: int | None = None) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.connections: list[Recorded] = []
        self._target = target

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorded = Recorded()
        self.connections.append(recorded)
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*await self._where(reader))
        except (OSError, EOFError):
            writer.close()
            return
        if self._target is None:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(
                self._forward(reader, onward_writer, recorded.sent),
                self._forward(onward_reader, writer, recorded.answered),
            )
        finally:
            for end in (writer, onward_writer):
                end.transport.abort()

    async def _where(self, reader: asyncio.StreamReader) -> tuple[str, int]:
        if self._target is not None:
            return "127.0.0.1", self._target
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        host, _, port = head.split()[1].rpartition(":")
        return host.strip("[]"), int(port)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
        try:
            while data := await reader.read(CHUNK):
                record += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one end has gone, which the other is about to be told
        writer.close()
