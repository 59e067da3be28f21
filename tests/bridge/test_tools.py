"""What may be asked of tools, and what the room is told of it."""

import json
from typing import Any

import pytest

from bridge.tools import MAX_CALLS, MAX_PARAMETERS, MAX_TOOLS
from protos import room_pb2
from tests.bridge.conftest import USER, Bridge
from tests.bridge.fake_room import CTX

pytestmark = pytest.mark.anyio

Tool = dict[str, Any]

SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}, "a": {"type": "int"}}}


def tool(name: Any, **function: Any) -> Tool:
    return {"type": "function", "function": {"name": name, **function}}


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def named(name: Any) -> Tool:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: Any, *names: str) -> Tool:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


TWO = [tool("f", parameters=SCHEMA), tool("g")]


async def refusal(bridge: Bridge, *tools: Any, **members: Any) -> tuple[str, str]:
    error = await bridge.refused(tools=list(tools), **members)
    assert error["type"] == "invalid_request_error"
    return error["param"], error["code"]


async def seen(bridge: Bridge, *tools: Any, **members: Any) -> room_pb2.Tools:
    asked: room_pb2.GenerateRequest = await bridge.seen(tools=list(tools), **members)
    return asked.tools


# ---------------------------------------------------------------- tools


async def test_T1_T26_a_tool_reaches_the_room_as_it_was_sent(bridge: Bridge) -> None:
    odd = {"function": {"strict": True, **tool("w", description="caf\u00e9 \U0001f9e9", parameters=SCHEMA)["function"]}}
    first = {**odd, "type": "function", "cache_control": {"type": "ephemeral"}}
    asked = await seen(bridge, first, tool("a"))
    assert [given.name for given in asked.tools] == ["w", "a"]
    assert asked.tools[0].definition == compact(first)
    assert asked.tools[0].parameters == compact(SCHEMA)
    assert (asked.mode, list(asked.allowed), asked.most) == (room_pb2.TOOL_MODE_AUTO, [], MAX_CALLS)


@pytest.mark.parametrize("name", ["f", "x" * 128, "mcp__server.tool:v1-2", "7"])
async def test_T1_names(bridge: Bridge, name: str) -> None:
    assert (await seen(bridge, tool(name))).tools[0].name == name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (None, "missing_required_parameter"),
        ("", "missing_required_parameter"),
        (5, "invalid_type"),
        ("x" * 129, "invalid_value"),
        ("two words", "invalid_value"),
        ("caf\u00e9", "invalid_value"),
        ("f\n", "invalid_value"),
        ("\ud83d", "invalid_value"),
    ],
)
async def test_T1_other_names_are_refused(bridge: Bridge, name: Any, code: str) -> None:
    assert await refusal(bridge, tool("f"), tool(name)) == ("tools[1].function.name", code)


async def test_T1_two_tools_of_one_name_are_refused(bridge: Bridge) -> None:
    assert await refusal(bridge, tool("f"), tool("g"), tool("f")) == ("tools[2].function.name", "invalid_value")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"type": "function"}, "tools[0].function"),
        ({"type": "function", "function": "f"}, "tools[0].function"),
        ({"type": "function", "function": {}}, "tools[0].function.name"),
        (tool("f", description=5), "tools[0].function.description"),
        ({"type": "function", "name": "f", "parameters": {}}, "tools[0].function"),
    ],
)
async def test_T1_what_is_no_function_is_refused(bridge: Bridge, value: Any, param: str) -> None:
    assert (await refusal(bridge, value))[0] == param


async def test_T1_as_many_tools_as_that(bridge: Bridge) -> None:
    await bridge.room.tell(ctx=100_000)
    await bridge.until(ctx=100_000)
    many = [tool(f"f{index}") for index in range(MAX_TOOLS + 1)]
    assert len((await seen(bridge, *many[:-1])).tools) == MAX_TOOLS == 1024
    assert await refusal(bridge, *many) == ("tools", "invalid_value")


async def test_T1_parameters_of_that_size(bridge: Bridge) -> None:
    await bridge.room.tell(ctx=100_000)
    await bridge.until(ctx=100_000)
    fits = {"type": "object", "description": ""}
    fits["description"] = "\U0001f9e9" * (MAX_PARAMETERS - len(compact(fits)))
    assert (await seen(bridge, tool("f", parameters=fits))).tools[0].parameters == compact(fits)
    fits["description"] += "x"
    assert await refusal(bridge, tool("f", parameters=fits)) == ("tools[0].function.parameters", "invalid_value")


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}])
async def test_T2_T12_a_tool_without_arguments(bridge: Bridge, parameters: Any) -> None:
    assert (await seen(bridge, tool("f", parameters=parameters))).tools[0].parameters == ""
    assert (await seen(bridge, tool("f"))).tools[0].parameters == ""


@pytest.mark.parametrize("parameters", ["x", 5, [], True])
async def test_T2_other_parameters_are_refused(bridge: Bridge, parameters: Any) -> None:
    assert await refusal(bridge, tool("f", parameters=parameters)) == ("tools[0].function.parameters", "invalid_type")


async def test_T2_what_a_schema_says_never_refuses_a_tool(bridge: Bridge) -> None:
    for schema in (
        {"type": "int"},
        {"$ref": "http://example.org"},
        {"not": {}, "if": 5},
        {"type": "object", "properties": {}},
    ):
        for strict in (True, False, None, "yes"):
            asked = await seen(bridge, tool("f", parameters=schema, strict=strict))
            assert asked.tools[0].parameters == compact(schema)


async def test_T1_half_a_surrogate_pair_and_numbers_beyond_json(bridge: Bridge) -> None:
    asked = await seen(bridge, tool("f", description="\ud83d", parameters={"\ude00": 1}))
    assert "\ufffd" in asked.tools[0].definition
    assert asked.tools[0].parameters == '{"\ufffd":1}'
    body = b'{"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f",'
    reply = await bridge.post(body + b' "parameters": {"maximum": 1e999}}}]}')
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[0]")


async def test_P123_other_kinds_of_tools_are_refused(bridge: Bridge) -> None:
    for kind in ("custom", "web_search", "code_interpreter", 5):
        given = {"type": kind, "custom": {"name": "g"}}
        assert await refusal(bridge, tool("f"), given) == ("tools[1].type", "unsupported_value")
    assert await refusal(bridge, {"function": {"name": "f"}}) == ("tools[0].type", "missing_required_parameter")
    assert await refusal(bridge, 5) == ("tools[0]", "invalid_type")
    assert (await bridge.refused(tools="x"))["param"] == "tools"
    without: list[Tool] = []
    for tools in (without, TWO):
        assert (await bridge.refused(tools=tools, tool_choice={"type": "custom"}))["param"] == "tool_choice"


async def test_T3_B17_B18_no_tools_are_no_tools(bridge: Bridge) -> None:
    plain = await bridge.seen()
    assert plain.tools.mode == room_pb2.TOOL_MODE_UNSPECIFIED
    for choice in ("auto", "none", None):
        for tools in (list[Any](), None):
            asked = await bridge.seen(tools=tools, tool_choice=choice, parallel_tool_calls=False)
            asked.request_id = plain.request_id
            assert asked == plain


@pytest.mark.parametrize("choice", ["required", named("f"), allowed("auto", "f"), allowed("required", "f")])
async def test_T3_T7_a_call_cannot_be_asked_for_without_tools(bridge: Bridge, choice: Any) -> None:
    cases: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": None}]
    for members in cases:
        assert (await bridge.refused(tool_choice=choice, **members))["param"] == "tool_choice"


# ---------------------------------------------------------------- tool_choice, parallel_tool_calls


async def test_T4_T5_T6_T7_T8_T9_which_calls_the_answer_may_hold(bridge: Bridge) -> None:
    auto, required = room_pb2.TOOL_MODE_AUTO, room_pb2.TOOL_MODE_REQUIRED
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, (auto, [], 16)),
        ({"tool_choice": None}, (auto, [], 16)),
        ({"tool_choice": "auto"}, (auto, [], 16)),
        ({"tool_choice": "required"}, (required, [], 16)),
        ({"tool_choice": named("g")}, (required, ["g"], 1)),
        ({"tool_choice": allowed("auto", "g")}, (auto, ["g"], 16)),
        ({"tool_choice": allowed("required", "g", "f", "g")}, (required, ["g", "f"], 16)),
        ({"parallel_tool_calls": True}, (auto, [], 16)),
        ({"parallel_tool_calls": None}, (auto, [], 16)),
        ({"parallel_tool_calls": False}, (auto, [], 1)),
        ({"parallel_tool_calls": False, "tool_choice": "required"}, (required, [], 1)),
        ({"parallel_tool_calls": False, "tool_choice": allowed("auto", "f")}, (auto, ["f"], 1)),
        ({"parallel_tool_calls": True, "tool_choice": named("f")}, (required, ["f"], 1)),
    ]
    for members, expected in cases:
        asked = await seen(bridge, *TWO, **members)
        assert (asked.mode, list(asked.allowed), asked.most) == expected, members
        assert [given.name for given in asked.tools] == ["f", "g"], "the prompt is the same"


async def test_T5_none_leaves_the_tools_out(bridge: Bridge) -> None:
    asked = await bridge.seen(tools=TWO, tool_choice="none")
    assert asked.tools == room_pb2.Tools(mode=room_pb2.TOOL_MODE_NONE)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        "bogus",
        "any",
        "",
        5,
        [],
        True,
        named("h"),
        named(None),
        named(""),
        {"type": "function"},
        {"type": "function", "function": "f"},
        {"type": "function", "name": "f"},
        {"type": "web_search"},
        {"type": "allowed_tools"},
        allowed("auto"),
        allowed("none", "f"),
        allowed(None, "f"),
        allowed("auto", "f", "h"),
        {"type": "allowed_tools", "mode": "auto", "tools": [named("f")]},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "f"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "name": "f"}]}},
    ],
)
async def test_T7_T8_other_choices_are_refused(bridge: Bridge, choice: Any) -> None:
    param, code = await refusal(bridge, *TWO, tool_choice=choice)
    assert param == "tool_choice"
    assert code in ("invalid_value", "invalid_type")


@pytest.mark.parametrize("tools", [[], TWO])
async def test_T9_parallel_tool_calls_is_a_boolean(bridge: Bridge, tools: list[Tool]) -> None:
    odd: list[Any] = ["yes", 1, 0, [], {}]
    for value in odd:
        assert (await bridge.refused(tools=tools, parallel_tool_calls=value))["param"] == "parallel_tool_calls"


async def test_P133_a_choice_is_looked_at_before_the_tools(bridge: Bridge) -> None:
    assert (await refusal(bridge, 5, tool_choice="bogus"))[0] == "tool_choice"
    assert (await refusal(bridge, 5, tool_choice=named("f")))[0] == "tools[0]"


# ---------------------------------------------------------------- with the rest of a request


async def test_T17_a_history_of_calls_needs_no_tools(bridge: Bridge) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "gone", "arguments": "{}"}}
    history = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "r"}]
    cases: list[dict[str, Any]] = [{}, {"tools": TWO}, {"tools": TWO, "tool_choice": "none"}]
    for members in cases:
        asked = await bridge.seen(history, **members)
        assert [made.name for made in asked.turns[1].calls] == ["gone"]
        assert (asked.turns[2].text, asked.turns[2].call_id) == ("r", "c")


async def test_T23_tools_and_a_schema_for_the_text(bridge: Bridge) -> None:
    asked = await bridge.seen(tools=TWO, response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}})
    assert (len(asked.tools.tools), asked.format) == (2, room_pb2.ANSWER_FORMAT_SCHEMA)


async def test_T25_fifty_tools_with_long_schemas(bridge: Bridge) -> None:
    await bridge.room.tell(ctx=32_768)
    await bridge.until(ctx=32_768)
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(70)}}
    asked = await seen(bridge, *(tool(f"tool_{index}", parameters=schema) for index in range(50)))
    assert sum(len(given.definition) for given in asked.tools) > 80_000


async def test_P134_P135_tools_count_as_text(bridge: Bridge) -> None:
    empty = len(compact(tool("f", description="")))
    left = 8 * CTX - len("hi") - empty
    await seen(bridge, tool("f", description="x" * left))
    big = tool("f", description="x" * (left + 1))
    error = await bridge.refused(tools=[big])
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert "messages and tools" in error["message"]
    await bridge.seen(tools=[big], tool_choice="none")


async def test_P134_tools_count_against_the_text_of_any_context(bridge: Bridge) -> None:
    await bridge.room.tell(ctx=1_000_000)
    await bridge.until(ctx=1_000_000)
    big = [tool(f"f{index}", description="x" * 750_000) for index in range(2)]
    await bridge.seen(tools=big[:1])
    assert (await bridge.refused(tools=big))["code"] == "context_length_exceeded"
