"""OpenAI's published shapes, as the models of its own SDK know them, held against everything the bridge answers."""

import json
from typing import Any

import httpx
from openai.types import ErrorObject
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

_OURS = frozenset({"reasoning_content"})
"""The one member that OpenAI's shapes do not have."""

_CODES = frozenset(
    (
        "unsupported_parameter", "unsupported_value", "invalid_type", "invalid_value", "missing_required_parameter",
        "invalid_json", "context_length_exceeded", "invalid_schema", "schema_too_complex",
    )
)  # fmt: skip
"""Of a 400."""


def check(reply: httpx.Response) -> None:
    """Look at the shape of any answer to a chat request."""
    assert reply.headers["x-request-id"].startswith("req-")
    if reply.status_code != 200:
        assert reply.headers["content-type"] == "application/json"
        error = check_error(reply.json())
        if reply.status_code == 400:
            assert error["code"] in _CODES
            assert reply.headers["x-should-retry"] == "false"
    elif reply.headers["content-type"] == "application/json":
        check_whole(reply.json())
    else:
        check_stream(reply.content)


def check_whole(body: dict[str, Any]) -> None:
    _check(ChatCompletion, body)
    assert {"id", "object", "created", "model", "choices", "usage"} <= set(body)
    (choice,) = body["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    message = choice["message"]
    assert {"role", "content", "refusal", "annotations"} <= set(message)
    if "tool_calls" in message:
        assert message["tool_calls"], "without calls there is no key"
        assert len({call["id"] for call in message["tool_calls"]}) == len(message["tool_calls"])


def check_stream(stream: bytes) -> None:
    """Each event by itself, and that it ends either finished or with an error."""
    events = events_of(stream)
    last = events.pop()
    for event in events:
        check_chunk(event)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    if last == "[DONE]":
        assert reasons[-1] is not None
        assert not any(reasons[:-1])
    else:
        check_error(last)
        assert not any(reasons)


def check_chunk(chunk: dict[str, Any]) -> None:
    _check(ChatCompletionChunk, chunk)
    assert {"id", "object", "created", "model", "choices"} <= set(chunk)
    for choice in chunk["choices"]:
        assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}
        assert len(choice["delta"].get("tool_calls", ())) <= 1


def check_error(body: Any) -> dict[str, Any]:
    """The error object of `body`, which must be nothing else."""
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    _check(ErrorObject, error)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"]
    return error


def events_of(stream: bytes) -> list[Any]:
    """The data of a stream's events, parsed; [DONE] as it is. Comments are left out."""
    lines = stream.decode().split("\n\n")
    assert lines.pop() == ""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


def _check(model: type[BaseModel], value: dict[str, Any]) -> None:
    """Every member has the type that is published for it, and there are no others. The SDK's models allow both."""
    assert not _unknown(model.model_validate(value, strict=True)) - _OURS


def _unknown(value: object) -> set[str]:
    match value:
        case BaseModel():
            known = (getattr(value, name) for name in type(value).model_fields)
            return set(value.model_extra or ()).union(*map(_unknown, known))
        case list():
            return set().union(*map(_unknown, value))
        case _:
            return set()
