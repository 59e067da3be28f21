"""What a request says of tools: the functions the model may call, and which calls its answer may hold."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bridge import members
from bridge.errors import InvalidRequest
from bridge.members import JsonObject
from protos import room_pb2

MAX_TOOLS = 1024
MAX_PARAMETERS = 32_000
"""Code points of one tool's parameters as compact JSON."""

MAX_CALLS = 16
"""Calls of one answer."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""Wider than OpenAI's: bridges to MCP servers send long and dotted names."""

_NO_ARGUMENTS: tuple[JsonObject, ...] = ({}, {"type": "object"})

_MODES = {"auto": room_pb2.TOOL_MODE_AUTO, "required": room_pb2.TOOL_MODE_REQUIRED}

_CHOICES = "auto, none, required, a function or allowed_tools"


@dataclass(frozen=True)
class Tool:
    name: str
    definition: str
    """the tool as the caller sent it, as compact JSON: templates show it in the caller's order of keys"""
    parameters: str
    """the JSON schema of its arguments; '' when it takes none"""

    def to_room(self) -> room_pb2.Tool:
        return room_pb2.Tool(name=self.name, definition=self.definition, parameters=self.parameters)


@dataclass(frozen=True)
class Tools:
    """The tools of a request. With TOOL_MODE_NONE there are none: they would reach neither prompt nor answer."""

    tools: tuple[Tool, ...] = ()
    mode: room_pb2.ToolMode.ValueType = room_pb2.TOOL_MODE_UNSPECIFIED
    allowed: tuple[str, ...] = ()
    """names that may be called; none: all of them"""
    most: int = 0
    """calls in one answer"""

    @property
    def size(self) -> int:
        """Code points that reach the prompt."""
        return sum(len(tool.definition) for tool in self.tools)

    def to_room(self) -> room_pb2.Tools:
        return room_pb2.Tools(
            tools=[tool.to_room() for tool in self.tools], mode=self.mode, allowed=self.allowed, most=self.most
        )


@dataclass(frozen=True)
class _Choice:
    """`tool_choice` by itself, before the tools are known."""

    mode: room_pb2.ToolMode.ValueType
    allowed: tuple[str, ...] = ()
    one: bool = False

    @property
    def needs_tools(self) -> bool:
        return bool(self.allowed) or self.mode == room_pb2.TOOL_MODE_REQUIRED


def read_tools(data: JsonObject, parallel: bool) -> Tools:
    """`tools` and `tool_choice` of a request; `parallel`: whether an answer may hold several calls.

    Raises InvalidRequest.
    """
    choice = _read_choice(data.get("tool_choice"))
    tools = tuple(_read_each(members.sequence(data, "tools")))
    if not tools:
        if choice.needs_tools:
            raise members.invalid_value("tool_choice", "auto or none when there are no tools")
        return Tools()
    if not {tool.name for tool in tools}.issuperset(choice.allowed):
        raise members.invalid_value("tool_choice", "made of functions that are in tools")
    if choice.mode == room_pb2.TOOL_MODE_NONE:
        return Tools(mode=choice.mode)
    return Tools(tools, choice.mode, choice.allowed, 1 if choice.one or not parallel else MAX_CALLS)


# ---------------------------------------------------------------- tool_choice


def _read_choice(value: object) -> _Choice:
    match value:
        case None | "auto":
            return _Choice(room_pb2.TOOL_MODE_AUTO)
        case "none":
            return _Choice(room_pb2.TOOL_MODE_NONE)
        case "required":
            return _Choice(room_pb2.TOOL_MODE_REQUIRED)
        case {"type": "function", "function": {"name": str(name)}}:
            return _Choice(room_pb2.TOOL_MODE_REQUIRED, (name,), one=True)
        case {"type": "allowed_tools", "allowed_tools": allowed}:
            return _read_allowed(allowed)
        case str() | dict():
            raise members.invalid_value("tool_choice", _CHOICES)
        case _:
            raise members.invalid_type("tool_choice", _CHOICES)


def _read_allowed(value: object) -> _Choice:
    match value:
        case {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
            return _Choice(_MODES[mode], tuple(dict.fromkeys(map(_read_reference, tools))))
        case _:
            raise members.invalid_value("tool_choice", "allowed_tools with mode auto or required and one tool or more")


def _read_reference(tool: object) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
        case _:
            raise members.invalid_value("tool_choice", "allowed_tools with functions by their names")


# ---------------------------------------------------------------- tools


def _read_each(raw: Iterable[Any]) -> Iterator[Tool]:
    seen: set[str] = set()
    for index, value in enumerate(raw):
        at = f"tools[{index}]"
        if index >= MAX_TOOLS:
            raise members.invalid_value("tools", f"an array of at most {MAX_TOOLS} tools")
        tool = _read_tool(value, at)
        if tool.name in seen:
            raise members.invalid_value(f"{at}.function.name", "a name that no tool before it has")
        seen.add(tool.name)
        yield tool


def _read_tool(value: object, at: str) -> Tool:
    if not isinstance(value, dict):
        raise members.invalid_type(at, "an object")
    _check_type(value.get("type"), f"{at}.type")
    function = value.get("function")
    if function is None:
        raise members.missing(f"{at}.function")
    if not isinstance(function, dict):
        raise members.invalid_type(f"{at}.function", "an object with name, description and parameters")
    members.text(function, "description", f"{at}.function.description")
    return Tool(
        name=_read_name(function, f"{at}.function.name"),
        definition=members.compact(value, at),
        parameters=_read_parameters(function.get("parameters"), f"{at}.function.parameters"),
    )


def _check_type(kind: object, at: str) -> None:
    if kind == "function":
        return
    if kind is None:
        raise members.missing(at)
    raise InvalidRequest(f'{at} must be "function".', param=at, code="unsupported_value")


def _read_name(function: JsonObject, at: str) -> str:
    name = members.text(function, "name", at)
    if not name:
        raise members.missing(at)
    if not _NAME.fullmatch(name):
        raise members.invalid_value(at, "1 to 128 of A-Z, a-z, 0-9 and _ . : -")
    return name


def _read_parameters(value: object, at: str) -> str:
    """The schema's text; what is in it is the room's business. `strict` changes nothing: it always holds."""
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise members.invalid_type(at, "an object")
    if value in _NO_ARGUMENTS:
        return ""
    schema = members.compact(value, at)
    if len(schema) > MAX_PARAMETERS:
        raise members.invalid_value(at, f"at most {MAX_PARAMETERS:,} characters of JSON")
    return schema
