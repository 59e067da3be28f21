"""A byte tunnel through WebSockets, for networks that pass nothing but HTTP: each TCP connection becomes a WebSocket.

It ends at the room's own gRPC port and looks at none of the bytes. So flow control, frames and TLS stay gRPC's, and a
proxy on the way sees what anybody on the way of any TLS connection sees.
"""

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Request, Response

from protos.invite import Invite
from protos.proxies import OWN_HOST

Address = tuple[str, int]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

log = logging.getLogger("pooled.tunnel")

PIECE = 64 << 10
"""Bytes of a message at most."""

PING = 1.0
"""Seconds between pings, which both ends send: proxies cut connections on which nothing comes from one side, some of
them after three seconds."""

DIAL_PATIENCE = 10.0
LINGER = 2.0
"""Seconds that what came before the end may take to go out."""

MOST_TUNNELS = 1024
"""At one room: a peer takes three, a bridge one."""

# The library's own messages quote what goes through the tunnel, and every stranger's failed handshake.
_silent = logging.getLogger("pooled.tunnel.library")
_silent.setLevel(logging.CRITICAL + 1)


class TunnelFailed(Exception):
    """The WebSocket cannot be opened; the message says why in one sentence, and what to do."""


@asynccontextmanager
async def reached(invite: Invite) -> AsyncIterator[Invite]:
    """The invite with an address that gRPC can dial: its own, or this end of a tunnel where it names a WebSocket.

    Raises TunnelFailed.
    """
    if invite.path is None:
        yield invite
        return
    async with tunnelled(invite.url) as port:
        yield replace(invite, host=OWN_HOST, port=port, path=None, by_way_of=invite.url)


@asynccontextmanager
async def tunnelled(url: str) -> AsyncIterator[int]:
    """Listen on a loopback port whose connections come out at the far end of `url` (ws://... or wss://...).

    Gives the port. One WebSocket is opened first for trial; raises TunnelFailed. Later on a connection that finds no
    way is closed. Goes through the proxy that the environment names (https_proxy).
    """

    open_ones: set[asyncio.Task[None]] = set()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _join(await _dial(url), reader, writer)
        except TunnelFailed as error:
            log.info("no way through the tunnel", extra={"why": str(error)})
        finally:
            await _hang_up(writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(lead(reader, writer))
        open_ones.add(task)
        task.add_done_callback(open_ones.discard)

    await (await _dial(url)).close()
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


@asynccontextmanager
async def tunnel_end(
    listen: Address, target: Address, origins: dict[Address, str], proxies: Sequence[Network] = ()
) -> AsyncIterator[int]:
    """Lead every WebSocket that comes in at `listen` on to the TCP port `target`.

    `origins` tells whose connection it is, by this end of it: the WebSocket's address or, where that is one of
    `proxies`, whom the proxy names. Gives the port, which the system chooses for port 0. Raises OSError when it cannot
    listen there.
    """

    async def accept(websocket: ServerConnection) -> None:
        try:
            reader, writer = await asyncio.open_connection(*target)
        except OSError as error:
            log.warning("the tunnel leads nowhere", extra={"why": error.strerror})
            return
        end = writer.get_extra_info("sockname")[:2]
        origins[end] = _origin(websocket, proxies)
        try:
            await _join(websocket, reader, writer)
        finally:
            await _hang_up(writer)
            # What was said last may be looked at only now.
            asyncio.get_running_loop().call_later(LINGER, origins.pop, end, None)

    server = serve(
        accept,
        *listen,
        # A browser always names the page's origin: no web page gets in.
        origins=[None],
        process_request=_refuse_too_many,
        compression=None,
        server_header=None,
        open_timeout=DIAL_PATIENCE,
        close_timeout=1,
        ping_interval=PING,
        ping_timeout=None,
        max_size=PIECE,
        logger=_silent,
    )
    async with server as listening:
        yield next(iter(listening.sockets)).getsockname()[1]


def _origin(websocket: ServerConnection, proxies: Sequence[Network]) -> str:
    """Who is at the far end: the last one on the way that is no proxy of ours; what was written before him is his."""
    assert websocket.request is not None
    here = str(websocket.remote_address[0])
    before = ",".join(websocket.request.headers.get_all("X-Forwarded-For")).split(",")
    while before and _is_of(proxies, here):
        named = before.pop().strip()
        if _parsed(named) is None:
            break
        here = named
    return here


def _is_of(networks: Sequence[Network], host: str) -> bool:
    address = _parsed(host)
    return address is not None and any(address in network for network in networks)


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _refuse_too_many(websocket: ServerConnection, request: Request) -> Response | None:
    if len(websocket.server.connections) < MOST_TUNNELS:
        return None
    return websocket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")


async def _dial(url: str) -> ClientConnection:
    try:
        return await connect(
            url,
            compression=None,
            open_timeout=DIAL_PATIENCE,
            close_timeout=1,
            ping_interval=PING,
            # Whether the line is dead is gRPC's to find out: behind a full window a pong may come late.
            ping_timeout=None,
            max_size=PIECE,
            logger=_silent,
        )
    except InvalidStatus as error:
        raise TunnelFailed(
            f"{url} answered with status {error.response.status_code} instead of a WebSocket; check the path, and that "
            "the proxy there passes the headers Upgrade and Connection on"
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise TunnelFailed(
            f"the certificate at {url} is not trusted here ({error.verify_message}); if it should be, name its "
            "authority's file in SSL_CERT_FILE"
        ) from error
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        raise TunnelFailed(f"nobody answers at {url} with a WebSocket ({type(error).__name__})") from error


async def _join(websocket: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes both ways until one side has ended and what came from it has gone out."""
    outward, inward = (
        asyncio.create_task(_outward(reader, websocket)),
        asyncio.create_task(_inward(websocket, writer)),
    )
    closed = asyncio.create_task(websocket.wait_closed())
    ways = {outward, inward, closed}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if closed.done():  # a reader that has stopped reading is waited for no longer
            await asyncio.wait({inward}, timeout=LINGER)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await websocket.close()


async def _outward(reader: asyncio.StreamReader, websocket: Connection) -> None:
    try:
        while data := await reader.read(PIECE):
            await websocket.send(data)
    except (OSError, ConnectionClosed) as error:
        _ended(error)


async def _inward(websocket: Connection, writer: asyncio.StreamWriter) -> None:
    try:
        async for data in websocket:
            if isinstance(data, str):  # none of ours
                return
            writer.write(data)
            await writer.drain()
    except (OSError, ConnectionClosed) as error:
        _ended(error)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(LINGER):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError as error:
        _ended(error)


def _ended(error: Exception) -> None:
    """However a connection breaks, gRPC notices at its own end."""
    log.debug("a tunnelled connection broke", extra={"why": type(error).__name__})
