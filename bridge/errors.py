"""Everything the bridge can fail with. Beside each class stands what an HTTP caller gets for it.

BridgeError
├── BadConfig                          start-up: a setting makes no sense
├── PortTaken                          start-up: the port cannot be bound
├── ClientGone                         the caller hung up; nobody is left to tell
└── ApiError
    ├── InvalidRequest            400
    │   ├── MalformedHttp         400
    │   └── ContextTooLong        400  context_length_exceeded
    ├── InvalidApiKey             401
    ├── ForbiddenHost             403
    ├── ForbiddenOrigin           403
    ├── UnknownUrl                404
    ├── ModelNotFound             404
    ├── MethodNotAllowed          405
    ├── RequestTimeout            408
    ├── RequestTooLarge           413
    ├── UnsupportedMediaType      415
    ├── HeaderTooLarge            431
    ├── QueueFull                 429
    ├── TooManyConnections        503
    ├── InternalError             500
    ├── PipelineLost              502
    ├── RoomUnavailable           503
    │   ├── RoomUnreachable       503  nobody answers at the invite's address
    │   └── RoomRefused           503  the room turned this bridge away
    ├── NoPipeline                503
    ├── Loading                   503
    ├── ShuttingDown              503
    ├── CancelledByRoom           503
    ├── RoomTimeout               504
    └── QueueTimeout              504
"""

import logging
import traceback
from typing import ClassVar

log = logging.getLogger("pooled.bridge")


class BridgeError(Exception):
    """Base of this tree. Its text is one sentence for people."""


class BadConfig(BridgeError):
    """A setting of the bridge makes no sense; the sentence names it and what is allowed."""


class PortTaken(BridgeError):
    """The bridge cannot listen on the port it was given."""


class ClientGone(BridgeError):
    """The HTTP caller closed the connection before it had its answer."""


class ApiError(BridgeError):
    """What an HTTP caller is told, in OpenAI's error shape."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: str = "internal_error"
    retry_after: int | None = None
    """Seconds after which trying again makes sense."""
    final: ClassVar[bool] = False
    """The same request fails again: tells SDKs, which try three times, not to."""
    extra_headers: ClassVar[dict[str, str]] = {}

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code
        if retry_after is not None:
            self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = dict(self.extra_headers)
        if self.final:
            headers["x-should-retry"] = "false"
        elif self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers

    def payload(self, request_id: str) -> dict[str, object]:
        """OpenAI's error object. Whoever reports a 5xx finds the request's id at the sentence's end."""
        message = f"{str(self).rstrip('.')}; request id: {request_id}" if self.status >= 500 else str(self)
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}


class InvalidRequest(ApiError):
    status = 400
    kind = "invalid_request_error"
    code = "invalid_value"
    final = True


class MalformedHttp(InvalidRequest):
    code = "malformed_http"


class ContextTooLong(InvalidRequest):
    """Agents compact their history on this code."""

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param)


class InvalidApiKey(ApiError):
    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"
    extra_headers: ClassVar[dict[str, str]] = {"www-authenticate": "Bearer"}


class ForbiddenHost(ApiError):
    status = 403
    kind = "invalid_request_error"
    code = "forbidden_host"


class ForbiddenOrigin(ApiError):
    status = 403
    kind = "invalid_request_error"
    code = "forbidden_origin"


class UnknownUrl(ApiError):
    status = 404
    kind = "invalid_request_error"
    code = "unknown_url"


class ModelNotFound(ApiError):
    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class MethodNotAllowed(ApiError):
    status = 405
    kind = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This URL answers {allowed} only.")
        self._allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        return {"allow": self._allowed}


class RequestTimeout(ApiError):
    status = 408
    kind = "invalid_request_error"
    code = "request_timeout"
    # What is still to come would be read as the next request.
    extra_headers: ClassVar[dict[str, str]] = {"connection": "close"}


class RequestTooLarge(ApiError):
    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMediaType(ApiError):
    status = 415
    kind = "invalid_request_error"
    code = "unsupported_media_type"


class HeaderTooLarge(ApiError):
    status = 431
    kind = "invalid_request_error"
    code = "header_too_large"


class QueueFull(ApiError):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"
    retry_after = 5


class TooManyConnections(ApiError):
    status = 503
    code = "too_many_connections"
    retry_after = 5
    extra_headers: ClassVar[dict[str, str]] = {"connection": "close"}


class InternalError(ApiError):
    """A bug of ours, in the bridge or in the room."""


class PipelineLost(ApiError):
    status = 502
    code = "pipeline_lost"
    retry_after = 1


class RoomUnavailable(ApiError):
    status = 503
    code = "room_unavailable"
    retry_after = 5


class RoomUnreachable(RoomUnavailable):
    """Nobody answers at the invite's address, or the connection broke before an answer began."""


class RoomRefused(RoomUnavailable):
    """Wrong key, unknown code, another protocol version, or the host removed this client."""

    final = True


class NoPipeline(ApiError):
    status = 503
    code = "no_pipeline"
    retry_after = 5


class Loading(ApiError):
    status = 503
    code = "loading"
    retry_after = 5


class ShuttingDown(ApiError):
    status = 503
    code = "shutting_down"
    retry_after = 5


class CancelledByRoom(ApiError):
    status = 503
    code = "cancelled_by_room"
    final = True


class RoomTimeout(ApiError):
    status = 504
    code = "room_timeout"


class QueueTimeout(ApiError):
    status = 504
    code = "queue_timeout"


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """`error` as callers may see it. What nobody expected is logged, without its text: it may quote a prompt."""
    leaf = error
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    if isinstance(leaf, ApiError):
        return leaf
    frames = traceback.extract_tb(leaf.__traceback__)
    where = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    log.error("%s in request %s at %s", type(leaf).__name__, request_id, where)
    return InternalError("The bridge failed while it worked on this request.")
