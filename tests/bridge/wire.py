"""HTTP/1.1 byte by byte, for what no client library would send."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = True
    """whether the body ended as its framing says"""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Wire:
    port: int
    reader: asyncio.StreamReader = field(init=False)
    writer: asyncio.StreamWriter = field(init=False)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):  # the other side may be quicker
            await self.writer.wait_closed()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def head(self, method: str, path: str, headers: dict[str, str] | None = None) -> bytes:
        lines = {"host": f"127.0.0.1:{self.port}", **(headers or {})}
        return (
            f"{method} {path} HTTP/1.1\r\n".encode()
            + b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in lines.items() if value is not None)
            + b"\r\n"
        )

    async def post(self, body: object, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await self.send(self.head("POST", "/v1/chat/completions", own) + data)

    async def read_head(self) -> Reply:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return Reply(int(lines[0].split()[1]), {name.lower(): value for name, value in pairs})

    async def read_chunk(self) -> bytes:
        """One chunk of a chunked body; b'' is the last one."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def read_reply(self) -> Reply:
        reply = await self.read_head()
        if reply.headers.get("transfer-encoding") == "chunked":
            try:
                while chunk := await self.read_chunk():
                    reply.body += chunk
            except asyncio.IncompleteReadError:
                reply.complete = False
        else:
            reply.body = await self.reader.readexactly(int(reply.headers.get("content-length", "0")))
        return reply

    async def closed(self) -> bool:
        """Wait until the other side closes; whether it did so without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True
