"""HTTP/1.1 connections: uvicorn's, less forgiving where a caller could hold one for ever, and more where an answer
would be lost.

As it comes, uvicorn waits without end for the rest of a request's header, for an unwanted body and for a reader that
has stopped reading; answers malformed HTTP in plain text; and closes a connection with bytes still unread, which
resets it, so that the caller may never see the answer.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

if sys.platform == "linux":
    import fcntl
    import termios

import h11
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from bridge.config import Timeouts
from bridge.errors import ApiError, HeaderTooLarge, MalformedHttp, RequestTimeout, TooManyConnections
from bridge.front import REFUSED, log_request, request_id_of
from bridge.reply import dump

MAX_CONNECTIONS = 512
"""At once. A process may have about 1,000 files open on many systems; with none left nobody gets in at all."""

MAX_HEADER = 64 << 10
"""Bytes of a request's header, and of requests sent ahead while one is answered."""

_UNREAD = "- -"
"""Method and path, in the log, of a request that could not be read."""

_HALF_CLOSED = 0.5
"""Seconds that an answer may still take once the caller has closed its side of the connection: nearly all of those that
do have left, and the others had nothing more to say."""

_STALL_CHECKS = 12
"""How often a slow reader is looked at within its time."""


class HttpConfig(uvicorn.Config):
    """uvicorn's settings, with our time-outs for the connections."""

    def __init__(self, app: Any, timeouts: Timeouts, stop_within: int) -> None:
        super().__init__(
            app,
            interface="asgi3",
            http=BridgeConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the application logs its own requests, and never what is in them
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, round(timeouts.idle)),
            timeout_graceful_shutdown=stop_within,
            h11_max_incomplete_event_size=MAX_HEADER,
        )
        self.timeouts = timeouts


class BridgeConnection(H11Protocol):
    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, HttpConfig)
        self._timeouts = config.timeouts
        self._waiting_for = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ events of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._raw = transport
        self.transport = _PatientTransport(transport, self._must_linger, self._timeouts)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(TooManyConnections(f"There are {MAX_CONNECTIONS} connections already; close some."))
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # lingering: only read so that the connection is not reset
        if self.conn.their_state in (h11.IDLE, h11.DONE) and not self.conn.trailing_data[0]:
            # Some callers send an empty line after a body, which h11 would take for a request (RFC 9112, 2.2).
            data = data.removeprefix(b"\r\n")
            if not data:
                return
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) < MAX_HEADER:
            # uvicorn stops reading when a caller sends its next request early; then it would not see the caller leave.
            self.flow.resume_reading()
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to keep our side open."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering or self.conn.their_state is not h11.DONE:
            return False
        self.cycle.keep_alive = False
        self._set_deadline("departure", _HALF_CLOSED)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline("", 0)
        self._end_stall()
        super().connection_lost(exc)
        if isinstance(self.transport, _PatientTransport):
            self.transport.lost()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    # ------------------------------------------------------------ callers that keep us waiting

    def _watch(self) -> None:
        """Set the deadline that fits what the caller owes us."""
        state = self.conn.their_state
        if self.transport.is_closing():
            self._set_deadline("", 0)
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            self._set_deadline("header", self._timeouts.header)
        elif state is h11.IDLE:
            # uvicorn's own time-out misses new connections, and those whose unwanted body came after the answer.
            self._set_deadline("request", self._timeouts.idle)
        elif state is h11.SEND_BODY and self.cycle.response_complete:
            self._set_deadline("unwanted body", self._timeouts.body)
        else:
            self._set_deadline("", 0)

    def _set_deadline(self, waiting_for: str, seconds: float) -> None:
        if waiting_for == self._waiting_for:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._waiting_for = waiting_for
        self._deadline = self.loop.call_later(seconds, self._overdue) if waiting_for else None

    def _overdue(self) -> None:
        match self._waiting_for:
            case "header":
                seconds = f"{self._timeouts.header:g}"
                self._refuse(RequestTimeout(f"The request's header was not complete after {seconds} seconds."))
            case "request":
                self.transport.close()
            case _:
                self._raw.abort()

    # ------------------------------------------------------------ malformed requests

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()  # uvicorn calls this where it caught h11's
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == HeaderTooLarge.status:
            self._refuse(HeaderTooLarge(f"The request's header is larger than {MAX_HEADER} bytes."))
        else:
            self._refuse(MalformedHttp("The request is not valid HTTP/1.1."))

    def _refuse(self, error: ApiError) -> None:
        """Answer for the application, which has not seen this request, or not all of it, and close."""
        begun = self.cycle is not None and not self.cycle.response_complete
        scope = cast(Scope, self.cycle.scope) if begun else {}
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write_error(error, request_id_of(scope))
            scope[REFUSED] = error.status
            if not begun:  # otherwise the application logs it
                log_request(_UNREAD, error.status, 0, request_id_of(scope))
        if begun:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _write_error(self, error: ApiError, request_id: str) -> None:
        body = dump(error.payload(request_id))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": request_id,
            **error.headers,
            "connection": "close",
        }
        response = h11.Response(status_code=error.status, headers=list(headers.items()))
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _must_linger(self) -> bool:
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    # ------------------------------------------------------------ slow readers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_stall(_untaken(self._raw), self.loop.time())

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _check_stall(self, size: int, since: float) -> None:
        """`size`: bytes the reader had still to take at the time `since`."""
        now, left = self.loop.time(), _untaken(self._raw)
        if left != size:
            size, since = left, now
        if now - since >= self._timeouts.slow_reader:
            self._raw.abort()
            return
        pause = self._timeouts.slow_reader / _STALL_CHECKS
        self._stall = self.loop.call_later(pause, self._check_stall, size, since)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _untaken(transport: asyncio.Transport) -> int:
    """Bytes the reader has still to take. Those the system holds count where it tells them.

    Without these a reader that takes little would look like one that takes nothing: the system asks for more only when
    a good part of its buffer is free.
    """
    untaken = transport.get_write_buffer_size()
    if sys.platform == "linux":
        held = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        untaken += int.from_bytes(held, sys.byteorder)
    return untaken


class _PatientTransport(asyncio.Transport):
    """A transport whose `close` lets the caller read the answer first.

    Closing with unread bytes resets the connection and destroys what the caller has not read yet. So, while the caller
    is still sending, only our side is closed and what comes is dropped; and whatever happens, the socket is gone in the
    end.
    """

    def __init__(self, raw: asyncio.Transport, must_linger: Callable[[], bool], timeouts: Timeouts) -> None:
        super().__init__()
        self._raw = raw
        self._must_linger = must_linger
        self._timeouts = timeouts
        self._closing = False
        self._abort: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        lingering = self._must_linger()
        if lingering:
            self._raw.write_eof()
            self._raw.resume_reading()
        else:
            self._raw.close()
        patience = self._timeouts.body if lingering else self._timeouts.slow_reader
        self._abort = asyncio.get_running_loop().call_later(patience, self._raw.abort)

    def lost(self) -> None:
        if self._abort is not None:
            self._abort.cancel()

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self._raw.write(data)

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def abort(self) -> None:
        self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)
