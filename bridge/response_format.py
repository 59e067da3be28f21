"""`response_format`: free text, one JSON object, or JSON that fits a schema."""

import re
from dataclasses import dataclass

from bridge import members
from bridge.errors import InvalidRequest
from bridge.members import JsonObject
from protos import room_pb2

MAX_SCHEMA = 1_500_000
"""Code points of a schema as compact JSON. How much of that it can hold answers to is the room's word."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_SCHEMA = "a JSON schema, which is an object or a boolean"


@dataclass(frozen=True)
class ResponseFormat:
    kind: room_pb2.AnswerFormat.ValueType = room_pb2.ANSWER_FORMAT_TEXT
    schema: str = ""
    """JSON text of ANSWER_FORMAT_SCHEMA"""


def read_response_format(data: JsonObject) -> ResponseFormat:
    """Raises InvalidRequest. Whether a schema can be enforced is the room's to say."""
    value = data.get("response_format")
    if value is None:
        return ResponseFormat()
    if not isinstance(value, dict):
        raise members.invalid_type("response_format", "an object")
    match value.get("type"):
        case None:
            raise members.missing("response_format.type")
        case "text":
            return ResponseFormat()
        case "json_object" if value.get("schema") is None:
            return ResponseFormat(room_pb2.ANSWER_FORMAT_JSON)
        case "json_object":
            return _with_schema(value, "response_format.schema")
        case "json_schema":
            return _read_json_schema(value)
        case _:
            raise members.invalid_value("response_format.type", "text, json_object or json_schema")


def _read_json_schema(value: JsonObject) -> ResponseFormat:
    """OpenAI's form, or llama.cpp's with the schema beside the type."""
    at = "response_format.json_schema"
    described = value.get("json_schema")
    if described is None and value.get("schema") is not None:
        return _with_schema(value, "response_format.schema")
    if described is None:
        raise members.missing(at)
    if not isinstance(described, dict):
        raise members.invalid_type(at, "an object with name and schema")
    name = members.text(described, "name", f"{at}.name")
    if name is not None and not _NAME.fullmatch(name):
        raise members.invalid_value(f"{at}.name", "1 to 64 of A-Z, a-z, 0-9, _ and -")
    return _with_schema(described, f"{at}.schema")


def _with_schema(holder: JsonObject, at: str) -> ResponseFormat:
    schema = holder.get("schema")
    if schema is None:
        raise members.missing(at)
    if not isinstance(schema, dict | bool):
        raise members.invalid_type(at, _SCHEMA)
    text = members.compact(schema, at)
    if len(text) > MAX_SCHEMA:
        sentence = f"{at} holds {len(text)} characters of JSON; at most {MAX_SCHEMA:,} are accepted."
        raise InvalidRequest(sentence, param="response_format", code="schema_too_complex")
    return ResponseFormat(room_pb2.ANSWER_FORMAT_SCHEMA, text)
