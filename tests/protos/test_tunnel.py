import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_network

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from protos import tunnel
from protos.tunnel import PIECE, TunnelFailed, tunnel_end, tunnelled

pytestmark = pytest.mark.anyio

ANYWHERE = ("127.0.0.1", 0)
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE):
        writer.write(data)
        await writer.drain()


async def greet_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"all of this\n" * 10_000)


@asynccontextmanager
async def listening(handle: Handle) -> AsyncIterator[int]:
    """The port of a TCP server, which is left once all its connections have ended."""
    connections: list[asyncio.Task[None]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.create_task(run(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.gather(*connections)


@asynccontextmanager
async def through(handle: Handle) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a TCP server by way of a tunnel."""
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(listening(handle))
        port = await stack.enter_async_context(tunnel_end(ANYWHERE, ("127.0.0.1", target), {}))
        near = await stack.enter_async_context(tunnelled(f"ws://127.0.0.1:{port}/any/path"))
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        stack.callback(writer.transport.abort)
        yield reader, writer


async def test_bytes_go_both_ways_unchanged() -> None:
    sent = os.urandom(20 * PIECE + 7)
    async with through(echo) as (reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"


async def test_a_sender_waits_for_a_reader_that_is_slow() -> None:
    """What is on its way is bounded: all buffers are full long before these 64 MB are taken."""
    stop = asyncio.Event()

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()
        writer.transport.abort()

    async with through(never_read) as (_, writer):
        taken = 0

        async def send() -> None:
            nonlocal taken
            while taken < 64 << 20:
                writer.write(bytes(1 << 20))
                await writer.drain()
                taken += 1 << 20

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send(), 0.5)
        assert taken < 64 << 20
        stop.set()


async def test_what_was_said_before_the_end_arrives() -> None:
    async with through(greet_and_hang_up) as (reader, _):
        assert await reader.read() == b"all of this\n" * 10_000


async def test_one_end_hears_that_the_other_has_gone() -> None:
    gone = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()

    async with through(listen) as (_, writer):
        writer.close()
        await asyncio.wait_for(gone.wait(), 10)


async def test_pings_keep_a_silent_connection_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """From either end: a proxy times each direction on its own."""
    monkeypatch.setattr(tunnel, "PING", 0.05)
    heard: dict[str, int] = {"client": 0, "room": 0}

    async def relay(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        room, to_room = await asyncio.open_connection("127.0.0.1", room_port)

        async def forward(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(PIECE):
                heard[name] += 1
                writer.write(data)
            writer.close()

        await asyncio.gather(forward("client", client, to_room), forward("room", room, to_client))

    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(listening(echo))
        room_port = await stack.enter_async_context(tunnel_end(ANYWHERE, ("127.0.0.1", target), {}))
        between = await stack.enter_async_context(listening(relay))
        near = await stack.enter_async_context(tunnelled(f"ws://127.0.0.1:{between}/"))
        _, writer = await asyncio.open_connection("127.0.0.1", near)
        await asyncio.sleep(0.3)  # what is said at the beginning is no ping
        before = dict(heard)
        async with asyncio.timeout(60):
            while not all(heard[name] > before[name] + 3 for name in heard):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.close()


async def test_nobody_is_there() -> None:
    async with listening(echo) as port:
        pass
    with pytest.raises(TunnelFailed, match="nobody answers"):
        async with tunnelled(f"ws://127.0.0.1:{port}/"):
            pass


async def test_what_answers_is_no_tunnel() -> None:
    async def not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    async with listening(not_found) as port:
        with pytest.raises(TunnelFailed, match="status 404"):
            async with tunnelled(f"ws://127.0.0.1:{port}/"):
                pass


@pytest.mark.parametrize(
    ("trusted", "forwarded", "origin"),
    [
        ([], ["203.0.113.5"], "127.0.0.1"),
        (["127.0.0.1"], ["203.0.113.5"], "203.0.113.5"),
        (["127.0.0.1"], ["198.51.100.1, 203.0.113.5"], "203.0.113.5"),
        (["127.0.0.1", "203.0.113.0/24"], ["198.51.100.1", "203.0.113.5"], "198.51.100.1"),
        (["127.0.0.1", "203.0.113.0/24"], ["203.0.113.5"], "203.0.113.5"),
        (["127.0.0.1"], ["198.51.100.1, unknown"], "127.0.0.1"),
        (["127.0.0.1"], [], "127.0.0.1"),
        (["127.0.0.1"], ["2001:db8::7"], "2001:db8::7"),
    ],
)
async def test_whose_connection_it_is(trusted: list[str], forwarded: list[str], origin: str) -> None:
    origins: dict[tuple[str, int], str] = {}
    ends: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.put_nowait(writer.get_extra_info("peername"))
        await reader.read()

    headers = [("X-Forwarded-For", each) for each in forwarded]
    proxies = [ip_network(each) for each in trusted]
    async with (
        listening(note) as target,
        tunnel_end(ANYWHERE, ("127.0.0.1", target), origins, proxies) as port,
        connect(f"ws://127.0.0.1:{port}/", additional_headers=headers),
    ):
        assert origins[await asyncio.wait_for(ends.get(), 10)] == origin


async def test_web_pages_are_turned_away() -> None:
    async with listening(echo) as target, tunnel_end(ANYWHERE, ("127.0.0.1", target), {}) as port:
        with pytest.raises(InvalidStatus, match="403"):
            await connect(f"ws://127.0.0.1:{port}/", origin="https://page.example")


async def test_connections_beyond_the_limit_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "MOST_TUNNELS", 2)
    async with listening(echo) as target, tunnel_end(ANYWHERE, ("127.0.0.1", target), {}) as port:
        url = f"ws://127.0.0.1:{port}/"
        async with connect(url), connect(url):
            with pytest.raises(InvalidStatus, match="503"):
                await connect(url)


@pytest.mark.parametrize("message", ["text", bytes(PIECE + 1)])
async def test_messages_that_are_none_of_ours_end_the_connection(message: str | bytes) -> None:
    async with (
        listening(echo) as target,
        tunnel_end(ANYWHERE, ("127.0.0.1", target), {}) as port,
        connect(f"ws://127.0.0.1:{port}/", compression=None) as websocket,
    ):
        await websocket.send(message)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(websocket.recv(), 10)


async def test_a_connection_that_finds_no_way_is_closed() -> None:
    """The far end went away after the trial."""
    async with AsyncExitStack() as stack:
        async with serve(lambda websocket: websocket.wait_closed(), "127.0.0.1", 0) as end:
            port = next(iter(end.sockets)).getsockname()[1]
            near = await stack.enter_async_context(tunnelled(f"ws://127.0.0.1:{port}/"))
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
