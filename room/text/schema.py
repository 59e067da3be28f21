"""JSON schemas of callers, as the grammar compiler is to enforce them.

A caller's schema is read into shapes (schema_read, schema_shape), and those are written as a schema in which nothing is
left to the compiler's own reading (schema_write). What comes out goes into a grammar: `%json` and the schema as JSON.
A little more than the schema says is settled on the way: keys come in the schema's order, an object with `properties`
has no others unless additionalProperties says so, and blanks and digits have limits, so that every answer ends.
"""

from typing import Any

from room.text.schema_errors import InvalidSchema, SchemaTooComplex
from room.text.schema_read import Reader
from room.text.schema_shape import Place
from room.text.schema_write import guidance, write

__all__ = ["InvalidSchema", "SchemaTooComplex", "json_object", "relaxed", "strict"]

_ANY_OBJECT = Place("#object", raw={"type": "object"})
_ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "id",
    "$comment",
    "$defs",
    "definitions",
}


def strict(schema: object, param: str) -> dict[str, Any]:
    """A schema for an answer. What validates under the result validates under `schema`.

    `param` is the request's parameter that holds it. May take a second. Raises InvalidSchema where anything in it
    cannot be enforced or nothing fits it, and SchemaTooComplex.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidSchema(param, "", "#", "must be an object or a boolean")
    reader = Reader(schema, param, lenient=False)
    return write(reader, reader.root)


def relaxed(schema: object) -> dict[str, Any]:
    """A schema for the arguments of a tool with these `parameters`: always of an object.

    Never refuses: what cannot be enforced is left open. Parameters that say nothing at all mean no arguments.
    """
    if schema is None or (isinstance(schema, dict) and _says_nothing(schema)):
        return {"x-guidance": guidance(), "type": "object", "properties": {}, "additionalProperties": False}
    reader = Reader(schema, "tools", lenient=True)
    try:
        return write(reader, (*reader.root, _ANY_OBJECT))
    except (InvalidSchema, SchemaTooComplex):
        return json_object()


def json_object() -> dict[str, Any]:
    """A schema for any JSON object."""
    return {"x-guidance": guidance(), "type": "object"}


def _says_nothing(schema: dict[Any, Any]) -> bool:
    return schema.get("type", "object") == "object" and set(schema) <= _ANNOTATIONS | {"type"}
