"""GET /v1/models and /v1/models/{id}: the one model of the room."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bridge.client import RoomClient
from bridge.errors import ModelNotFound

ALIAS = "pooled"
"""Names the room's model whatever it is."""


class Models:
    def __init__(self, room: RoomClient) -> None:
        self._room = room

    async def list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()] if self._room.ready else []})

    async def retrieve(self, request: Request) -> Response:
        if not self._room.ready:
            raise ModelNotFound("The room's model is not ready yet.")
        name = request.path_params["id"].removesuffix("/")
        if name not in (self._room.state.model, ALIAS):
            raise ModelNotFound(f"There is no such model; the room's one is {self._room.state.model}.")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, object]:
        state = self._room.state
        return {
            "id": state.model,
            "object": "model",
            "created": state.created,
            "owned_by": "pooled",
            "max_model_len": state.ctx,
        }
