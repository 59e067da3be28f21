"""Tool calls of an answer, as OpenAI writes them."""

import json
import secrets
import string
from dataclasses import dataclass, field

from protos import room_pb2

_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 24


def new_id() -> str:
    """Unique in any conversation: 24 letters and digits at random."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))


def opening(start: room_pb2.ToolCallStart) -> dict[str, object]:
    """The entry that begins a call in a stream: id, type and name come here, whole, and never again."""
    function = {"name": start.name, "arguments": ""}
    return {"index": start.index, "id": new_id(), "type": "function", "function": function}


def continuation(more: room_pb2.ToolCallDelta) -> dict[str, object]:
    """An entry with more of a call's arguments."""
    return {"index": more.index, "function": {"arguments": more.arguments}}


@dataclass
class _Call:
    name: str
    id: str = field(default_factory=new_id)
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def to_json(self) -> dict[str, object]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class Calls:
    """Collects the calls of a whole answer. They come one after the other, as the model writes them."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}

    def start(self, start: room_pb2.ToolCallStart) -> None:
        self._calls[start.index] = _Call(start.name)

    def extend(self, more: room_pb2.ToolCallDelta) -> None:
        self._calls[more.index].pieces.append(more.arguments)

    def to_json(self, *, ended: bool) -> list[dict[str, object]]:
        """The complete calls. `ended`: the answer ends with its calls; otherwise the last one may be cut off.

        A cut one is left out and never mended: a client would run half a command.
        """
        calls = list(self._calls.values())
        if calls and not ended and not _is_object(calls[-1].arguments):
            calls.pop()
        return [call.to_json() for call in calls]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
