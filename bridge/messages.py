"""The `messages` of a chat request: each is validated, then all are arranged into the turns a chat template knows."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

from bridge import members
from bridge.errors import ContextTooLong, InvalidRequest
from bridge.members import JsonObject
from protos import room_pb2

NOTE = "[image omitted: this model reads text only]"
"""Stands for an image or a file, so that a pasted screenshot does not end the session."""

MAX_TEXT = 1_500_000
"""Code points of all that would reach the prompt."""

MAX_MESSAGES = 100_000

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Part type to the member that holds its text."""

_OMITTED_PARTS = frozenset(
    {"image_url", "input_image", "image", "file", "input_file", "document", "video", "video_url", "input_video"}
)


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}

_ROOM_ROLES = {
    Role.SYSTEM: room_pb2.ROLE_SYSTEM,
    Role.USER: room_pb2.ROLE_USER,
    Role.ASSISTANT: room_pb2.ROLE_ASSISTANT,
    Role.TOOL: room_pb2.ROLE_TOOL,
}


@dataclass(frozen=True)
class Call:
    """A tool call of an earlier answer. `arguments` is JSON, or whatever text the client kept of it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""

    @property
    def size(self) -> int:
        """Code points that reach the prompt."""
        return len(self.text) + len(self.reasoning) + sum(len(call.name) + len(call.arguments) for call in self.calls)

    def to_room(self) -> room_pb2.Turn:
        return room_pb2.Turn(
            role=_ROOM_ROLES[self.role],
            text=self.text,
            reasoning=self.reasoning,
            calls=[room_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self.calls],
            call_id=self.call_id,
        )


def read_messages(data: JsonObject, ctx: int) -> tuple[Turn, ...]:
    """The turns of a request. `ctx` is the room's context in tokens, 0 when it is not known.

    Raises InvalidRequest for the first message at fault, ContextTooLong for more text than any prompt can hold.
    """
    if data.get("messages") is None:
        raise members.missing("messages")
    raw = members.sequence(data, "messages")
    if not raw:
        raise members.invalid_value("messages", "an array of at least one message")
    if len(raw) > MAX_MESSAGES:
        raise ContextTooLong(f"Your request has {len(raw)} messages; at most {MAX_MESSAGES:,} are accepted.")
    messages = list(_read_each(raw))
    if messages[-1].role is Role.ASSISTANT:
        raise members.unsupported(
            "messages",
            "The last message must not be an assistant message: prefill is not supported.",
            code="invalid_value",
        )
    turns = _arrange(messages)
    if not turns:
        raise members.invalid_value("messages", "more than system messages without text")
    check_size(turns, ctx)
    return turns


def check_size(turns: Iterable[Turn], ctx: int, tools: int = 0) -> None:
    """Raise ContextTooLong when `turns`, with `tools` code points of tools, are more than any prompt can hold."""
    size = sum(turn.size for turn in turns) + tools
    what = "messages and tools" if tools else "messages"
    # No tokenizer packs more than 8 characters into a token over a whole prompt: the room would only say the same.
    if ctx and size > 8 * ctx:
        raise ContextTooLong(
            f"This model's maximum context length is {ctx} tokens. However, your {what} hold {size} characters; "
            "please shorten them."
        )
    if size > MAX_TEXT:
        raise ContextTooLong(f"Your {what} hold {size} characters; at most {MAX_TEXT:,} are accepted.")


# ---------------------------------------------------------------- validation


def _read_each(raw: Sequence[Any]) -> Iterator[Turn]:
    known_calls: set[str] = set()
    for index, value in enumerate(raw):
        at = f"messages[{index}]"
        if not isinstance(value, dict):
            raise members.invalid_type(at, "an object with role and content")
        turn = _read_message(value, at)
        if turn.role is Role.TOOL and turn.call_id not in known_calls:
            raise members.invalid_value(f"{at}.tool_call_id", "the id of a tool call in an earlier assistant message")
        known_calls.update(call.id for call in turn.calls)
        yield turn


def _read_message(message: JsonObject, at: str) -> Turn:
    role = _read_role(message, at)
    text = _read_content(message.get("content"), f"{at}.content")
    if text is None and role in (Role.SYSTEM, Role.USER):
        raise members.missing(f"{at}.content")
    if role is Role.ASSISTANT:
        return _read_assistant(message, at, text or "")
    if role is Role.TOOL:
        return Turn(role, text or "", call_id=_read_id(message, "tool_call_id", at))
    return Turn(role, text or "")


def _read_role(message: JsonObject, at: str) -> Role:
    value = message.get("role")
    expected = "system, developer, user, assistant or tool"
    if value is None:
        raise members.missing(f"{at}.role")
    if not isinstance(value, str):
        raise members.invalid_type(f"{at}.role", expected)
    if value not in _ROLES:
        code = "unsupported_value" if value == "function" else "invalid_value"
        raise InvalidRequest(f"{at}.role must be {expected}.", param=f"{at}.role", code=code)
    return _ROLES[value]


def _read_id(data: JsonObject, name: str, at: str) -> str:
    value = members.text(data, name, f"{at}.{name}")
    if not value:
        raise members.missing(f"{at}.{name}")
    return value


def _read_assistant(message: JsonObject, at: str, text: str) -> Turn:
    if message.get("function_call") is not None:
        raise members.unsupported(f"{at}.function_call", f"{at}.function_call is not supported; use tool_calls.")
    calls = tuple(
        _read_call(value, f"{at}.tool_calls[{index}]")
        for index, value in enumerate(members.sequence(message, "tool_calls", f"{at}.tool_calls"))
    )
    return Turn(Role.ASSISTANT, text, _read_reasoning(message, at), calls)


def _read_reasoning(message: JsonObject, at: str) -> str:
    own = members.text(message, "reasoning_content", f"{at}.reasoning_content")
    alias = message.get("reasoning")
    return own or (members.clean(alias) if isinstance(alias, str) else "")


def _read_call(value: object, at: str) -> Call:
    if not isinstance(value, dict):
        raise members.invalid_type(at, "an object")
    if value.get("type") not in (None, "function"):
        raise members.unsupported(f"{at}.type", f'{at}.type must be "function".', code="unsupported_value")
    call_id = _read_id(value, "id", at)
    function = value.get("function")
    if not isinstance(function, dict):
        raise members.invalid_type(f"{at}.function", "an object with name and arguments")
    name = _read_id(function, "name", f"{at}.function")
    return Call(call_id, name, _read_arguments(function.get("arguments"), f"{at}.function.arguments"))


def _read_arguments(value: object, at: str) -> str:
    """Arguments as text. What is no JSON object stays as it is: the room shows it as text, the session goes on."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        return members.clean(value) if value.strip() else "{}"
    return members.compact(value, at)


def _read_content(content: object, at: str) -> str | None:
    if content is None:
        return None
    if isinstance(content, str):
        return members.clean(content)
    if not isinstance(content, list):
        raise members.invalid_type(at, "a string or an array of parts")
    return _join_parts([_read_part(part, f"{at}[{index}]") for index, part in enumerate(content)])


def _read_part(part: object, at: str) -> str | None:
    """A part's text, None for an image or a file."""
    if not isinstance(part, dict):
        raise members.invalid_type(at, "an object with type and text")
    kind = part.get("type", "text" if "text" in part else None)
    if kind is None:
        raise members.missing(f"{at}.type")
    if not isinstance(kind, str):
        raise members.invalid_type(f"{at}.type", "a string")
    if kind in _OMITTED_PARTS:
        return None
    if kind not in _TEXT_PARTS:
        allowed = "text, image_url or file" if kind != "input_audio" else "text, image_url or file: no audio"
        raise members.unsupported(f"{at}.type", f"{at}.type must be {allowed}.", code="unsupported_value")
    member = _TEXT_PARTS[kind]
    value = members.text(part, member, f"{at}.{member}")
    if value is None:
        raise members.missing(f"{at}.{member}")
    return value


def _join_parts(parts: Sequence[str | None]) -> str:
    """Texts follow each other with nothing between; a note stands on a line of its own."""
    joined, after_note = "", False
    for part in parts:
        if part == "":
            continue
        here_note = part is None
        piece = NOTE if part is None else part
        if joined and (here_note or after_note) and not joined.endswith("\n") and not piece.startswith("\n"):
            joined += "\n"
        joined += piece
        after_note = here_note
    return joined


# ---------------------------------------------------------------- arrangement


class _Draft:
    """A turn that later messages may still add to."""

    def __init__(self, role: Role, texts: list[str], message: Turn | None = None) -> None:
        self.role = role
        self.texts = texts
        self._reasoning = message.reasoning if message else ""
        self._calls = message.calls if message else ()
        self._results: list[str | None] = [None] * len(self._calls)
        self._open: defaultdict[str, deque[int]] = defaultdict(deque)
        for place, call in enumerate(self._calls):
            self._open[call.id].append(place)

    def take_result(self, call_id: str, text: str) -> None:
        """Calls that share an id are answered in order; of several results for the last one the last counts."""
        places = self._open[call_id]
        self._results[places.popleft() if len(places) > 1 else places[0]] = text

    @property
    def answered(self) -> bool:
        return any(result is not None for result in self._results)

    def turns(self) -> Iterator[Turn]:
        yield Turn(self.role, _paragraphs(self.texts), self._reasoning, self._calls)
        for call, result in zip(self._calls, self._results, strict=True):
            if result is not None:
                yield Turn(Role.TOOL, result, call_id=call.id)


class _Conversation:
    """Arranges what follows the system prompt.

    A late system message never changes the text before it, so that the room's caches hold: it joins the user turn just
    before it, or waits for the user turn that follows. Where an assistant turn or the end comes first, or after tool
    results, it is a user turn of its own. Results stand behind their calls, whatever came between.
    """

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._notes: list[str] = []
        # The latest turn that made the call wins: some servers count ids from the start in each turn.
        self._callers: dict[str, _Draft] = {}

    def add(self, message: Turn) -> None:
        match message.role:
            case Role.SYSTEM:
                self._note(message.text)
            case Role.USER:
                self._user(message.text)
            case Role.ASSISTANT:
                self._assistant(message)
            case Role.TOOL:
                self._callers[message.call_id].take_result(message.call_id, message.text)

    def turns(self) -> Iterator[Turn]:
        self._flush_notes()
        for draft in self._drafts:
            yield from draft.turns()

    def _note(self, text: str) -> None:
        if not text.strip():
            return
        if self._drafts and self._drafts[-1].role is Role.USER:
            self._drafts[-1].texts.append(text)
        else:
            self._notes.append(text)

    def _user(self, text: str) -> None:
        if self._drafts and self._drafts[-1].answered:
            self._flush_notes()
        self._drafts.append(_Draft(Role.USER, [*self._notes, text]))
        self._notes.clear()

    def _assistant(self, message: Turn) -> None:
        self._flush_notes()
        draft = _Draft(Role.ASSISTANT, [message.text], message)
        self._drafts.append(draft)
        self._callers.update((call.id, draft) for call in message.calls)

    def _flush_notes(self) -> None:
        if self._notes:
            self._drafts.append(_Draft(Role.USER, self._notes.copy()))
            self._notes.clear()


def _arrange(messages: Sequence[Turn]) -> tuple[Turn, ...]:
    head = list(takewhile(lambda message: message.role is Role.SYSTEM, messages))
    conversation = _Conversation()
    for message in messages[len(head) :]:
        conversation.add(message)
    prompt = _paragraphs(message.text for message in head if message.text.strip())
    return (*([Turn(Role.SYSTEM, prompt)] if prompt else []), *conversation.turns())


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)
