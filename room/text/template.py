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
from room.errors import InvalidValue
from room.text.control import ControlText
from room.text.frames import Message, marked
from room.text.memory import Generated, Memory, turn_key
from room.text.tools import Call, plain
from room.text.traits import Traits, find_traits, opens

_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What rendering may raise: jinja's errors, and those of expressions in a template."""

ROLES = {
    room_pb2.ROLE_SYSTEM: "system",
    room_pb2.ROLE_USER: "user",
    room_pb2.ROLE_ASSISTANT: "assistant",
    room_pb2.ROLE_TOOL: "tool",
}
"""As chat templates call them."""

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
        self.memory = Memory()
        """What the room wrote, as it wrote it."""
        self.traits = self._find_traits()

    def render(
        self, turns: Sequence[room_pb2.Turn], *, thinking: bool, effort: str, tools: Sequence[str] = ()
    ) -> list[int]:
        """The prompt's token ids, up to where the model is to write. `tools` are definitions as JSON text.

        Raises InvalidValue for one that is not.
        """
        messages = [self._message(turn) for turn in turns] or [{"role": "user", "content": ""}]
        settings = self._settings(thinking, effort)
        definitions = [self._definition(tool) for tool in tools]
        if self.traits.format.NAME == plain.NAME:
            messages = _in_words(messages, definitions)
        elif definitions:
            settings["tools"] = definitions
        for reading in _readings(messages):
            try:
                return self._fill(reading, settings)
            except _FAULTS:
                continue
        return self._render_plainly(messages)

    def _definition(self, tool: str) -> Any:
        """A tool's definition with its texts covered, whose escapes become characters only when it is read."""
        try:
            return json.loads(self._control.cover(json.dumps(json.loads(tool), ensure_ascii=False)))
        except (ValueError, RecursionError) as error:
            raise InvalidValue("tools", "each tool has a definition in JSON") from error

    def encode(self, markup: str) -> list[int]:
        """The ids of text of our own, in which control tokens are control tokens, inside a conversation."""
        return self._control.encode(markup, inside=True)

    def _settings(self, thinking: bool, effort: str) -> dict[str, Any]:
        """What the template is told. A model that cannot stop thinking thinks as little as it can."""
        traits = self.traits
        settings: dict[str, Any] = {"enable_thinking": thinking, "thinking": thinking}
        if traits.thinks and not traits.stops_thinking and not thinking:
            effort = "low"
        if effort in traits.levels and (thinking or not traits.stops_thinking):
            settings["reasoning_effort"] = traits.levels[effort]
        return settings

    # ------------------------------------------------------------ history

    def _fill(self, messages: list[Message], settings: dict[str, Any]) -> list[int]:
        """Render with the template, which frames the assistant's turns; what is in them is written as it was."""
        frames = self.traits.frames
        answers = [message for message in messages if message["role"] == "assistant"]
        if frames and answers:
            numbers = iter(range(len(answers)))
            shown = [marked(each, next(numbers)) if each["role"] == "assistant" else each for each in messages]
            bodies = [self._body(message) for message in answers]
            pieces = frames.fill(self._apply(shown, **settings), [text for text, _ in bodies])
            if pieces is not None:
                return self._weave(pieces, bodies)
        return self._control.encode(self._apply(messages, **settings))

    def _body(self, message: Message) -> tuple[str, Generated | None]:
        """What the model wrote in a turn, and its very tokens if they are known. The text is that before them then."""
        generated: Generated | None = message.get("generated")
        if generated is not None:
            return generated.lead, generated
        calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
        return self._lead(message) + self.traits.format.render_answer(message["content"], calls), None

    def _lead(self, message: Message) -> str:
        """A turn's thoughts, or what stands in their place."""
        traits = self.traits
        if traits.tags is None:
            return ""
        if message.get("reasoning_content"):
            return traits.tags.block(message["reasoning_content"])
        return "" if opens(traits.off, traits.tags) else traits.off

    def _weave(self, pieces: list[str], bodies: list[tuple[str, Generated | None]]) -> list[int]:
        ids: list[int] = []
        text = ""
        for piece, (body, generated) in zip(pieces, bodies, strict=False):
            text += piece + body
            if generated is not None:
                ids += self._control.encode(text, inside=bool(ids)) + list(generated.ids)
                text = ""
        return ids + self._control.encode(text + pieces[-1], inside=bool(ids))

    # ------------------------------------------------------------ the template

    def _apply(self, messages: list[Message], **settings: Any) -> str:
        if self._in_parts:
            messages = [message | {"content": _parts(message["content"])} for message in messages]
        settings = {"add_generation_prompt": True, "tokenize": False, **settings}
        return str(self._tokenizer.apply_chat_template(messages, **settings))

    def _render_plainly(self, messages: list[Message]) -> list[int]:
        """In our own form, which takes everything."""
        texts = [{"role": message["role"], "content": _as_text(message)} for message in messages]
        start = self._tokenizer("").input_ids[:1] if self._own is _PLAIN else []
        start = [token for token in start if token == self._tokenizer.bos_token_id]
        rendered = self._tokenizer.apply_chat_template(texts, tokenize=False, chat_template=self._own)
        return [*start, *self._control.encode(rendered)]

    def _wants_parts(self) -> bool:
        """Whether the template takes content as a list of parts only, and drops a plain string."""
        return _PROBE not in self._probe(_PROBE) and _PROBE in self._probe(_parts(_PROBE))

    def _probe(self, content: Any) -> str:
        return self._text([{"role": "user", "content": content}])

    def _wrap(self, text: str) -> Any:
        return _parts(text) if self._in_parts else text

    def _find_end_of_turn(self) -> int | None:
        question = {"role": "user", "content": self._wrap("q")}
        answer = {"role": "assistant", "content": self._wrap(_PROBE)}
        _, _, after = self._text([question, answer]).rpartition(_PROBE)
        for token, entry in self._tokenizer.added_tokens_decoder.items():
            if entry.special and after.lstrip().startswith(entry.content):
                return int(token)
        return None

    def _find_traits(self) -> Traits:
        source = self._tokenizer.chat_template or ""
        ends = () if self.end_of_turn is None else (self._tokenizer.convert_ids_to_tokens(self.end_of_turn),)
        return find_traits(
            self._text,
            self._wrap,
            self._tokenizer.added_tokens_encoder,
            "\n".join(source.values()) if isinstance(source, dict) else source,
            ends,
        )

    def _text(self, messages: list[Message], **settings: Any) -> str:
        """The text of a rendered conversation; nothing where the template refuses it."""
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **settings))
        except _FAULTS:
            return ""

    def _message(self, turn: room_pb2.Turn) -> Message:
        """A turn as chat templates expect it, and its tokens if the room wrote it."""
        message = _message(turn, self._control.cover)
        if turn.role == room_pb2.ROLE_ASSISTANT:
            key = turn_key(turn.reasoning, turn.text, [(call.name, call.arguments) for call in turn.calls])
            generated = self.memory.recall(key)
            if generated is not None:
                message["generated"] = generated
        return message


# ---------------------------------------------------------------- turns to messages


def _message(turn: room_pb2.Turn, cover: Callable[[str], str]) -> Message:
    """A turn as chat templates expect it."""
    message: Message = {"role": ROLES[turn.role], "content": cover(turn.text)}
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


def _call(function: dict[str, Any]) -> Call:
    """A call of a message, whose texts are covered."""
    arguments = function["arguments"]
    if isinstance(arguments, dict):
        return Call(function["name"], json.dumps(arguments, ensure_ascii=False), arguments)
    return Call(function["name"], arguments)


def _in_words(messages: list[Message], definitions: Sequence[Any]) -> list[Message]:
    """A conversation for a template that knows no tools: they are told in the system turn, results are the user's."""
    told: list[Message] = []
    for message in messages:
        if message["role"] != "tool":
            told.append(message)
        elif told and told[-1].get("result"):
            told[-1]["content"] += "\n" + plain.render_result(message["content"])
        else:
            told.append({"role": "user", "content": plain.render_result(message["content"]), "result": True})
    if not definitions:
        return told
    words = plain.instructions(definitions)
    if told[0]["role"] == "system":
        return [told[0] | {"content": _join([told[0]["content"], words])}, *told[1:]]
    return [{"role": "system", "content": words}, *told]


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
