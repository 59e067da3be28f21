"""Conversation to prompt: the model's own chat template, and what to do where it refuses.

Templates are programs of the models' authors. They raise on conversations they were not written for (no user turn, a
system turn, two turns of one role in a row), yet the room answers every legal conversation. So a refused one is
rewritten, little by little, into a form that stricter templates take, and at last rendered in a plain form of our own.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from jinja2 import TemplateError

from protos import room_pb2
from room.text.control import ControlText

Message = dict[str, Any]

_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What rendering may raise: jinja's errors, and those of expressions in a template."""

_ROLES = {
    room_pb2.ROLE_SYSTEM: "system",
    room_pb2.ROLE_USER: "user",
    room_pb2.ROLE_ASSISTANT: "assistant",
    room_pb2.ROLE_TOOL: "tool",
}

_PROBE = "poolprobe"

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
_PLAIN = (
    "{% for message in messages %}{% if message.role != 'system' %}{{ message.role | capitalize + ': ' }}{% endif %}"
    "{{ message.content + '\n\n' }}{% endfor %}{{ 'Assistant:' }}"
)


class ChatTemplate:
    """Renders conversations for one model. `tokenizer` is a fast tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._own = _CHATML if {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.added_tokens_encoder) else _PLAIN
        self._control = ControlText(tokenizer)
        self._in_parts = self._wants_parts()
        self.end_of_turn = self._find_end_of_turn()
        """The special token that the template writes after an answer; None where it writes none."""

    def render(self, turns: Sequence[room_pb2.Turn], *, thinking: bool, effort: str) -> list[int]:
        """The prompt's token ids, up to where the model is to write."""
        messages = [_message(turn, self._control.cover) for turn in turns] or [{"role": "user", "content": ""}]
        settings: dict[str, Any] = {"enable_thinking": thinking, "thinking": thinking}
        if effort:
            settings["reasoning_effort"] = effort
        for reading in _readings(messages):
            if self._in_parts:
                reading = [message | {"content": _parts(message["content"])} for message in reading]
            try:
                return self._encode(reading, **settings)
            except _FAULTS:
                continue
        return self._render_plainly(messages)

    def _encode(self, messages: list[Message], **settings: Any) -> list[int]:
        settings = {"add_generation_prompt": True, "tokenize": False, **settings}
        return self._control.encode(self._tokenizer.apply_chat_template(messages, **settings))

    def _render_plainly(self, messages: list[Message]) -> list[int]:
        """In our own form, which takes everything."""
        texts = [{"role": message["role"], "content": _as_text(message)} for message in messages]
        start = self._tokenizer("").input_ids[:1] if self._own is _PLAIN else []
        start = [token for token in start if token == self._tokenizer.bos_token_id]
        return [*start, *self._encode(texts, chat_template=self._own)]

    def _wants_parts(self) -> bool:
        """Whether the template takes content as a list of parts only, and drops a plain string."""
        return _PROBE not in self._probe(_PROBE) and _PROBE in self._probe(_parts(_PROBE))

    def _probe(self, content: Any) -> str:
        return self._text([{"role": "user", "content": content}])

    def _find_end_of_turn(self) -> int | None:
        answer = _parts(_PROBE) if self._in_parts else _PROBE
        question = {"role": "user", "content": _parts("q") if self._in_parts else "q"}
        _, _, after = self._text([question, {"role": "assistant", "content": answer}]).rpartition(_PROBE)
        for token, entry in self._tokenizer.added_tokens_decoder.items():
            if entry.special and after.lstrip().startswith(entry.content):
                return int(token)
        return None

    def _text(self, messages: list[Message]) -> str:
        """The text of a rendered conversation; nothing where the template refuses it."""
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        except _FAULTS:
            return ""


# ---------------------------------------------------------------- turns to messages


def _message(turn: room_pb2.Turn, cover: Callable[[str], str]) -> Message:
    """A turn as chat templates expect it."""
    message: Message = {"role": _ROLES[turn.role], "content": cover(turn.text)}
    if turn.reasoning:
        message["reasoning_content"] = cover(turn.reasoning)
    if turn.calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": cover(call.id),
                "function": {"name": cover(call.name), "arguments": _arguments(call, cover)},
            }
            for call in turn.calls
        ]
    if turn.call_id:
        message["tool_call_id"] = cover(turn.call_id)
    return message


def _arguments(call: room_pb2.ToolCall, cover: Callable[[str], str]) -> Any:
    """A call's arguments as an object, which templates iterate; what is none stays text."""
    try:
        found = json.loads(call.arguments or "{}")
        if isinstance(found, dict):
            # Escapes have become characters only now.
            return json.loads(cover(json.dumps(found, ensure_ascii=False)))
    except (ValueError, RecursionError):
        pass
    return cover(call.arguments)


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


# ---------------------------------------------------------------- ever simpler readings


def _readings(messages: list[Message]) -> Iterator[list[Message]]:
    """The conversation as it is; without a system turn; as user and assistant in strict alternation."""
    yield messages
    folded = _fold_system(messages)
    if folded != messages:
        yield folded
    yield _alternate(folded)


def _fold_system(messages: list[Message]) -> list[Message]:
    """System turns become part of the user turn after them, or user turns."""
    folded: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user":
            folded.append(message | {"content": _join([*waiting, message["content"]])})
            waiting = []
        else:
            folded.append(message)
    return [*folded, {"role": "user", "content": _join(waiting)}] if waiting else folded


def _alternate(messages: list[Message]) -> list[Message]:
    """Neighbours of one side are joined, tool results count as the user's, and the user comes first."""

    def side(message: Message) -> str:
        return "assistant" if message["role"] == "assistant" else "user"

    turns = [
        {"role": role, "content": _join([_as_text(message) for message in group])}
        for role, group in groupby(messages, side)
    ]
    return [{"role": "user", "content": ""}, *turns] if turns and turns[0]["role"] == "assistant" else turns


def _join(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _as_text(message: Message) -> str:
    """A message's content with its calls written out."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    return _join([message["content"], *calls])
