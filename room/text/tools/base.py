"""What the call formats share: tools, what a template shows of its format, and a parser's frame."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from room.text.segments import ARGUMENTS, CALL, TEXT, Segment, TagFinder

Schema = Any
"""A JSON schema: an object or a boolean."""

NO_ARGUMENTS = "{}"


@dataclass(frozen=True)
class Tool:
    """A function the model may call; `parameters` is None where it takes no arguments."""

    name: str
    parameters: Schema | None = None


@dataclass(frozen=True)
class Lark:
    """What grammars are made of: `special` names a token of the vocabulary in Lark, `schema` gives the schema that is
    enforced for a tool's parameters: a reference into its own "$defs", or an object's schema."""

    special: Callable[[str], str]
    schema: Callable[[Schema], dict[str, Any]]


@dataclass(frozen=True)
class Call:
    """A call of an earlier turn. `arguments` is JSON text as it came, which may be broken; `value` is what it says."""

    name: str
    arguments: str
    value: dict[str, Any] | None = None
    """None where the arguments are no JSON object."""

    @property
    def text(self) -> str:
        """The arguments as they came; none at all are an empty object."""
        return self.arguments or NO_ARGUMENTS


@dataclass(frozen=True)
class Look:
    """What a model shows of its call format.

    `system` is what its template makes of a tool, `call` what it makes of a call in the history, and `names` are its
    added tokens.
    """

    system: str
    call: str
    names: frozenset[str] = field(default_factory=frozenset)

    @property
    def reacts(self) -> bool:
        return bool(self.system)


class Parser(Protocol):
    """Takes the calls out of an answer. `complete` counts those that are whole; `inside`: one is begun and is not."""

    @property
    def complete(self) -> int: ...

    @property
    def inside(self) -> bool: ...

    @property
    def held(self) -> str:
        """Text that has not come out: it may yet be markup."""

    def feed(self, text: str) -> list[Segment]: ...

    def flush(self, *, cut: bool) -> list[Segment]:
        """The answer ends here; `cut`: not by the model's will, so a call that has begun is no text."""


class Format(Protocol):
    """One call format: a module of this package."""

    NAME: str
    ALWAYS: bool
    """Its markup stands around answers without calls too."""
    SHOWN: tuple[str, ...]
    """Special tokens that are part of its markup."""
    OPENER: str
    """What a call begins with, where that is one token of the vocabulary; else empty: only a grammar of the whole
    answer holds calls to their tools."""

    @staticmethod
    def detect(look: Look) -> bool:
        """Whether a model writes its calls so."""

    @staticmethod
    def render_answer(content: str, calls: Sequence[Call]) -> str:
        """A turn of the history after its thoughts, as the model writes it."""

    @staticmethod
    def grammar(tools: Sequence[Tool], most: int, lark: Lark) -> str:
        """Lark rules: `calls`, 1 to `most` of them, and where OPENER is empty `free_or_calls`: text, calls, or both."""

    @staticmethod
    def answer_rule(rule: str, lark: Lark) -> str:
        """The Lark for an answer that is no call, where `rule` is that of its text."""

    @staticmethod
    def parser(tools: Sequence[Tool]) -> Parser: ...


# ---------------------------------------------------------------- JSON that comes in pieces


class NotACall(Exception):
    """What looked like a call is none."""


@dataclass(frozen=True)
class Header:
    """The beginning of a call in JSON: its name, and the length up to its arguments."""

    name: str
    length: int


_HEADER = ("{", '"name"', ":", None, ",", ('"arguments"', '"parameters"'), ":", "{")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MAX_NAME = 1024


def read_header(text: str, names: Mapping[str, Any]) -> Header | None:
    """Read `{"name": "f", "arguments": ` up to the brace that opens the arguments; None: more must come.

    Raises NotACall, also for a name that is not one of `names`.
    """
    name, at = "", 0
    for wanted in _HEADER:
        at += len(text[at:]) - len(text[at:].lstrip())
        rest = text[at:]
        if not rest:
            return None
        if wanted is None:
            found = _STRING.match(rest)
            if not found:
                if rest[0] == '"' and len(rest) < _MAX_NAME:
                    return None
                raise NotACall
            name = _unquoted(found[0])
            if name not in names:
                raise NotACall
            at += found.end()
            continue
        choices = (wanted,) if isinstance(wanted, str) else wanted
        whole = next((choice for choice in choices if rest.startswith(choice)), None)
        if whole is None:
            if any(choice.startswith(rest) for choice in choices):
                return None
            raise NotACall
        at += len(whole)
    return Header(name, at - 1)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise NotACall from None


class JsonObject:
    """Finds the end of a JSON object whose text comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> int | None:
        """Length of the part of `text` that ends the object; None: all of it belongs to it."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None


# ---------------------------------------------------------------- a parser's frame


class TaggedParser:
    """A parser of calls that stand between tags, after any text. Formats say what is between them.

    Line ends before a call belong to its markup. After a call only calls follow: other text is dropped.
    """

    def __init__(self, tools: Sequence[Tool], opener: str, closer: str) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.complete = 0
        self.inside = False
        self.held = ""
        self._opener = opener
        self._open = TagFinder([opener])
        self._close = TagFinder([closer])
        self._state: Callable[[list[Segment]], bool] = self._text
        self._blank = ""  # line ends before the opener

    def feed(self, text: str) -> list[Segment]:
        self.held += text
        out: list[Segment] = []
        while self._state(out):
            pass
        return [segment for segment in out if segment[1] or segment[0] == CALL]

    def flush(self, *, cut: bool) -> list[Segment]:
        held, self.held = self._blank + self.held, ""
        self._blank = ""
        if self._state == self._end and not cut:
            self._whole()
            return []
        if self._state == self._text or (self._state == self._header and not cut and not self.complete):
            return [(TEXT, held)] if held and not self.complete else []
        return []

    # States: each takes one thing out of what is held, and says whether to go on.

    def _text(self, out: list[Segment]) -> bool:
        found = self._open.find(self.held)
        if found is None:
            cut = len(self.held[: self._open.safe(self.held)].rstrip("\n"))
            self._say(out, self.held[:cut])
            self.held = self.held[cut:]
            return False
        before = self.held[: found[0]]
        self._say(out, before.rstrip("\n"))
        self._blank = before[len(before.rstrip("\n")) :]
        self.held = self.held[found[0] :]
        self._state = self._header
        return True

    def _header(self, out: list[Segment]) -> bool:
        """The opener is held: is it a call?"""
        try:
            name = self._begin()
        except NotACall:
            self._say(out, self._blank + self._opener)
            self.held = self.held.removeprefix(self._opener)
            self._blank = ""
            self._state = self._text
            return True
        if name is None:
            return False
        out.append((CALL, name))
        self._blank = ""
        self.inside = True
        self._state = self._arguments
        return True

    def _begin(self) -> str | None:
        """Take the opener and what stands before the arguments; the function's name, or None: more must come.

        Raises NotACall.
        """
        raise NotImplementedError

    def _arguments(self, out: list[Segment]) -> bool:
        """Take arguments; at their end go on to `_end`."""
        raise NotImplementedError

    def _end(self, out: list[Segment]) -> bool:
        """The arguments are whole: wait for the closing tag."""
        found = self._close.find(self.held)
        if found is None:
            self.held = self.held[self._close.safe(self.held) :]
            return False
        self.held = self.held[found[0] + len(found[1]) :]
        self._whole()
        return True

    def _whole(self) -> None:
        self.complete += 1
        self.inside = False
        self._state = self._text

    def _say(self, out: list[Segment], text: str) -> None:
        if not self.complete:
            out.append((TEXT, text))


class JsonParser(TaggedParser):
    """Calls as `{"name": ..., "arguments": {...}}` between tags."""

    def __init__(self, tools: Sequence[Tool], opener: str, closer: str) -> None:
        super().__init__(tools, opener, closer)
        self._object = JsonObject()

    def _begin(self) -> str | None:
        header = read_header(self.held[len(self._opener) :], self.tools)
        if header is None:
            return None
        self.held = self.held[len(self._opener) + header.length :]
        self._object = JsonObject()
        return header.name

    def _arguments(self, out: list[Segment]) -> bool:
        end = self._object.feed(self.held)
        out.append((ARGUMENTS, self.held[:end]))
        self.held = self.held[end:] if end is not None else ""
        if end is not None:
            self._state = self._end
        return end is not None


# ---------------------------------------------------------------- grammar


def quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def json_of(schema: dict[str, Any]) -> str:
    """The Lark of the JSON that fits a schema."""
    return "%json " + json.dumps(schema)


def json_bodies(tools: Sequence[Tool], key: str, lark: Lark) -> str:
    """Lark rules for `{"name": "f", "<key>": {...}}` of each tool; the rule of all is `body`."""
    rules = [f"body: {' | '.join(f'body_{at}' for at in range(len(tools)))}"]
    for at, tool in enumerate(tools):
        start = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '
        rules.append(f"body_{at}: {quoted(start)} {arguments_rule(tool, lark)} {quoted('}')}")
    return "\n".join(rules) + "\n"


def arguments_rule(tool: Tool, lark: Lark) -> str:
    return quoted(NO_ARGUMENTS) if tool.parameters is None else json_of(lark.schema(tool.parameters))


def answer_rule(rule: str, lark: Lark) -> str:
    """In most formats an answer is nothing but its text."""
    return rule


def repeated(call: str, joint: str, most: int) -> str:
    """One call to `most`, with `joint` between."""
    return call if most <= 1 else f"{call} ({quoted(joint)} {call}){{0,{most - 1}}}"


ANY_TEXT = r"/(.|\n)*/"
