"""One chat request: from JSON, validated once at this border, to the room's neutral request."""

from dataclasses import dataclass, field
from typing import Any

from bridge import members
from bridge.members import JsonObject
from bridge.messages import Turn, check_size, read_messages
from bridge.response_format import ResponseFormat, read_response_format
from bridge.tools import Tools, read_tools
from protos import room_pb2

DEFAULT_NEW, MAX_NEW = 16_384, 65_536
"""Tokens of an answer: unasked, and at most."""

MAX_TOP_K, DEFAULT_TOP_K = 64, 40
DEFAULT_TEMPERATURE = 0.8
MAX_STOPS, MAX_STOP_LENGTH = 4, 64

_EFFORTS_ON = ("low", "medium", "high", "xhigh", "max")
_EFFORTS_OFF = ("none", "minimal")


@dataclass(frozen=True)
class ChatRequest:
    turns: tuple[Turn, ...]
    max_new: int = DEFAULT_NEW
    temperature: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    thinking: bool = False
    effort: str = ""
    tools: Tools = field(default_factory=Tools)
    response_format: ResponseFormat = field(default_factory=ResponseFormat)

    @classmethod
    def parse(cls, data: JsonObject, ctx: int) -> "ChatRequest":
        """Read a request body. `ctx` is the room's context in tokens, 0 when it is not known.

        Raises InvalidRequest for the first fault: messages by index, then the other members by name. What is not read
        here (top_p, seed, user, metadata, ...) is accepted and ignored.
        """
        chat = _read_members(data, read_messages(data, ctx))
        check_size(chat.turns, ctx, chat.tools.size)
        return chat

    def to_room(self, *, request_id: str, client: str, max_waiting: int) -> room_pb2.GenerateRequest:
        return room_pb2.GenerateRequest(
            request_id=request_id,
            turns=[turn.to_room() for turn in self.turns],
            sampling=room_pb2.Sampling(temperature=self.temperature, top_k=self.top_k),
            max_new=self.max_new,
            stop=self.stop,
            thinking=self.thinking,
            effort=self.effort,
            max_waiting=max_waiting,
            client=client,
            tools=self.tools.to_room(),
            format=self.response_format.kind,
            schema=self.response_format.schema,
        )


def _read_members(data: JsonObject, turns: tuple[Turn, ...]) -> ChatRequest:
    # In order of the names: with several faults callers are told of the same one each time.
    members.refuse(data, "audio", "audio is not supported: this model reads and writes text only.")
    enable_thinking = _read_enable_thinking(data)
    members.neutral(data, "frequency_penalty")
    members.refuse(data, "function_call", "function_call is not supported; use tool_choice.")
    members.refuse(data, "functions", "functions is not supported; use tools.")
    if members.mapping(data, "logit_bias"):
        raise members.unsupported("logit_bias", "logit_bias is not supported; leave it out or send {}.")
    if members.boolean(data, "logprobs"):
        raise members.unsupported("logprobs", "logprobs is not supported; leave it out or send false.")
    max_completion_tokens = members.count(data, "max_completion_tokens")
    max_tokens = members.count(data, "max_tokens")
    _check_modalities(data)
    members.text(data, "model", "model")
    _check_n(data)
    parallel = members.boolean(data, "parallel_tool_calls") is not False
    members.refuse(data, "prediction", "prediction is not supported; leave it out.")
    members.neutral(data, "presence_penalty")
    effort = _read_effort(data)
    response_format = read_response_format(data)
    stop = _read_stop(data)
    stream = members.boolean(data, "stream") or False
    include_usage = _read_include_usage(data, stream)
    temperature = members.number(data, "temperature", 0, 2)
    tools = read_tools(data, parallel)
    top_k = members.count(data, "top_k")
    members.neutral(data, "top_logprobs")
    members.refuse(data, "web_search_options", "web_search_options is not supported; leave it out.")
    temperature, top_k = _sampling(temperature, top_k)
    return ChatRequest(
        turns=turns,
        max_new=min(max_completion_tokens or max_tokens or DEFAULT_NEW, MAX_NEW),
        temperature=temperature,
        top_k=top_k,
        stop=stop,
        stream=stream,
        include_usage=include_usage,
        thinking=effort in _EFFORTS_ON if effort else bool(enable_thinking),
        effort=effort if effort in _EFFORTS_ON else "",
        tools=tools,
        response_format=response_format,
    )


def _sampling(temperature: float | None, top_k: int | None) -> tuple[float | None, int | None]:
    """With neither the room's own setting holds; one alone brings a fitting other one."""
    if temperature is None and top_k is None:
        return None, None
    return (
        DEFAULT_TEMPERATURE if temperature is None else temperature,
        DEFAULT_TOP_K if top_k is None else min(top_k, MAX_TOP_K),
    )


def _read_enable_thinking(data: JsonObject) -> bool | None:
    kwargs = members.mapping(data, "chat_template_kwargs")
    return members.boolean(kwargs, "enable_thinking", "chat_template_kwargs.enable_thinking")


def _read_effort(data: JsonObject) -> str:
    value = data.get("reasoning_effort")
    if value is None:
        return ""
    if value not in (*_EFFORTS_ON, *_EFFORTS_OFF):
        raise members.invalid_value("reasoning_effort", "none, minimal, low, medium, high, xhigh or max")
    return str(value)


def _read_stop(data: JsonObject) -> tuple[str, ...]:
    value = data.get("stop")
    stops: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    fits = all(isinstance(stop, str) and 1 <= len(stop) <= MAX_STOP_LENGTH for stop in stops)
    if len(stops) > MAX_STOPS or not fits:
        raise members.invalid_value("stop", f"up to {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(map(members.clean, stops))


def _read_include_usage(data: JsonObject, stream: bool) -> bool:
    options = members.mapping(data, "stream_options")
    if data.get("stream_options") is not None and not stream:
        raise members.invalid_value("stream_options", "left out unless stream is true")
    return members.boolean(options, "include_usage", "stream_options.include_usage") or False


def _check_modalities(data: JsonObject) -> None:
    if any(kind != "text" for kind in members.sequence(data, "modalities")):
        raise members.unsupported("modalities", 'modalities must be ["text"].', code="unsupported_value")


def _check_n(data: JsonObject) -> None:
    asked = members.count(data, "n")
    if asked not in (None, 1):
        raise members.unsupported("n", "n must be 1.", code="unsupported_value")
