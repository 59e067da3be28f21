"""Structured output: what is let through is what the schema says, and what cannot be enforced is refused."""

import json
import os
import random
from datetime import date, datetime
from ipaddress import IPv6Address
from typing import Any

import pytest

from room.text.grammar import Grammars
from room.text.schema import InvalidSchema, SchemaTooComplex, json_object, relaxed, strict
from room.text.tokenizer import TextModel
from tests.room.text.schemas import KEYWORDS, REFUSED, obj, random_schema, used_by_people, validator
from tests.room.text.walks import json_grammar, prefix_taken, random_walk, takes

SOAK = bool(os.environ.get("POOLED_SOAK"))
"""All of everything, for minutes; else a sample."""

PARAM = "response_format.json_schema.schema"


@pytest.fixture(scope="module")
def grammars(tiny_text: TextModel) -> Grammars:
    return Grammars(tiny_text)


def enforced(grammars: Grammars, schema: Any) -> Any:
    return grammars.compile_now(json_grammar(strict(schema, PARAM)))


@pytest.mark.parametrize(
    ("schema", "fitting", "others"), [case[1:] for case in KEYWORDS], ids=[case[0] for case in KEYWORDS]
)
def test_S5_each_keyword_lets_through_what_it_says(
    schema: Any, fitting: list[str], others: list[str], grammars: Grammars, tiny_text: TextModel
) -> None:
    grammar = enforced(grammars, schema)
    for text in fitting:
        assert takes(grammar.matcher(), tiny_text, text), prefix_taken(grammar.matcher(), tiny_text, text)
    for text in others:
        assert not takes(grammar.matcher(), tiny_text, text), text


@pytest.mark.parametrize(
    ("schema", "keyword", "path"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_S6_S7_what_cannot_be_enforced_is_refused(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        strict(schema, PARAM)
    assert (refusal.value.param, refusal.value.keyword, refusal.value.path) == (PARAM, keyword, path)
    assert PARAM in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_S2_json_object_is_an_object(grammars: Grammars, tiny_text: TextModel) -> None:
    grammar = grammars.compile_now(json_grammar(json_object()))
    assert takes(grammar.matcher(), tiny_text, '{"a": [1, {"b": null}]}')
    assert not takes(grammar.matcher(), tiny_text, "[1]")
    assert not takes(grammar.matcher(), tiny_text, ' {"a":1}')


@pytest.mark.parametrize("name", ["x", "a/b~c", 'quo"ted', "ключ", "back\\slash"])
def test_S6_paths_are_json_pointers(name: str) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        strict(obj(**{name: {"not": {}}}), PARAM)
    assert refusal.value.path == "#/properties/" + name.replace("~", "~0").replace("/", "~1")


def test_S10_keys_come_in_the_order_of_the_schema(grammars: Grammars, tiny_text: TextModel) -> None:
    schema = {"properties": {"z": {}, "m": {}}, "allOf": [{"properties": {"b": {}, "a": {}}}], "required": ["a", "z"]}
    grammar = enforced(grammars, schema)
    assert takes(grammar.matcher(), tiny_text, '{"z":1,"m":2,"b":3,"a":4}')
    assert not takes(grammar.matcher(), tiny_text, '{"b":3,"a":4,"z":1}')


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a":1,"b":[1,2]}', True),
        ('{"a": 1, "b": [1, 2]}', True),
        ('{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}', True),
        ('{\n\t"a": 1\n}', True),
        ('{"a":  1}', False),
        ('{\n\n"a":1}', False),
        ('{"a":1}\n', False),
        ('{\t"a":1}', False),
    ],
)
def test_S12_blanks_are_few(text: str, fits: bool, grammars: Grammars, tiny_text: TextModel) -> None:
    schema = obj(a={"type": "integer"}, b={"type": "array", "items": {"type": "integer"}})
    assert takes(enforced(grammars, schema).matcher(), tiny_text, text) is fits


@pytest.mark.parametrize("seed", range(40 if SOAK else 6))
def test_S12_numbers_keep_to_their_bounds(seed: int, grammars: Grammars, tiny_text: TextModel) -> None:
    rng = random.Random(seed)
    low, high = sorted(round(rng.uniform(-30, 30), rng.choice([0, 1, 2, 4])) for _ in range(2))
    schema = {
        "type": "number",
        rng.choice(["minimum", "exclusiveMinimum"]): low,
        rng.choice(["maximum", "exclusiveMaximum"]): high,
    }
    grammar = enforced(grammars, schema)
    near = [bound + step for bound in (low, high) for step in (0, 0.5, -0.5, 0.1, -0.1, 0.01, -0.01, 0.0001, -0.0001)]
    for value in [*near, *(rng.uniform(-40, 40) for _ in range(10))]:
        text = f"{value:.6f}".rstrip("0").rstrip(".")
        if text != "-0":
            assert takes(grammar.matcher(), tiny_text, text) is validator(schema).is_valid(json.loads(text)), text


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "object"}, {"type": "string", "minLength": 3}])
def test_S13_strings_hold_whole_characters_and_no_raw_control_ones(
    schema: Any, grammars: Grammars, tiny_text: TextModel
) -> None:
    grammar = enforced(grammars, schema)
    around = '{"a":%s}' if schema["type"] == "object" else "%s"
    for text, fits in (
        ('"\\ud83d\\ude00é😀\\n"', True),
        ('"\\ud83dabc"', False),
        ('"abc\\ude00"', False),
        ('"\\ud83d\\ud83d"', False),
        ('"ab\nc"', False),
        ('"ab\x00c"', False),
    ):
        assert takes(grammar.matcher(), tiny_text, around % text) is fits, text
    rng = random.Random(13)
    for _ in range(20 if SOAK else 5):
        json.dumps(json.loads(random_walk(grammar.matcher(), tiny_text, rng)), ensure_ascii=False).encode()


@pytest.mark.parametrize("name", ["date", "time", "date-time", "ipv6", "email", "uuid", "ipv4"])
def test_S5_formats_are_what_parsers_take(name: str, grammars: Grammars, tiny_text: TextModel) -> None:
    parse = {
        "date": date.fromisoformat,
        "time": lambda text: datetime.fromisoformat(f"2024-01-01T{text}"),
        "date-time": datetime.fromisoformat,
        "ipv6": IPv6Address,
    }
    grammar = enforced(grammars, {"type": "string", "format": name})
    rng = random.Random(5)
    for _ in range(200 if SOAK else 30):
        text = json.loads(random_walk(grammar.matcher(), tiny_text, rng))
        assert validator({"format": name}).is_valid(text)
        parse.get(name, str)(text)


def test_S17_large_schemas_are_answered(grammars: Grammars) -> None:
    nested: Any = {"type": "string"}
    for level in range(50):
        nested = {"type": "array", "items": nested} if level % 2 else obj("below", below=nested)
    flat = obj(**{f"property_{at}": {"type": "string", "description": "d" * 150} for at in range(1000)})
    assert len(json.dumps(flat)) > 200_000
    for schema in (nested, flat, {"enum": [f"value {at}" for at in range(2000)]}):
        assert enforced(grammars, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {
            "allOf": [
                {"anyOf": [obj(f"a{at}{group}", **{f"a{at}{group}": {}}) for at in range(12)]} for group in range(6)
            ]
        },
        {
            "$defs": {f"d{at}": obj(next={"$ref": f"#/$defs/d{at + 1}"}) for at in range(400)} | {"d400": {}},
            "$ref": "#/$defs/d0",
        },
        {"type": "array", "items": {}, "minItems": 10**9},
    ],
    ids=["alternatives", "depth", "items"],
)
def test_S17_what_grows_without_end_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaTooComplex):
        strict(schema, PARAM)


def test_S7_nesting_in_place_without_end_is_refused() -> None:
    schema: Any = {}
    for _ in range(200):
        schema = {"anyOf": [schema, {"type": "null"}]}
    with pytest.raises(SchemaTooComplex):
        strict(schema, PARAM)


# ---- schemas of people, and random ones


def walk_and_validate(grammars: Grammars, text: TextModel, schema: Any, rng: random.Random, walks: int) -> bool:
    """Random texts validate; False if the schema is refused, with a reason."""
    try:
        grammar = enforced(grammars, schema)
    except InvalidSchema:
        return False
    check = validator(schema)
    for _ in range(walks):
        written = random_walk(grammar.matcher(), text, rng)
        error = next(check.iter_errors(json.loads(written)), None)
        assert error is None, f"{written!r} does not fit {json.dumps(schema)}: {error.message if error else ''}"
    return True


@pytest.mark.parametrize("part", range(10 if SOAK else 2))
def test_S9_schemas_of_people_are_enforced_or_refused(part: int, grammars: Grammars, tiny_text: TextModel) -> None:
    rng = random.Random(part)
    schemas = used_by_people()[part::10] if SOAK else used_by_people()[part * 11 :: 40]
    outcomes = [walk_and_validate(grammars, tiny_text, schema, rng, 5 if SOAK else 2) for schema in schemas]
    assert sum(outcomes) > len(outcomes) / 2


@pytest.mark.parametrize("seed", range(40 if SOAK else 4))
def test_S3_random_schemas_are_enforced_or_refused(seed: int, grammars: Grammars, tiny_text: TextModel) -> None:
    rng = random.Random(seed)
    enforced_ones = 0
    for _ in range(50 if SOAK else 15):
        schema = random_schema(rng)
        enforced_ones += walk_and_validate(grammars, tiny_text, schema, rng, 4 if SOAK else 2)
    assert enforced_ones


# ---- tools


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"type": "object", "title": "T", "properties": {}}])
def test_T2_parameters_that_say_nothing_mean_no_arguments(
    schema: Any, grammars: Grammars, tiny_text: TextModel
) -> None:
    grammar = grammars.compile_now(json_grammar(relaxed(schema)))
    assert takes(grammar.matcher(), tiny_text, "{}")
    assert not takes(grammar.matcher(), tiny_text, '{"a":1}')


def test_T2_a_nested_object_takes_any_keys(grammars: Grammars, tiny_text: TextModel) -> None:
    grammar = grammars.compile_now(json_grammar(relaxed(obj("o", o={"type": "object"}))))
    assert takes(grammar.matcher(), tiny_text, '{"o":{"any":1}}')


@pytest.mark.parametrize("schema", [case[1] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_T2_no_schema_refuses_a_tool(schema: Any, grammars: Grammars, tiny_text: TextModel) -> None:
    grammar = grammars.compile_now(json_grammar(relaxed(schema)))
    written = random_walk(grammar.matcher(), tiny_text, random.Random(1))
    assert isinstance(json.loads(written), dict)


def test_T2_only_the_part_that_is_not_known_is_relaxed(grammars: Grammars, tiny_text: TextModel) -> None:
    schema = obj("a b", a={"type": "int"}, b={"type": "integer", "not": {"const": 0}, "multipleOf": 7})
    grammar = grammars.compile_now(json_grammar(relaxed(schema)))
    assert takes(grammar.matcher(), tiny_text, '{"a":"any","b":1}')
    assert not takes(grammar.matcher(), tiny_text, '{"a":"any","b":"x"}')
    assert not takes(grammar.matcher(), tiny_text, '{"a":1}')


def test_T2_relaxing_never_forbids_keys(grammars: Grammars, tiny_text: TextModel) -> None:
    schema = {**obj(a={"type": "integer"}), "patternProperties": {"^x": {}}, "additionalProperties": False}
    grammar = grammars.compile_now(json_grammar(relaxed(schema)))
    assert takes(grammar.matcher(), tiny_text, '{"a":1,"x1":2}')
    assert not takes(grammar.matcher(), tiny_text, '{"a":"no"}')


@pytest.mark.parametrize("seed", range(20 if SOAK else 3))
def test_T11_arguments_fit_where_the_schema_can_be_enforced(
    seed: int, grammars: Grammars, tiny_text: TextModel
) -> None:
    rng = random.Random(seed)
    for schema in rng.sample(used_by_people(), 10):
        written = random_walk(grammars.compile_now(json_grammar(relaxed(schema))).matcher(), tiny_text, rng)
        assert isinstance(json.loads(written), dict)
        try:
            strict(schema, PARAM)
        except InvalidSchema:
            continue
        if schema.get("type") == "object":
            assert validator(schema).is_valid(json.loads(written))
