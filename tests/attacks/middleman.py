"""Somebody between a caller and a room: ends TLS with a certificate of his own, reads along, and passes bytes on."""

import asyncio
import ssl
import tempfile
from pathlib import Path

from protos.certificate import Certificate
from tests.proxy import _quietly


class Middleman:
    """Listens on a free port of loopback. Use as an async context manager.

    The first `honest` connections he passes on as they are, so that their caller sees the room's certificate.
    """

    def __init__(self, port: int, *, honest: int = 0) -> None:
        self.port = 0
        self.read = b""
        """What callers sent him in plain text."""
        self.connections = 0
        self._target = port
        self._honest = honest
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Middleman":
        self._contexts = _server_context(Certificate.made()), _client_context()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        serving, asking = self._contexts if self.connections > self._honest else (None, None)
        try:
            if serving is not None:
                await writer.start_tls(serving)
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._target, ssl=asking)
            await asyncio.gather(self._copy(reader, onward, serving is not None), self._copy(onward_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the caller hung up on him, or the test is over
        finally:
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listens: bool = False) -> None:
        while data := await _quietly(lambda: reader.read(1 << 16), b""):
            self.read += data if listens else b""
            writer.write(data)
        writer.transport.abort()


def _server_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pem"
        file.write_text(certificate.key_pem + certificate.pem)
        context.load_cert_chain(file)
    return context


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
