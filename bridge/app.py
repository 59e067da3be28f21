"""The bridge: an HTTP server on this machine in front of one room."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bridge.chat_completions import ChatCompletions
from bridge.client import RoomClient
from bridge.config import BridgeConfig
from bridge.connection import HttpConfig
from bridge.errors import MethodNotAllowed, PortTaken, UnknownUrl
from bridge.exchange import Exchanges
from bridge.front import Front, error_response, request_id_of
from bridge.guard import Guard
from bridge.health import Health
from bridge.models import Models
from protos.invite import Invite

log = logging.getLogger("pooled.bridge")

_CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
"""Users forget the /v1."""

_SEND_BUFFER = 256 << 10
"""Bytes of a stream the system holds for a slow reader. Left to itself it grows to several MiB."""

_STOP_WITHIN = 2
"""Seconds for answers to be ended and connections to be closed when the bridge stops."""

_DATE_INTERVAL = 1.0
"""Seconds between two looks at the clock for the Date header."""


async def run_bridge(
    config: BridgeConfig,
    invite: Invite,
    *,
    ready: Callable[[str], None] | None = None,
    unready: Callable[[str], None] | None = None,
    answering: Callable[[], None] | None = None,
) -> None:
    """Serve `invite`'s room on config.host:config.port until this task is cancelled; answers then end with an error.

    `ready` is called with the base URL for clients once they can connect, and then `unready` with the room's reason
    where it could not answer them yet; `answering` once it can. A room that is lost later is waited for, while requests
    get 503. Signals are the caller's business.

    Raises PortTaken, RoomRefused when the room does not accept the invite, RoomUnreachable when nobody answers there.
    """
    with listening(config) as listener, contextlib.ExitStack() as stack:
        port = listener.getsockname()[1]
        async with await RoomClient.connect(invite, version=config.version, timeout=config.timeouts.connect) as room:
            exchanges = Exchanges(room, config.timeouts)
            app = build_app(config, room, exchanges, port)

            def started() -> None:
                if ready is not None:
                    ready(_base_url(config.host, port))
                if unready is not None and not room.state.ready:
                    unready(room.state.why)
                if answering is not None:
                    stack.callback(asyncio.create_task(_tell_when_it_answers(room, answering)).cancel)

            await _serve(app, config, exchanges, listener, started)


async def _tell_when_it_answers(room: RoomClient, answering: Callable[[], None]) -> None:
    await room.until_it_answers()
    answering()


def build_app(config: BridgeConfig, room: RoomClient, exchanges: Exchanges, port: int) -> Starlette:
    """The ASGI application. `port` is the one it will be reached on."""
    guard = Guard(config, port)
    chat = ChatCompletions(config, room, exchanges)
    models = Models(room)
    health = Health(room, exchanges, guard)
    routes = [
        *(Route(path + slash, chat, methods=["POST"]) for path in _CHAT_PATHS for slash in ("", "/")),
        *(Route(f"{prefix}/models{slash}", models.list) for prefix in ("/v1", "") for slash in ("", "/")),
        *(Route(f"{prefix}/models/{{id:path}}", models.retrieve) for prefix in ("/v1", "")),
        Route("/health", health.health),
        Route("/ready", health.ready),
        Route("/", health.root),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Front, guard)],
        exception_handlers={404: _unknown_url, 405: _method_not_allowed},
    )
    app.router.redirect_slashes = False
    return app


async def _unknown_url(request: Request, error: Exception) -> Response:
    exists = "POST /v1/chat/completions, GET /v1/models, /v1/models/{id}, /health, /ready and /"
    return error_response(
        UnknownUrl(f"There is nothing at this URL; there are {exists}."), request_id_of(request.scope)
    )


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = "POST" if "POST" in (error.headers or {}).get("Allow", "") else "GET, HEAD"
    return error_response(MethodNotAllowed(allowed), request_id_of(request.scope))


def _base_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


@contextlib.contextmanager
def listening(config: BridgeConfig) -> Iterator[socket.socket]:
    """The socket that a bridge is to listen with. Raises PortTaken."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it every small answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if os.name == "posix":  # elsewhere the option lets two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((config.host, config.port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "another program listens there" if taken else os.strerror(error.errno or 0).lower()
            raise PortTaken(f"cannot listen on {config.host}:{config.port}: {reason}; choose another --port") from error
        yield listener


class _Server(uvicorn.Server):
    """uvicorn's server, with signals left to the caller and a word when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Like uvicorn's, which wakes ten times a second to look whether it is to end, and for the Date header."""
        while not await self.on_tick(0):
            with anyio.move_on_after(_DATE_INTERVAL):
                await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    app: Starlette,
    config: BridgeConfig,
    exchanges: Exchanges,
    listener: socket.socket,
    on_started: Callable[[], None],
) -> None:
    server = _Server(HttpConfig(app, config.timeouts, _STOP_WITHIN), on_started)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        exchanges.stop()
        server.end()
        await serving
