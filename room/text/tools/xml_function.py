"""Functions and parameters as tags, values as plain text: Qwen3-Coder and Qwen3.5.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

Arguments become JSON text as they come. A value that its schema knows as a string is one, whatever it looks like; any
other is JSON, and can be told only when it is whole.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from room.text.segments import ARGUMENTS, Segment, TagFinder
from room.text.tools import base
from room.text.tools.base import (
    Call,
    Lark,
    Look,
    NotACall,
    Parser,
    Schema,
    TaggedParser,
    Tool,
    json_of,
    quoted,
    repeated,
)

NAME = "xml_function"
ALWAYS = False
SHOWN: tuple[str, ...] = ()
OPENER = "<tool_call>"
CLOSER = "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=([^>\n]{1,1024})>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,1024})>(?=(?P<next>.))", re.DOTALL)
_VALUE_ENDS = "</parameter>"
_INLINE_END = TagFinder([_VALUE_ENDS])
_LINE_END = TagFinder(["\n" + _VALUE_ENDS])
"""Values stand on lines of their own, so that they may hold the closing tag itself."""
_ARGUMENTS_END = "</function>"
_MOST_OTHERS = 32
"""Parameters that a schema does not list."""
_SPELLED = {"True": "true", "False": "false", "None": "null"}
"""Templates write the values of Python in its own spelling, and models copy them."""


def detect(look: Look) -> bool:
    return "<function=" in look.call and OPENER in look.names


def render_answer(content: str, calls: Sequence[Call]) -> str:
    return "\n".join([*([content + "\n"] if content and calls else [content] * (not calls)), *map(render_call, calls)])


def render_call(call: Call) -> str:
    if call.value is None:
        return f"{OPENER}\n<function={call.name}>\n{call.text}\n{_ARGUMENTS_END}\n{CLOSER}"
    parameters = "".join(f"<parameter={key}>\n{_plain(value)}\n{_VALUE_ENDS}\n" for key, value in call.value.items())
    return f"{OPENER}\n<function={call.name}>\n{parameters}{_ARGUMENTS_END}\n{CLOSER}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


answer_rule = base.answer_rule


def parser(tools: Sequence[Tool]) -> Parser:
    return _Parser(tools, OPENER, CLOSER)


class _Parser(TaggedParser):
    def __init__(self, tools: Sequence[Tool], opener: str, closer: str) -> None:
        super().__init__(tools, opener, closer)
        self._properties: dict[str, Schema] = {}
        self._seen: set[str] = set()
        self._value = _Value(True)
        self._value_end = _INLINE_END

    def _begin(self) -> str | None:
        rest = self.held[len(self._opener) :]
        found = _FUNCTION.match(rest)
        if not found:
            if len(rest) > 1100 or not _may_become(rest, "<function="):
                raise NotACall
            return None
        if found[1] not in self.tools:
            raise NotACall
        self.held = rest[found.end() :]
        self._properties = _properties(self.tools[found[1]].parameters)
        self._seen = set()
        return found[1]

    def _arguments(self, out: list[Segment]) -> bool:
        """Between parameters."""
        body = self.held.lstrip()
        if body.startswith(_ARGUMENTS_END):
            self.held = body[len(_ARGUMENTS_END) :]
            out.append((ARGUMENTS, "}" if self._seen else "{}"))
            self._state = self._end
            return True
        found = _PARAMETER.match(self.held)
        if found:
            key = found[1]
            self.held = self.held[found.end() :]
            out.append((ARGUMENTS, ("{" if not self._seen else ", ") + json.dumps(key, ensure_ascii=False) + ": "))
            self._seen.add(key)
            self._value = _Value(self._properties.get(key, True))
            out.append((ARGUMENTS, self._value.begin()))
            self._value_end = _LINE_END if found["next"] == "\n" else _INLINE_END
            self._state = self._value_start if found["next"] == "\n" else self._parameter
            return True
        if not found and body and not any(_may_become(body, tag) for tag in ("<parameter=", _ARGUMENTS_END)):
            self.held = body[1:]  # nothing stands here
            return True
        return False

    def _value_start(self, out: list[Segment]) -> bool:
        """The line end before a value is none of it; before an empty one it may be the one before the closing tag."""
        end = "\n" + _VALUE_ENDS
        if len(self.held) < len(end) and end.startswith(self.held):
            return False
        if not self.held.startswith(end):
            self.held = self.held[1:]
        self._state = self._parameter
        return True

    def _parameter(self, out: list[Segment]) -> bool:
        found = self._value_end.find(self.held)
        if found is None:
            cut = self._value_end.safe(self.held)
            out.append((ARGUMENTS, self._value.more(self.held[:cut])))
            self.held = self.held[cut:]
            return False
        at, tag = found
        out.append((ARGUMENTS, self._value.more(self.held[:at]) + self._value.end()))
        self.held = self.held[at + len(tag) :]
        self._state = self._arguments
        return True


def _may_become(text: str, tag: str) -> bool:
    body = text.lstrip()
    return tag.startswith(body) or body.startswith(tag)


class _Value:
    """One argument on its way from plain text to JSON."""

    def __init__(self, schema: Schema) -> None:
        self._types = types_of(schema)
        self._string = self._types == {"string"}
        self._text = ""

    def begin(self) -> str:
        return '"' if self._string else ""

    def more(self, text: str) -> str:
        if self._string:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        self._text += text
        return ""

    def end(self) -> str:
        if self._string:
            return '"'
        text = self._text.strip()
        text = _SPELLED.get(text, text)
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return json.dumps(self._text, ensure_ascii=False)
        if "string" in self._types and _type_of(value) not in self._types:
            return json.dumps(self._text, ensure_ascii=False)
        return text


def _refuse(name: str) -> float:
    raise ValueError(name)


_ALL_TYPES = {"string", "number", "integer", "boolean", "null", "array", "object"}


def types_of(schema: Schema) -> set[str]:
    """The JSON types that a schema allows, as far as it says so."""
    if not isinstance(schema, dict):
        return set(_ALL_TYPES)
    if "enum" in schema and isinstance(schema["enum"], list):
        return {_type_of(value) for value in schema["enum"]}
    if "const" in schema:
        return {_type_of(schema["const"])}
    said = schema.get("type")
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    known = {name for name in names if name in _ALL_TYPES}
    if known:
        return known | ({"integer"} if "number" in known else set())
    branches = [branch for key in ("anyOf", "oneOf") for branch in _list(schema.get(key))]
    return set().union(*map(types_of, branches)) if branches else set(_ALL_TYPES)


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)]


def _properties(parameters: Schema | None) -> dict[str, Schema]:
    found = parameters.get("properties") if isinstance(parameters, dict) else None
    return {key: _resolved(value, parameters) for key, value in found.items()} if isinstance(found, dict) else {}


def _resolved(schema: Schema, root: Schema) -> Schema:
    """A property's schema, with what it points to in the whole one."""
    for _ in range(8):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        found: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        schema = found if found is not None else True
    return schema


# ---------------------------------------------------------------- grammar


def grammar(tools: Sequence[Tool], most: int, lark: Lark) -> str:
    names = " | ".join(f"call_{at}" for at in range(len(tools)))
    values = _Values()
    functions = [rule for at, tool in enumerate(tools) for rule in _function(f"call_{at}", tool, lark, values)]
    rules = [
        f"calls: {repeated('call', chr(10), most)}",
        f'call: {lark.special(OPENER)} "\\n" body "\\n" {lark.special(CLOSER)}',
        f"body: {names}",
        "text[lazy]: /(.|\\n)*\\n<\\/parameter>/",
    ]
    return "\n".join([*rules, *functions, *values.rules]) + "\n"


def _function(rule: str, tool: Tool, lark: Lark, values: "_Values") -> Iterable[str]:
    schema = {} if tool.parameters is None else lark.schema(tool.parameters)
    shape = _root(schema)
    parts = []
    for number, (key, value) in enumerate(shape.get("properties", {}).items()):
        name = f"{rule}_{number}"
        yield f"{name}: {quoted(f'<parameter={key}>{chr(10)}')} {values.rule(value, schema)} {quoted(chr(10))}"
        parts.append(name if key in shape.get("required", ()) else f"{name}?")
    rest = shape.get("additionalProperties", tool.parameters is not None)
    if rest is not False:
        value = values.rule(rest if isinstance(rest, dict) else {}, schema)
        yield f'{rule}_other: "<parameter=" /[^>\\n]+/ ">\\n" {value} "\\n"'
        parts.append(f"{rule}_other{{0,{_MOST_OTHERS}}}")
    start, end = quoted(f"<function={tool.name}>\n"), quoted(_ARGUMENTS_END)
    yield f"{rule}: {' '.join([start, *parts, end])}"


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """What a written schema refers to as its whole."""
    found = schema
    for step in schema.get("$ref", "#")[2:].split("/"):
        found = found[step] if step else found
    return found


class _Values:
    """Rules for values with the closing tag on a line of its own: one for all that have the same schema."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self._names: dict[str, str] = {}

    def rule(self, value: Schema, schema: dict[str, Any]) -> str:
        """The name of the rule for `value`, which may refer to definitions of the written `schema`."""
        own = {**_around(value, schema), **value}
        return self._names.get(key := json.dumps(own)) or self._names.setdefault(key, self._new(own))

    def _new(self, schema: dict[str, Any]) -> str:
        whole = _root(schema)
        alternatives = whole.get("anyOf", [whole])
        strings = [one for each in alternatives if "string" in types_of(one := _root({**schema, **each}))]
        if not strings:
            return self._add(f"{json_of(schema)} {_END}")
        if any(_is_free(each) for each in strings):
            return "text"  # what is no value of another type is one of this
        others = [each for each in alternatives if "string" not in types_of(_root({**schema, **each}))]
        names = [self._string(each) for each in strings]
        around: dict[str, Any] = {key: schema[key] for key in ("x-guidance", "$defs") if key in schema}
        names += [self._add(f"{json_of({**around, **each})} {_END}") for each in others]
        return names[0] if len(names) == 1 else self._add(" | ".join(names))

    def _string(self, schema: dict[str, Any]) -> str:
        """A string that not every text is."""
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        patterns = [each["pattern"] for each in (schema, *schema.get("allOf", ())) if "pattern" in each]
        matching = [f"/{each.removeprefix('^').removesuffix('$').replace('/', chr(92) + '/')}/" for each in patterns]
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if choices:
            matching.insert(0, f"({' | '.join(quoted(_plain(choice)) for choice in choices)})")
        if not matching:
            # The closing tag must not begin in what is needed.
            rest = "" if most is None else most - least
            return self._add(f"/[^<\\n]{{{least}}}(.|\\n){{0,{rest}}}\\n<\\/parameter>/", lazy=True)
        if not choices:
            matching.append(f"/[^\\n]{{{least},{'' if most is None else most}}}/")
        token = f"VALUE_{len(self.rules)}"
        self.rules.append(f"{token}: {' & '.join(matching)}")
        return self._add(f"{token} {_END}")

    def _add(self, rule: str, *, lazy: bool = False) -> str:
        name = f"value_{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {rule}")
        return name


_END = quoted("\n" + _VALUE_ENDS)


def _is_free(string: dict[str, Any]) -> bool:
    return not {"enum", "const", "minLength", "maxLength", "pattern", "allOf"} & string.keys()


def _around(value: Schema, schema: dict[str, Any]) -> dict[str, Any]:
    """What `value` needs of the whole schema: how it is read, and the definitions it leads to."""
    definitions: dict[str, Any] = {}
    waiting: list[Any] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            name = str(found.get("$ref", "")).removeprefix("#/$defs/")
            if name in schema.get("$defs", {}) and name not in definitions:
                definitions[name] = schema["$defs"][name]
                waiting.append(definitions[name])
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
    around: dict[str, Any] = {"x-guidance": schema["x-guidance"]} if "x-guidance" in schema else {}
    return {**around, "$defs": definitions} if definitions else around
