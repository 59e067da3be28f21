"""Mutated request bodies: valid ones with a few things wrong, in the JSON or in its bytes."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Holder = dict[str, Any] | list[Any]
Place = tuple[Holder, Any]

_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_SCHEMA = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
}
_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "g"}},
]
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

VALID: list[dict[str, Any]] = [
    {"model": "pooled", "messages": [{"role": "user", "content": "hi"}]},
    {
        "model": "pooled",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}]},
            {"role": "user", "content": [{"type": "text", "text": "look"}, _IMAGE]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
            {"role": "system", "content": "note"},
            {"role": "user", "content": "caf\u00e9 \U0001f9e9"},
        ],
        "tools": _TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": _TOOLS,
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
        },
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": _SCHEMA}},
    },
    {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "stop": ["a", "b"],
        "n": 1,
        "seed": 1,
        "user": "u",
        "metadata": {"a": "b"},
        "logprobs": False,
        "top_logprobs": 0,
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "modalities": ["text"],
        "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": True},
        "response_format": {"type": "json_object", "schema": {"type": "object"}},
        "functions": None,
        "stream": False,
    },
]
"""Between them they have every member that the bridge reads."""

_STRINGS = "", " ", "\x00", "\ud83d", "\u2028", "x" * 70, "a\n\nb", "null", "user", "custom", "auto", "NaN", "\ufeff"
_LARGEST = 1_000_000
"""Bytes of what is repeated: repeats of repeats would be all about size, which other tests look at."""

_NUMBERS = 0, -1, 1, 2, 0.5, -0.0, 1e308, 10**30, -(2**63), 65_537, 3.0
_WORDS = (
    "type", "role", "content", "text", "name", "function", "function_call", "functions", "tools", "tool_calls",
    "tool_call_id", "id", "arguments", "schema", "json_schema", "parameters", "mode", "stream", "stop", "n", "audio",
    "prediction", "refusal", "reasoning_content", "messages", "allowed_tools",
)  # fmt: skip


def mutated(seed: object) -> bytes:
    """A request body, the same for the same seed. Most are JSON, many are valid."""
    rng = random.Random(f"{seed}")
    body: Any = copy.deepcopy(rng.choice(VALID))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        body = rng.choice(_TREE)(rng, body)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        for _ in range(rng.choice((1, 1, 2, 5))):
            data = rng.choice(_BYTES)(rng, data)
    return data


# ---------------------------------------------------------------- in the JSON


def _places(value: Any) -> Iterator[Place]:
    """Every member and element, as holder and key."""
    if isinstance(value, dict | list):
        keys: Any = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])


def _odd(rng: random.Random) -> Any:
    """A value that few places expect."""
    match rng.randrange(8):
        case 0 | 1:
            return rng.choice(_STRINGS)
        case 2 | 3:
            return rng.choice(_NUMBERS)
        case 4:
            return rng.choice((None, True, False, [], {}))
        case 5:
            return [_odd(rng) for _ in range(rng.randrange(4))]
        case 6:
            return {rng.choice((*_WORDS, *_STRINGS)): _odd(rng) for _ in range(rng.randrange(4))}
        case _:
            return _nested(rng)


def _nested(rng: random.Random) -> Any:
    value: Any = rng.choice((1, "x", None))
    for _ in range(rng.choice((2, 20, 300))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _at_a_place(change: Callable[[random.Random, Holder, Any], None]) -> Callable[[random.Random, Any], Any]:
    def mutate(rng: random.Random, body: Any) -> Any:
        places = list(_places(body))
        if places:
            change(rng, *rng.choice(places))
        return body

    return mutate


@_at_a_place
def _replace(rng: random.Random, holder: Any, key: Any) -> None:
    holder[key] = _odd(rng)


@_at_a_place
def _remove(rng: random.Random, holder: Any, key: Any) -> None:
    del holder[key]


@_at_a_place
def _wrap(rng: random.Random, holder: Any, key: Any) -> None:
    holder[key] = [holder[key]] if rng.random() < 0.5 else {rng.choice(_WORDS): holder[key]}


@_at_a_place
def _repeat(rng: random.Random, holder: Any, key: Any) -> None:
    times = rng.choice((2, 3, 20, 1100))
    if isinstance(holder[key], list | str) and times * len(json.dumps(holder[key])) <= _LARGEST:
        holder[key] = holder[key] * times


@_at_a_place
def _add(rng: random.Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), rng.choice((_odd(rng), copy.deepcopy(holder[key]))))
    else:
        holder[rng.choice(_WORDS)] = rng.choice((_odd(rng), copy.deepcopy(holder[key])))


def _graft(rng: random.Random, body: Any) -> Any:
    """Something out of another valid body."""
    taken, key = rng.choice(list(_places(rng.choice(VALID))))
    places = list(_places(body))
    if places:
        holder, where = rng.choice(places)
        holder[where] = copy.deepcopy(taken[key])
    return body


def _whole(rng: random.Random, body: Any) -> Any:
    return _odd(rng) if rng.random() < 0.2 else body


_TREE = (_replace, _replace, _remove, _wrap, _repeat, _add, _graft, _whole)


# ---------------------------------------------------------------- in the bytes


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _cut(rng: random.Random, data: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[end:] if rng.random() < 0.5 else data[:end]


_PIECES = b"\xff", b"\x00", b"NaN", b"1e999", b"9" * 5000, b"[" * 2000, b"\\ud83d", b'"', b"{", b",", b" "


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    piece = rng.choice(_PIECES)
    return data[:at] + piece + data[at:]


_BYTES = (_flip, _cut, _insert)
