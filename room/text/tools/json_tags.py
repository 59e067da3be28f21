"""JSON between <tool_call> tags that are tokens of the vocabulary: Hermes, Qwen2.5, Qwen3."""

import json
from collections.abc import Sequence

from room.text.tools import base
from room.text.tools.base import Call, JsonParser, Lark, Look, Parser, Tool, json_bodies, repeated

NAME = "json_tags"
ALWAYS = False
SHOWN: tuple[str, ...] = ()
OPENER = "<tool_call>"
CLOSER = "</tool_call>"


def detect(look: Look) -> bool:
    return OPENER in look.call + look.system and OPENER in look.names and '"name"' in look.call


def render_answer(content: str, calls: Sequence[Call]) -> str:
    return "\n".join([*([content] if content or not calls else []), *map(render_call, calls)])


def render_call(call: Call) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{OPENER}\n{{"name": {name}, "arguments": {call.text}}}\n{CLOSER}'


def grammar(tools: Sequence[Tool], most: int, lark: Lark) -> str:
    opener = lark.special(OPENER)
    return (
        f'calls: {repeated("call", chr(10), most)}\ncall: {opener} "\\n" body "\\n" {lark.special(CLOSER)}\n'
    ) + json_bodies(tools, "arguments", lark)


answer_rule = base.answer_rule


def parser(tools: Sequence[Tool]) -> Parser:
    return JsonParser(tools, OPENER, CLOSER)
