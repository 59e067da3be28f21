"""From what a caller asks of the answer's form to what the answer is held to: tools, formats, schemas, one grammar."""

import asyncio
import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protos import room_pb2
from room.errors import InvalidSchema, InvalidValue, SchemaTooComplex
from room.text import schema_errors
from room.text.grammar import COMPILE_S, Grammar, Grammars
from room.text.guide import Rules
from room.text.schema import json_object, relaxed, strict
from room.text.tokenizer import TextModel
from room.text.tools import Tool
from room.text.tools.base import Lark, Schema, json_of

MOST_CALLS = 16
"""In one answer."""

_REMEMBERED = 256
"""Sets of tools that are known to be too much for the compiler: agents send theirs with every request."""

_TOOLS_S = 6.0
"""Seconds for the grammar of a set of tools, of which one answer after the other makes use."""

_ANY_OBJECT: Schema = {"type": "object", "additionalProperties": True}

_SCHEMA = "response_format"
"""The request's parameter that holds a schema."""


@dataclass(frozen=True)
class Form:
    """What an answer may be: rules, the tools that can be called in it, and how many calls it has at most."""

    rules: Rules
    tools: tuple[Tool, ...] = ()
    most: int = 0


class FormMaker:
    """Makes forms for one model."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._grammars = Grammars(text)
        format_ = text.traits.format
        self._format = format_
        self._left_open: OrderedDict[Any, frozenset[str]] = OrderedDict()
        """Tools whose arguments are any object, by the set they were sent in."""
        self._opener = text.token_named(format_.OPENER) if format_.OPENER else None

    def warm_up(self) -> None:
        """Build what every grammar needs: blocks for a second or more, which the first request would wait."""
        self._grammars.warm_up()

    async def make(self, request: room_pb2.GenerateRequest) -> Form:
        """The form of the answer to a request. Compiling it takes up to 2 s, of tools 6 s, beside the event loop.

        Raises InvalidSchema, SchemaTooComplex, InvalidValue.
        """
        asked = request.tools
        active = shown_tools(request)
        names = set(asked.allowed)
        tools = tuple(_tool(tool) for tool in active if not names or tool.name in names)
        if names - {tool.name for tool in active}:
            raise InvalidValue("tool_choice", "tool_choice names a tool that is not in tools")
        most = min(asked.most or MOST_CALLS, MOST_CALLS) if tools else 0
        required = asked.mode == room_pb2.TOOL_MODE_REQUIRED
        if required and not tools:
            raise InvalidValue("tool_choice", "tool_choice requires a call, and there are no tools")
        answer = None if required else await asyncio.to_thread(_answer_rule, request)
        if not tools and answer is None:
            return Form(Rules(forbidden=self._opener))
        grammar = await self._compile(tools, most, answer, required)
        trigger = self._opener if tools and answer is None and not required else None
        held = required or answer is not None
        forbidden = None if tools else self._opener
        return Form(Rules(grammar, trigger, held_to_form=held, forbidden=forbidden), tools, most)

    async def _compile(self, tools: Sequence[Tool], most: int, answer: str | None, required: bool) -> Grammar:
        """No schema of a tool is refused: what is too much for the compiler is left open, and for others enforced."""
        everything = frozenset(tool.name for tool in tools)
        asked = (tuple(map(_fingerprint, tools)), most, answer, required)
        left_open = self._left_open.get(asked, frozenset())
        while True:
            try:
                return await self._try(tools, most, answer, required, left_open)
            except (schema_errors.InvalidSchema, schema_errors.SchemaTooComplex) as error:
                if left_open == everything:
                    raise _refusal(error, _SCHEMA if answer is not None else "tools") from error
                if isinstance(error, schema_errors.TakesTooLong):
                    left_open = everything  # for this once
                    continue
            failing = frozenset() if left_open else await asyncio.to_thread(self._fail_alone, tools)
            left_open = self._left_open[asked] = failing or everything
            if len(self._left_open) > _REMEMBERED:
                self._left_open.popitem(last=False)

    def _fail_alone(self, tools: Sequence[Tool]) -> frozenset[str]:
        """Names of the tools that the compiler cannot take even one by one."""
        failing = set()
        for tool in tools:
            try:
                self._grammars.compile_now(self._write([tool], 1, None, True, frozenset()))
            except (schema_errors.InvalidSchema, schema_errors.SchemaTooComplex):
                failing.add(tool.name)
        return frozenset(failing)

    async def _try(
        self, tools: Sequence[Tool], most: int, answer: str | None, required: bool, left_open: frozenset[str]
    ) -> Grammar:
        lark = await asyncio.to_thread(self._write, tools, most, answer, required, left_open)
        grammar = await self._grammars.compile(lark, _TOOLS_S if answer is None else COMPILE_S)
        await asyncio.to_thread(_begin, grammar)
        return grammar

    def _write(
        self, tools: Sequence[Tool], most: int, answer: str | None, required: bool, left_open: frozenset[str]
    ) -> str:
        """The grammar of the answer after its thoughts; where calls have an opener, of calls alone: it begins there."""
        lark = Lark(self._grammars.special, relaxed_once)
        bound = [Tool(tool.name, _ANY_OBJECT) if tool.name in left_open else tool for tool in tools]
        calls = self._format.grammar(bound, most, lark) if tools else ""
        if answer is not None:
            reply = f"reply: {self._format.answer_rule('json_answer', lark)}\njson_answer: {answer}\n"
            return ("start: reply | calls\n" if tools else "start: reply\n") + reply + calls
        free = not required and not self._opener
        return f"start: {'free_or_calls' if free else 'calls'}\n{calls}"


def shown_tools(request: room_pb2.GenerateRequest) -> Sequence[room_pb2.Tool]:
    """The tools that the model is told of."""
    return request.tools.tools if request.tools.mode >= room_pb2.TOOL_MODE_AUTO else ()


def _begin(grammar: Grammar) -> None:
    """Go as far as there is no choice: what cannot even begin is refused before the answer does.

    Raises schema_errors.SchemaTooComplex.
    """
    matcher = grammar.matcher()
    while forced := matcher.forced():
        if not all(map(matcher.accept, forced)):
            raise schema_errors.SchemaTooComplex
    matcher.mask()


def _tool(tool: room_pb2.Tool) -> Tool:
    try:
        return Tool(tool.name, json.loads(tool.parameters) if tool.parameters else None)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("tools", f"the parameters of tool {tool.name!r} are not JSON") from error


def _answer_rule(request: room_pb2.GenerateRequest) -> str | None:
    """The Lark of the answer's text; None: any text."""
    if request.format == room_pb2.ANSWER_FORMAT_TEXT:
        return None
    if request.format == room_pb2.ANSWER_FORMAT_JSON:
        return json_of(json_object())
    try:
        return json_of(strict(json.loads(request.schema), _SCHEMA))
    except (schema_errors.InvalidSchema, schema_errors.SchemaTooComplex) as error:
        raise _refusal(error, _SCHEMA) from error
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(_SCHEMA, "the schema is not JSON") from error


def _refusal(error: Exception, param: str) -> InvalidSchema | SchemaTooComplex:
    kind = SchemaTooComplex if isinstance(error, schema_errors.SchemaTooComplex) else InvalidSchema
    return kind(param, str(error))


def _fingerprint(tool: Tool) -> bytes:
    return hashlib.sha256(json.dumps([tool.name, tool.parameters]).encode()).digest()


def relaxed_once(schema: Schema) -> dict[str, Any]:
    """The same again for the same tool: agents send theirs with every request."""
    return _relaxed(json.dumps(schema))


@functools.lru_cache(maxsize=1024)
def _relaxed(text: str) -> dict[str, Any]:
    return relaxed(json.loads(text))
