"""GET /health, /ready and /: how the bridge and its room are. Answered from memory, so also while the room hangs."""

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from bridge.client import RoomClient
from bridge.errors import ApiError, Loading, NoPipeline, RoomUnavailable, ShuttingDown
from bridge.exchange import Exchanges
from bridge.guard import Guard

_WHY = {kind.code: kind for kind in (Loading, NoPipeline, ShuttingDown)}

_WELCOME = """Pooled's bridge: OpenAI's Chat Completions, answered by a room of pooled GPUs.

POST /v1/chat/completions   ask
GET  /v1/models             the room's model
GET  /health                how the bridge and its room are
GET  /ready                 200 when a request would be served now
"""


class Health:
    def __init__(self, room: RoomClient, exchanges: Exchanges, guard: Guard) -> None:
        self._room = room
        self._exchanges = exchanges
        self._guard = guard

    async def health(self, request: Request) -> Response:
        return JSONResponse({"ok": True, **(self._details() if self._guard.knows(request.headers) else {})})

    async def ready(self, request: Request) -> Response:
        failure = self._unready()
        if failure is None:
            return JSONResponse({"ok": True})
        raise failure if self._guard.knows(request.headers) else RoomUnavailable("Not ready.")

    async def root(self, request: Request) -> Response:
        return PlainTextResponse(_WELCOME)

    def _details(self) -> dict[str, object]:
        state = self._room.state
        details: dict[str, object] = {
            "room": state.code or None,
            "connected": self._room.connected,
            "ready": self._room.ready,
            "model": state.model or None,
            "ctx": state.ctx or None,
            "queue": len(self._exchanges),
            "served": self._exchanges.served,
        }
        if self._room.refused is not None:
            details["closed"] = str(self._room.refused)
        return details

    def _unready(self) -> ApiError | None:
        try:
            self._room.check()
        except RoomUnavailable as error:
            return error
        if self._room.ready:
            return None
        state = self._room.state
        return _WHY.get(state.why_code, NoPipeline)(state.why or "The room is not ready.")
