"""Structured output (S1 to S18). The script is what a model would like to say; the grammar is the room's own.

What the grammar forbids of a script is left out, so a script shows what gets through.
"""

import asyncio
import json
from typing import Any

import pytest

from room.text.grammar import COMPILE_S
from tests.contract.rig import Rig, function, line

pytestmark = pytest.mark.anyio

ON = {"reasoning_effort": "low"}
OBJECT = {"type": "json_object"}


def schema(schema: Any, **members: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **members}}


def held(properties: dict[str, Any], **members: Any) -> dict[str, Any]:
    """The format of an object with these properties, all required."""
    return schema({"type": "object", "properties": properties, "required": list(properties), **members})


POINT = held({"x": {"type": "integer"}, "y": {"type": "integer"}})


async def got(rig: Rig, script: str, form: Any, **members: Any) -> Any:
    """The JSON that comes of a script, in both forms alike (S16)."""
    said = await rig.both(list(script), response_format=form, **members)
    assert said.finish == "stop", said
    assert "".join(said.pieces()) == said.content
    return json.loads(said.content or "")


@pytest.fixture(params=["rig", "thinker"])
def model(request: pytest.FixtureRequest) -> Rig:
    rig: Rig = request.getfixturevalue(request.param)
    return rig


@pytest.mark.parametrize("form", [None, {"type": "text"}])
async def test_S1_nothing_is_no_constraint(model: Rig, form: Any) -> None:
    assert await model.see(response_format=form) == await model.see()
    assert (await model.both(["free"], response_format=form)).content == "free"


async def test_S2_S16_an_object(model: Rig) -> None:
    assert await got(model, 'Sure! {"a": [1, {"b": null}]} Done.', OBJECT) == {"a": [1, {"b": None}]}
    assert model.seen["grammar"] == {
        "mode": None, "tools": [], "allowed": [], "most": 0, "format": "json_object", "schema": None
    }  # fmt: skip


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": False}, {"strict": None}])
async def test_S3_S16_a_schema_is_enforced_whatever_strict_says(model: Rig, strict: dict[str, Any]) -> None:
    form = schema(POINT["json_schema"]["schema"], **strict)
    assert await got(model, 'It is {"x": -1, "y": 20}, I think', form) == {"x": -1, "y": 20}


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": {"const": "42"}},
        {"type": "json_schema", "schema": {"const": "42"}},
        {"type": "json_schema", "json_schema": {"schema": {"const": "42"}}},
    ],
)
async def test_S3_S4_S11_B24_other_places_for_a_schema(rig: Rig, form: Any) -> None:
    assert await got(rig, "Hello", form) == "42"


@pytest.mark.parametrize(
    "form",
    [
        "json_object", 5, {}, {"type": "sound"}, {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": "x"}},
        {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "n" * 65, "schema": {}}},
    ],
)  # fmt: skip
async def test_S3_S4_malformed_formats(rig: Rig, form: Any) -> None:
    assert str((await rig.refused(response_format=form))["param"]).startswith("response_format")


@pytest.mark.parametrize(
    ("inner", "script", "value"),
    [
        pytest.param({"type": ["string", "null"]}, "null", None, id="type-list"),
        pytest.param({"enum": ["red", 5, None]}, "blue 5", 5, id="enum"),
        pytest.param({"const": {"a": 1}}, "anything", {"a": 1}, id="const"),
        pytest.param({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "[1, 2, 3]", [1, 2], id="items"),
        pytest.param({"prefixItems": [{"const": 1}], "items": False, "type": "array"}, "[1, 2]", [1], id="prefixItems"),
        pytest.param({"type": "string", "maxLength": 3}, '"abcdef"', "abc", id="maxLength"),
        pytest.param({"type": "string", "pattern": "^[a-c]+$"}, '"axbyc"', "abc", id="pattern"),
        pytest.param({"type": "string", "format": "date"}, '"2024-02-13"', "2024-02-13", id="format"),
        pytest.param({"type": "integer", "minimum": 5, "maximum": 9}, "37", 7, id="bounds"),
        pytest.param({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "no: true", None, id="anyOf"),
        pytest.param({"oneOf": [{"type": "boolean"}, {"type": "string"}]}, "true", True, id="oneOf"),
        pytest.param({"allOf": [{"type": "string"}, {"maxLength": 1}]}, '"xy"', "x", id="allOf"),
        pytest.param({"$ref": "#/$defs/d", "$defs": {"d": {"enum": ["a", "b"]}}}, '"cb"', "b", id="ref"),
        pytest.param({"type": "string", "title": "T", "examples": [1], "x-odd": 1}, '"t"', "t", id="annotations"),
    ],
)  # fmt: skip
async def test_S5_S8_S11_B25_keywords_are_enforced(rig: Rig, inner: Any, script: str, value: Any) -> None:
    assert await got(rig, script, schema(inner)) == value


@pytest.mark.parametrize(
    ("keyword", "inner"),
    [
        ("not", {"not": {"type": "string"}}),
        ("if", {"if": {"type": "string"}, "then": {"maxLength": 1}}),
        ("patternProperties", {"type": "object", "patternProperties": {"^a": {}}}),
        ("contains", {"type": "array", "contains": {"type": "string"}}),
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("multipleOf", {"type": "number", "multipleOf": 0.1}),
        ("$ref", {"$ref": "https://example.org/s"}),
        ("$ref", {"$ref": "#/$defs/none"}),
        ("pattern", {"type": "string", "pattern": "(?=a)b"}),
        ("pattern", {"type": "string", "pattern": "a\\"}),
        ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ],
)
async def test_S6_B23_B25_what_cannot_be_enforced_is_refused_by_name(rig: Rig, keyword: str, inner: Any) -> None:
    error = await rig.refused(response_format=held({"deep": inner}))
    assert error["code"] == "invalid_schema"
    assert error["param"].startswith("response_format")
    assert keyword in error["message"]
    assert "deep" in error["message"]


@pytest.mark.parametrize(
    "impossible",
    [
        False,
        {"enum": []},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "string", "pattern": "^[a-z]{5,}$", "maxLength": 3},
    ],
)
async def test_S7_S8_impossible_schemas(rig: Rig, impossible: Any) -> None:
    assert (await rig.refused(response_format=schema(impossible)))["code"] == "invalid_schema"
    assert (await rig.ask()).content == "ok", "the room lives on"


@pytest.mark.parametrize("keys", [["a"], []])
async def test_S8_B25_pattern_and_length_hold_together(rig: Rig, keys: list[str]) -> None:
    form = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}
    assert await got(rig, '"abcdefgh"', schema(form)) == "abc"


async def test_S9_B23a_enums_behind_references(rig: Rig) -> None:
    colours = {
        "type": "array", "items": {"$ref": "#/$defs/Paint"},
        "$defs": {
            "Paint": {"type": "object", "properties": {"c": {"$ref": "#/$defs/C"}}, "required": ["c"]},
            "C": {"enum": ["red", "blue"]},
        },
    }  # fmt: skip
    assert await got(rig, '[{"c": "green"}, {"c": "blue"}]', schema(colours)) in (
        [{"c": "red"}, {"c": "blue"}], [{"c": "red"}],
    )  # fmt: skip


async def test_S9_a_recursive_tree(rig: Rig) -> None:
    tree = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
                "required": ["v", "kids"],
            }
        },
    }
    text = '{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}'
    assert await got(rig, text, schema(tree)) == json.loads(text)


async def test_S10_keys_in_order_and_no_others(rig: Rig) -> None:
    both = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["b"]}
    assert list((await got(rig, '{"a": 1, "b": 2}', schema(both))).items()) == [("a", 1), ("b", 2)]
    assert await got(rig, '{"b": 2}', schema(both)) == {"b": 2}
    assert await got(rig, '{"b": 2, "c": 3}', schema(both)) == {"b": 2}
    assert await got(rig, '{"b": 2, "c": 3}', schema({**both, "additionalProperties": True})) == {"b": 2, "c": 3}
    assert await got(rig, '{"any": {"key": 1}}', schema({"type": "object"})) == {"any": {"key": 1}}


@pytest.mark.parametrize(
    ("form", "script", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "string"}, '"s"', "s"),
        ({"enum": ["yes", "no"]}, '"no"', "no"),
        ({"const": "42"}, "", "42"),
    ],
)
async def test_S11_any_top_level(rig: Rig, form: Any, script: str, value: Any) -> None:
    assert await got(rig, script, schema(form)) == value


async def test_S12_B44_blanks_and_digits_are_bounded(rig: Rig) -> None:
    blanks = " " * 30 + "\n" * 30
    said = await rig.both([*f'{{{blanks}"x":{blanks}{"7" * 40},{blanks}"y":{blanks}2{blanks}}}'], response_format=POINT)
    value = json.loads(said.content or "")
    assert value["y"] == 2
    assert len(str(value["x"])) <= 18
    assert len(said.content or "") < 60


async def test_S13_strings_are_clean(rig: Rig) -> None:
    value = await got(rig, '{"s": "a\x01\nb\\ud83d\\ude00 \U0001f9e9 \\u00e9"}', held({"s": {"type": "string"}}))
    assert value == {"s": "ab\U0001f600 \U0001f9e9 \u00e9"}


async def test_S14_B26_thoughts_are_free_and_the_answer_is_held(thinker: Rig, levels: Rig) -> None:
    for rig, start in ((thinker, ["<think>", "\n"]), (levels, [])):
        script = [*start, *"{not json", "\n", "</think>", "\n\n", *'well: {"x": 1, "y": 2}']
        said = await rig.both(script, response_format=POINT, **ON)
        assert said.reasoning == "{not json"
        assert json.loads(said.content or "") == {"x": 1, "y": 2}
        said = await rig.both([*'{"x": 1, "y": 2}'], response_format=POINT)
        assert (said.reasoning, json.loads(said.content or "")) == (None, {"x": 1, "y": 2})


async def test_S14_B26_B27a_thoughts_end_in_time_for_a_forced_answer(thinker: Rig, levels: Rig) -> None:
    for rig in (thinker, levels):
        script = [*"on and on " * 20, "</think>", *'{"x": 1, "y": 2}']
        said = await rig.both(script, response_format=POINT, max_tokens=60, **ON)
        assert json.loads(said.content or "") == {"x": 1, "y": 2}
        # 30 of the model's, and the line's end before the closing tag.
        assert 0 < said.usage["completion_tokens_details"]["reasoning_tokens"] <= 31
        assert (said.reasoning or "").startswith("on and on")


async def test_S15_P64_length_and_stop_cut_json(rig: Rig) -> None:
    script = list('{"x": 12345, "y": 2}')
    said = await rig.both(script, response_format=POINT, max_tokens=8)
    assert (said.content, said.finish) == ('{"x": 12', "length")
    said = await rig.both(script, response_format=POINT, stop="34")
    assert (said.content, said.finish) == ('{"x": 12', "stop")


@pytest.mark.parametrize(
    "heavy",
    [
        pytest.param({"enum": [f"value {number} of many" for number in range(2000)]}, id="2000-values"),
        pytest.param(
            {
                "type": "object",
                "properties": {f"key{n}": {"type": "string", "description": "d" * 90} for n in range(1500)},
            },
            id="200-kb",
        ),
        pytest.param({"type": "string", "pattern": "^(a{1,500}b{1,500}){1,500}$"}, id="pattern"),
    ],
)
async def test_S17_costly_schemas_are_answered_or_refused_in_time(rig: Rig, heavy: Any) -> None:
    """How soon a compiler's time is over, tests/room/text/test_grammar.py says."""
    assert COMPILE_S <= 2
    reply = await rig.post(response_format=schema(heavy), max_tokens=5)
    if reply.status_code != 200:
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] in ("schema_too_complex", "invalid_schema")


async def test_S17_fifty_levels(rig: Rig) -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"d": deep}, "required": ["d"]}
    reply = await rig.post(response_format=schema(deep), max_tokens=5)
    assert reply.status_code == 200 or reply.json()["error"]["code"] == "schema_too_complex"


async def test_S18_side_by_side_with_free_answers(rig: Rig) -> None:
    rig.play(line(*'Hi {"x": 1, "y": 2}'))
    forms = [POINT, None, OBJECT, POINT, None]
    said = await asyncio.gather(*(rig.ask(response_format=form) for form in forms))
    for form, each in zip(forms, said, strict=True):
        if form is None:
            assert each.content == 'Hi {"x": 1, "y": 2}'
        else:
            assert json.loads(each.content or "") == {"x": 1, "y": 2}


async def test_T11_required_keys_and_types_are_held(rig: Rig, thinker: Rig) -> None:
    tools = [function("move", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})]
    for model, script in (
        (rig, ['<tool_call>{"name": "nope", "arguments": {"m": "x", "n": "12"}}</tool_call>']),
        (thinker, ["<tool_call>", "\n", '{"name": "nope", "arguments": {"m": "x", "n": "12"}}', "\n", "</tool_call>"]),
    ):
        letters = [piece for text in script for piece in ([text] if text in ("<tool_call>", "</tool_call>") else text)]
        said = await model.both(letters, tools=tools, tool_choice="required")
        (call,) = said.calls
        assert call["function"]["name"] == "move"
        assert isinstance(json.loads(call["function"]["arguments"])["n"], int)


async def test_T23_tools_beside_a_schema(model: Rig) -> None:
    tools = [function("now")]
    said = await model.both([*'{"x": 1, "y": 2}'], tools=tools, response_format=POINT)
    assert (json.loads(said.content or ""), said.calls) == ({"x": 1, "y": 2}, [])
    body = '{"name": "now", "arguments": {}}'
    script = ["<tool_call>", "\n", body, "\n", "</tool_call>"] if model.text.traits.format.OPENER else [
        f"<tool_call>{body}</tool_call>"
    ]  # fmt: skip
    said = await model.both(script, tools=tools, response_format=POINT)
    assert [call["function"]["name"] for call in said.calls] == ["now"]
    assert (said.content, said.finish) == (None, "tool_calls")
