"""What surrounds every request: its id, the door, the log line, and the shape of every failure."""

import logging
import re
import secrets
import time
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.errors import ApiError, ClientGone, MalformedHttp, as_api_error
from bridge.guard import Guard
from bridge.reply import dump

log = logging.getLogger("pooled.bridge")

_CLIENT_CLOSED_REQUEST = 499
"""In the log only: nobody is left to read a status."""

_ABSOLUTE = re.compile(rb"http://([^/]+)(/.*)?", re.IGNORECASE)

REFUSED = "pooled.refused"
"""Key in a scope: the status with which the connection has answered in the application's place."""

FAILED = "pooled.failed"
"""Key in a scope: the code of the error that the request ended with, after its first byte perhaps."""


def request_id_of(scope: Scope) -> str:
    """The id that the response's x-request-id, the log line and the room's log share. Made when it is first asked for:
    the connection may have to answer before the application has seen the request.
    """
    value: str = scope.setdefault("request_id", f"req-{secrets.token_hex(8)}")
    return value


def error_response(error: ApiError, request_id: str) -> Response:
    return Response(dump(error.payload(request_id)), error.status, headers=error.headers, media_type="application/json")


def log_request(line: str, status: int | None, ms: int, request_id: str, error: str | None = None) -> None:
    """The access log's one line for a request. `line`: method and path; query and body do not belong in a log."""
    ended = {} if error is None else {"error": error}
    log.info(line, extra={"status": status, **ended, "ms": ms, "request_id": request_id})


class Front:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _take_origin_form(scope)
        visit = _Visit(scope, receive, send, self._guard)
        try:
            await self._answer(visit)
        finally:
            visit.log()

    async def _answer(self, visit: "_Visit") -> None:
        scope = visit.scope
        try:
            if visit.misframed:
                raise MalformedHttp("The request is not valid HTTP/1.1.")
            self._guard.check_door(visit.headers)
            app: ASGIApp | None = self._guard.preflight(scope["method"], visit.headers)
            if app is None:
                self._guard.check_token(visit.headers, scope["path"])
                app = self._app
            await app(scope, visit.receive, visit.send)
        except ClientGone:
            return
        except Exception as error:  # The border: whatever it is, the caller gets OpenAI's error shape.
            failure = as_api_error(error, visit.id)
            scope[FAILED] = failure.code
            if visit.status is None:
                await error_response(failure, visit.id)(scope, visit.receive, visit.send)


def _take_origin_form(scope: Scope) -> None:
    """Have a request whose target is a whole URL look like any other: its authority is the Host (RFC 9112, 3.2.2)."""
    whole = _ABSOLUTE.fullmatch(scope["raw_path"])
    if whole is None:
        return
    authority, path = whole.groups(default=b"/")
    scope["raw_path"], scope["path"] = path, unquote(path.decode("ascii"))
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [*others, (b"host", authority)]


class _Visit:
    """One request on its way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, guard: Guard) -> None:
        self.id = request_id_of(scope)
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.status: int | None = None
        self.misframed = scope["http_version"] not in ("1.0", "1.1") or {"content-length", "transfer-encoding"} <= set(
            self.headers.keys()
        )
        """Where the request ends depends on who reads it: what follows may be a part of it or another one."""
        self._receive = receive
        self._send = send
        self._complete = False
        self._asked_for_body = False
        self._since = time.perf_counter()
        self._added = {"x-request-id": self.id, **guard.cors_headers(self.headers)}

    async def receive(self) -> Message:
        self._asked_for_body = True
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = dict(self._added)
            # A caller that was never told to go on with its body may or may not send it.
            if self.misframed or ("expect" in self.headers and not self._asked_for_body):
                added["connection"] = "close"
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in added.items()]
            message = {**message, "headers": [*message.get("headers", []), *encoded]}
        elif not message.get("more_body", False):
            self._complete = True
        await self._send(message)

    def log(self) -> None:
        status = self.status if self._complete else self.scope.get(REFUSED, _CLIENT_CLOSED_REQUEST)
        path = self.scope["raw_path"].decode("ascii", "replace")
        took = round((time.perf_counter() - self._since) * 1000)
        log_request(f"{self.scope['method']} {path}", status, took, self.id, self.scope.get(FAILED))
