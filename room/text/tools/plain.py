"""Our own way for models whose template knows no tools: told in the system turn, called as JSON between text tags.

Nothing of it is a token of the vocabulary, so a grammar of the whole answer finds where a call begins.
"""

import json
from collections.abc import Sequence

from room.text.tools import base
from room.text.tools.base import ANY_TEXT, Call, JsonParser, Lark, Look, Parser, Tool, json_bodies, repeated

NAME = "plain"
ALWAYS = False
SHOWN: tuple[str, ...] = ()
OPENER = ""
OPEN, CLOSE = "<tool_call>", "</tool_call>"

INSTRUCTIONS = (
    "You can call functions. They are described here, one JSON object in each line:\n{tools}\n\n"
    "To call a function, write its name and its arguments as a JSON object between tags, and nothing after it:\n"
    '<tool_call>{{"name": "function name", "arguments": {{"argument": "value"}}}}</tool_call>\n'
    "The result comes back between <tool_response> tags. Call a function only when it helps to answer."
)


def detect(look: Look) -> bool:
    """It takes every model."""
    return True


def instructions(definitions: Sequence[object]) -> str:
    """What the system turn says of the tools."""
    return INSTRUCTIONS.format(tools="\n".join(json.dumps(each, ensure_ascii=False) for each in definitions))


def render_result(text: str) -> str:
    """A function's result, as part of a user turn."""
    return f"<tool_response>\n{text}\n</tool_response>"


def render_answer(content: str, calls: Sequence[Call]) -> str:
    return "\n".join([*([content] if content or not calls else []), *map(render_call, calls)])


def render_call(call: Call) -> str:
    return f'{OPEN}{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.text}}}{CLOSE}'


def grammar(tools: Sequence[Tool], most: int, lark: Lark) -> str:
    more = f' ("\\n" call){{0,{most - 1}}}' if most > 1 else ""
    return (
        f"calls: {repeated('call', chr(10), most)}\n"
        f'call: "{OPEN}" body "{CLOSE}"\n'
        f'free_or_calls: TEXT | before body "{CLOSE}"{more}\n'
        f"TEXT: {ANY_TEXT}\n"
        f"before[lazy]: /(.|\\n)*{OPEN}/\n"
    ) + json_bodies(tools, "arguments", lark)


answer_rule = base.answer_rule


def parser(tools: Sequence[Tool]) -> Parser:
    return JsonParser(tools, OPEN, CLOSE)
