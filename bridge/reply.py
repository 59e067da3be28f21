"""An answer as OpenAI writes it: the parts both ways of writing share, and the whole answer as one JSON object.

`bridge.sse` writes the same events as a stream.
"""

import json
import secrets
import time
from dataclasses import dataclass, field

from bridge.calls import Calls
from bridge.errors import InternalError
from protos import room_pb2

_FINISH_REASONS = {
    room_pb2.FINISH_REASON_STOP: "stop",
    room_pb2.FINISH_REASON_LENGTH: "length",
    room_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True)
class Head:
    """What stays the same over one answer."""

    model: str
    thinking: bool
    """whether it was asked for"""
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def to_json(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Kept, since making one takes longer than writing a chunk with it."""


def dump(value: object) -> bytes:
    """JSON in UTF-8, on one line."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def finish_reason(finish: room_pb2.Finish) -> str:
    if finish.reason not in _FINISH_REASONS:
        raise InternalError("The room ended the answer for a reason this bridge does not know.")
    return _FINISH_REASONS[finish.reason]


def usage_json(usage: room_pb2.Usage, thinking: bool) -> dict[str, object]:
    written: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        written["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if thinking:
        written["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return written


def unfinished() -> InternalError:
    """The room's stream ended, without an error, before the answer did."""
    return InternalError("The room ended the answer before it was finished.")


class WholeAnswer:
    """Collects the events of one answer."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._finish: str | None = None
        self._usage: dict[str, object] | None = None

    @property
    def done(self) -> bool:
        return self._finish is not None and self._usage is not None

    def add(self, event: room_pb2.GenerateEvent) -> None:
        match event.WhichOneof("event"):
            case "text":
                self._texts.append(event.text.text)
            case "reasoning":
                self._reasoning.append(event.reasoning.text)
            case "call":
                self._calls.start(event.call)
            case "call_delta":
                self._calls.extend(event.call_delta)
            case "finish":
                self._finish = finish_reason(event.finish)
            case "usage":
                self._usage = usage_json(event.usage, self._head.thinking)

    def to_json(self) -> dict[str, object]:
        """Raises InternalError when the answer is not done."""
        if not self.done:
            raise unfinished()
        choice = {"index": 0, "message": self._message(), "logprobs": None, "finish_reason": self._finish}
        return {**self._head.to_json("chat.completion"), "choices": [choice], "usage": self._usage}

    def _message(self) -> dict[str, object]:
        content = "".join(self._texts)
        tool_calls = self._calls.to_json(ended=self._finish == "tool_calls")
        message: dict[str, object] = {
            "role": "assistant",
            "content": None if tool_calls and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        if tool_calls:
            message["tool_calls"] = tool_calls
        return message
