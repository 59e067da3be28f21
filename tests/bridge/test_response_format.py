"""`response_format`: what may be asked for, and what the room is told of it."""

import json
from typing import Any

import grpc
import pytest

from bridge.response_format import MAX_SCHEMA
from protos import room_pb2
from tests.bridge.conftest import Bridge, error_of
from tests.bridge.fake_room import Refuse

pytestmark = pytest.mark.anyio

TEXT, JSON, SCHEMA = room_pb2.ANSWER_FORMAT_TEXT, room_pb2.ANSWER_FORMAT_JSON, room_pb2.ANSWER_FORMAT_SCHEMA

PERSON = {
    "type": "object",
    "required": ["z", "a"],
    "properties": {"z": {"const": "caf\u00e9"}, "a": {"type": "integer"}},
}


async def seen(bridge: Bridge, value: Any) -> tuple[int, str]:
    asked = await bridge.seen(response_format=value)
    return asked.format, asked.schema


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def described(schema: Any, **members: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema, **members}}


@pytest.mark.parametrize("value", [None, {"type": "text"}, {"type": "text", "schema": PERSON}])
async def test_S1_no_constraint(bridge: Bridge, value: Any) -> None:
    assert await seen(bridge, value) == (TEXT, "")


@pytest.mark.parametrize("value", [{"type": "json_object"}, {"type": "json_object", "schema": None}])
async def test_S2_a_json_object(bridge: Bridge, value: Any) -> None:
    assert await seen(bridge, value) == (JSON, "")


@pytest.mark.parametrize(
    "members", [{}, {"name": "person"}, {"name": None}, {"name": "A-b_" + "9" * 60}, {"strict": True},
                {"strict": False}, {"strict": None}, {"description": "d"}]
)  # fmt: skip
async def test_S3_T26_a_schema_reaches_the_room_with_its_keys_in_order(bridge: Bridge, members: dict[str, Any]) -> None:
    assert await seen(bridge, described(PERSON, **members)) == (SCHEMA, compact(PERSON))


@pytest.mark.parametrize("name", ["", "x" * 65, "two words", "a.b", "caf\u00e9", "f\n", 5, ["x"]])
async def test_S3_other_names_are_refused(bridge: Bridge, name: Any) -> None:
    error = await bridge.refused(response_format=described(PERSON, name=name))
    assert error["param"] == "response_format.json_schema.name"


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ("text", "", "invalid_type"),
        (5, "", "invalid_type"),
        ([], "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"type": "sound"}, ".type", "invalid_value"),
        ({"type": 5}, ".type", "invalid_value"),
        ({"type": ["text"]}, ".type", "invalid_value"),
        ({"type": "json_schema"}, ".json_schema", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": "x"}, ".json_schema", "invalid_type"),
        ({"type": "json_schema", "json_schema": {}}, ".json_schema.schema", "missing_required_parameter"),
        (described(None, name="n"), ".json_schema.schema", "missing_required_parameter"),
        (described("x"), ".json_schema.schema", "invalid_type"),
        (described([PERSON]), ".json_schema.schema", "invalid_type"),
        (described(1), ".json_schema.schema", "invalid_type"),
        ({"type": "json_object", "schema": "x"}, ".schema", "invalid_type"),
        ({"type": "json_schema", "schema": 5}, ".schema", "invalid_type"),
    ],
)
async def test_S4_other_formats_are_refused(bridge: Bridge, value: Any, param: str, code: str) -> None:
    error = await bridge.refused(response_format=value)
    assert (error["param"], error["code"]) == (f"response_format{param}", code)


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_S4_B24_a_schema_beside_the_type(bridge: Bridge, kind: str) -> None:
    assert await seen(bridge, {"type": kind, "schema": PERSON}) == (SCHEMA, compact(PERSON))


async def test_S4_a_schema_may_be_a_boolean(bridge: Bridge) -> None:
    assert await seen(bridge, described(True)) == (SCHEMA, "true")
    assert await seen(bridge, {"type": "json_object", "schema": False}) == (SCHEMA, "false")
    assert await seen(bridge, described({})) == (SCHEMA, "{}")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("code", ["invalid_schema", "schema_too_complex"])
async def test_S6_S7_S17_what_the_room_refuses_is_a_400_before_any_200(bridge: Bridge, code: str, stream: bool) -> None:
    sentence = "uniqueItems at /properties/a cannot be enforced; leave it out."
    bridge.room.script = [Refuse(code, sentence, "response_format", status=grpc.StatusCode.INVALID_ARGUMENT)]
    reply = await bridge.ask(response_format=described(PERSON), stream=stream)
    assert reply.status_code == 400
    assert error_of(reply) == {
        "message": sentence, "type": "invalid_request_error", "param": "response_format", "code": code
    }  # fmt: skip


async def test_S17_a_schema_beyond_all_measure_never_reaches_the_room(bridge: Bridge) -> None:
    fits = {"description": "x" * (MAX_SCHEMA - len(compact({"description": ""})))}
    assert (await seen(bridge, described(fits)))[0] == SCHEMA
    error = await bridge.refused(response_format=described({"description": fits["description"] + "x"}))
    assert (error["param"], error["code"]) == ("response_format", "schema_too_complex")


async def test_S17_nesting_beyond_the_parser_is_no_crash(bridge: Bridge) -> None:
    for depth in (100, *range(900, 1000, 9)):
        schema = b'{"items":' * depth + b"{}" + b"}" * depth
        body = (
            b'{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object", "schema": '
        )
        reply = await bridge.post(body + schema + b"}}")
        assert reply.status_code in (200, 400)
