"""Llama 3: the whole answer is `{"name": "f", "parameters": {...}}`; several calls stand behind one another."""

import json
from collections.abc import Sequence
from typing import Any

from room.text.segments import ARGUMENTS, CALL, TEXT, Segment
from room.text.tools import base
from room.text.tools.base import (
    ANY_TEXT,
    Call,
    JsonObject,
    Lark,
    Look,
    NotACall,
    Parser,
    Tool,
    json_bodies,
    json_of,
    read_header,
    repeated,
)

NAME = "llama_json"
ALWAYS = False
SHOWN: tuple[str, ...] = ()
OPENER = ""
JOINT = "; "


def detect(look: Look) -> bool:
    return look.reacts and '"parameters":' in look.call and "<tool_call>" not in look.call


def render_answer(content: str, calls: Sequence[Call]) -> str:
    return JOINT.join([*([content] if content or not calls else []), *map(render_call, calls)])


def render_call(call: Call) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "parameters": {call.text}}}'


def grammar(tools: Sequence[Tool], most: int, lark: Lark) -> str:
    """Calls that stand against JSON answers are written as schemas: of texts that begin alike, the grammar's lexer
    would take the longest piece for the only one."""
    calls = " | ".join(json_of(_schema(tool, lark)) for tool in tools)
    return (
        f"calls: {repeated('call', JOINT, most)}\n"
        f"call: {calls}\n"
        f"free_or_calls: TEXT | {repeated('body', JOINT, most)}\n"
        # An answer may be JSON, but not begin like a call without being one.
        f'TEXT: {ANY_TEXT} & ~/\\{{"name": "(.|\\n)*/\n'
    ) + json_bodies(tools, "parameters", lark)


def _schema(tool: Tool, lark: Lark) -> dict[str, Any]:
    """A call's schema around that of its arguments, which keeps its place at the root."""
    arguments = dict(lark.schema(tool.parameters))
    root: dict[str, Any] = {key: arguments.pop(key) for key in ("x-guidance", "$defs") if key in arguments}
    properties = {"name": {"const": tool.name}, "parameters": arguments}
    shape = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {**root, **shape}


answer_rule = base.answer_rule


def parser(tools: Sequence[Tool]) -> Parser:
    return _Parser(tools)


class _Parser:
    """A call stands at the very beginning, or is text."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.complete = 0
        self.held = ""
        self._object: JsonObject | None = None
        self._closing = False  # its arguments are whole
        self._plain = False

    @property
    def inside(self) -> bool:
        return self._object is not None

    def feed(self, text: str) -> list[Segment]:
        self.held += text
        out: list[Segment] = []
        while self._step(out):
            pass
        return [segment for segment in out if segment[1]]

    def flush(self, *, cut: bool) -> list[Segment]:
        held, self.held = self.held, ""
        begun = self._object is not None or self.complete or (cut and '"name"' in held)
        return [(TEXT, held)] if held and not begun else []

    def _step(self, out: list[Segment]) -> bool:
        if self._plain:
            out.append((TEXT, self.held))
            self.held = ""
            return False
        if self._object is not None:
            return self._arguments(out)
        return self._header(out)

    def _header(self, out: list[Segment]) -> bool:
        body = self.held.lstrip("; \n") if self.complete else self.held
        try:
            header = read_header(body, self._tools)
        except NotACall:
            if self.complete:
                self.held = ""
            self._plain = not self.complete
            return self._plain
        if header is None:
            return False
        out.append((CALL, header.name))
        self.held = body[header.length :]
        self._object, self._closing = JsonObject(), False
        return True

    def _arguments(self, out: list[Segment]) -> bool:
        """The arguments, and the brace that closes the call."""
        if self._object is None or not self.held:
            return False
        if not self._closing:
            end = self._object.feed(self.held)
            out.append((ARGUMENTS, self.held[:end]))
            self.held = self.held[end:] if end is not None else ""
            self._closing = end is not None
            return self._closing
        self.held = self.held.lstrip()
        if not self.held:
            return False
        self.held = self.held.removeprefix("}")
        self._object = None
        self.complete += 1
        return True
