"""Schemas to test with: one by one by keyword, of the kinds people use, and at random."""

# Tables read best with a case on a line, and people still write Optional and Union.
# ruff: noqa: E501, UP007, UP045

import enum
import random
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import jsonschema
from pydantic import BaseModel, ConfigDict, Field, create_model

Schema = Any


def obj(required: str = "", /, **properties: Schema) -> dict[str, Schema]:
    """An object schema; `required` names keys, divided by blanks."""
    return {"type": "object", "properties": properties, **({"required": required.split()} if required else {})}


STRING, INTEGER, NUMBER, BOOLEAN, NULL = ({"type": name} for name in ("string", "integer", "number", "boolean", "null"))

TREE = {
    "$defs": {"node": obj("value", value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/node"}})},
    "$ref": "#/$defs/node",
}
LIST = obj("value next", value=STRING, next={"anyOf": [{"$ref": "#"}, NULL]})
SHAPE = {
    "oneOf": [
        obj("kind radius", kind={"const": "circle"}, radius={"type": "number", "minimum": 0}),
        obj("kind side", kind={"const": "square"}, side={"type": "number", "minimum": 0}),
    ]
}

KEYWORDS: list[tuple[str, Schema, list[str], list[str]]] = [
    ("type string", STRING, ['""', '"a"', '"é😀"', r'"\u00e9"', r'"\ud83d\ude00"', r'"\n\"\\"'], ["1", '"a', r'"\ud83d"', '"\n"', r'"\x"', "''"]),
    ("type integer", INTEGER, ["0", "-1", "42", "123456789012345678"], ["1.0", "1e3", "01", "+1", "1234567890123456789", '"1"']),
    ("type number", NUMBER, ["0", "-1.5", "1e3", "2.5E-3"], [".5", "1.", "01", "NaN", "Infinity", "0x1"]),
    ("type boolean", BOOLEAN, ["true", "false"], ["True", "1", "null"]),
    ("type null", NULL, ["null"], ["None", "0", '""']),
    ("type list", {"type": ["string", "null"]}, ['"a"', "null"], ["1", "true"]),
    ("type integer or number", {"type": ["integer", "number"]}, ["1", "1.5"], ['"1"']),
    ("nullable", {"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
    ("nothing", {}, ["1", '{"a": [null, {"b": 1.5}]}', '"x"', "[]"], ["tru", "{]"]),
    ("true", True, ["1", "[]"], ["[1,]"]),
    ("annotations", {"title": "t", "description": "d", "default": 1, "examples": [1], "$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "$comment": "c", "deprecated": True, "readOnly": True, "x-mine": 1, "type": "boolean"}, ["true"], ["1"]),
    ("enum", {"enum": ["a", 1, None, True, 1.5]}, ['"a"', "1", "null", "true", "1.5"], ["false", "2", '"b"', "1.50", '"true"']),
    ("enum of arrays and objects", {"enum": [[1, "a"], {"k": {"n": None}}, [], {}]}, ['[1, "a"]', '{"k":{"n":null}}', "[]", "{}"], ["[1]", '["a", 1]', '{"k":{}}', "[[]]"]),
    ("const", {"const": "42"}, ['"42"'], ["42", '"4"', '"421"']),
    ("const object", {"const": {"a": [1, {"b": 2}]}}, ['{"a":[1,{"b":2}]}'], ['{"a":[1]}', "{}"]),
    ("const whole float", {"const": 2.0}, ["2"], ["3", "2.5"]),
    ("enum and type", {"type": "string", "enum": ["a", 1, "b"]}, ['"a"', '"b"'], ["1"]),
    ("enum and bounds", {"enum": [1, 5, 9], "minimum": 2, "exclusiveMaximum": 9}, ["5"], ["1", "9"]),
    ("enum and pattern", {"enum": ["ab", "cd", "abc"], "pattern": "^ab", "maxLength": 2}, ['"ab"'], ['"cd"', '"abc"']),
    ("properties", obj("a", a=STRING, b=INTEGER), ['{"a":"x"}', '{"a": "x", "b": 1}'], ["{}", '{"b":1}', '{"a":1}', '{"a":"x","c":1}', '{"b":1,"a":"x"}']),
    ("properties without type", {"properties": {"a": STRING}}, ['{"a":"x"}', "{}"], ["1", '{"b":1}']),
    ("optional keys", obj(a=INTEGER, b=INTEGER, c=INTEGER), ["{}", '{"a":1,"c":2}', '{"b":1}'], ['{"c":1,"a":2}', '{"a":1,"a":2}']),
    ("odd names", obj("a b", **{'"': INTEGER, "a\\b": INTEGER, "é\n": INTEGER, "a b": INTEGER, "a": {}, "b": {}}), [r'{"\"":1,"a\\b":2,"é\n":3,"a b":4,"a":5,"b":6}', '{"a":0,"b":0}'], ['{"a":0}']),
    ("no properties", {"type": "object"}, ["{}", '{"any":1,"thing":[2]}'], ["[]", "1"]),
    ("required without properties", {"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"b":2}']),
    ("required beside properties", {**obj(a=INTEGER), "required": ["b"]}, ['{"b":[]}', '{"a":1,"b":2}'], ['{"a":1}', '{"b":1,"c":1}']),
    ("additionalProperties false", {**obj(a=INTEGER), "additionalProperties": False}, ["{}", '{"a":1}'], ['{"b":1}']),
    ("additionalProperties true", {**obj("a", a=INTEGER), "additionalProperties": True}, ['{"a":1}', '{"a":1,"b":[]}'], ['{"b":1}', '{"a":"x"}', r'{"\u0061":"x"}', r'{"a":1,"\u0061":"x"}']),
    ("additionalProperties schema", {**obj(a=INTEGER), "additionalProperties": STRING}, ['{"a":1,"b":"x"}', '{"b":"x","c":"y"}'], ['{"b":1}', '{"a":"x"}', r'{"b":"","\u0061":"x"}']),
    ("map", {"type": "object", "additionalProperties": INTEGER}, ["{}", '{"x":1,"y":2}'], ['{"x":"1"}']),
    ("empty map", {"type": "object", "additionalProperties": False}, ["{}"], ['{"x":1}']),
    ("false property", {**obj(a=INTEGER, b=False), "additionalProperties": True}, ['{"a":1,"c":1}'], ['{"b":1}', '{"a":1,"b":1}']),
    ("propertyNames", {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER}, ['{"x":1}'], ['{"x":"1"}']),
    ("propertyNames enum", {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": INTEGER}, ["{}", '{"x":1,"y":2}', '{"y":2}'], ['{"z":1}', '{"x":"1"}']),
    ("propertyNames const", {"type": "object", "propertyNames": {"const": "x"}}, ["{}", '{"x":"any"}'], ['{"y":1}']),
    ("minProperties of a map", {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":1,"b":2,"c":3}']),
    ("minProperties of one", {**obj(a=INTEGER, b=INTEGER), "minProperties": 1}, ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'], ["{}"]),
    ("maxProperties that says nothing", {**obj(a=INTEGER, b=INTEGER), "maxProperties": 2}, ["{}", '{"a":1,"b":2}'], []),
    ("items", {"type": "array", "items": INTEGER}, ["[]", "[1]", "[1, 2]"], ['["a"]', "[1,]", "1"]),
    ("items without type", {"items": INTEGER}, ["[]", "[1]"], ['["a"]', '"x"']),
    ("no items", {"type": "array"}, ["[]", '[1,"a",[]]'], ["{}"]),
    ("minItems maxItems", {"type": "array", "items": BOOLEAN, "minItems": 1, "maxItems": 3}, ["[true]", "[true,false,true]"], ["[]", "[true,true,true,true]"]),
    ("prefixItems", {"type": "array", "prefixItems": [STRING, INTEGER]}, ["[]", '["a"]', '["a",1]', '["a",1,null]'], ["[1]", '["a","b"]']),
    ("prefixItems closed", {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2}, ['["a",1]'], ['["a"]', '["a",1,2]']),
    ("prefixItems and items", {"type": "array", "prefixItems": [STRING], "items": INTEGER}, ['["a",1,2]', "[]"], ['["a","b"]']),
    ("items list", {"type": "array", "items": [STRING, INTEGER], "additionalItems": False}, ['["a",1]'], ['["a",1,2]', "[1]"]),
    ("maxItems zero", {"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ("lengths", {"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"', '"é😀"', r'"\ud83d\ude00a"'], ['"a"', '"abcd"']),
    ("minLength", {"type": "string", "minLength": 1}, ['"a"', '"abcdefgh"'], ['""']),
    ("maxLength without type", {"maxLength": 1}, ['""', '"a"'], ['"ab"', "12"]),
    ("pattern", {"type": "string", "pattern": "^[a-z]+$"}, ['"a"', '"abc"'], ['""', '"A"', '"a1"']),
    ("pattern inside", {"type": "string", "pattern": "b\\d"}, ['"b1"', '"ab12"', r'"\nb1"'], ['"b"', '"1b"']),
    ("pattern and lengths", {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"abcd"', '"AB"']),
    ("patterns of allOf", {"allOf": [{"pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 3}]}, ['"az"', '"abz"'], ['"a"', '"abcz"']),
    ("pattern with anchors", {"type": "string", "pattern": "^(foo|bar$)|qux$"}, ['"foo1"', '"bar"', '"aqux"'], ['"bar1"', '"afoo"', '"qux1"']),
    ("pattern with quotes", {"type": "string", "pattern": '^["\\\\]$'}, [r'"\""', r'"\\"'], ['"a"', r'"\"\""']),
    ("pattern beyond ASCII", {"type": "string", "pattern": "^[\\u00e0-\\u00ff😀]+$"}, ['"é"', '"😀"'], ['"e"']),
    ("pattern and format", {"type": "string", "format": "date", "pattern": "^2024-"}, ['"2024-05-01"'], ['"2023-05-01"', '"2024-"']),
    ("format date", {"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"', '"2024-13-01"', '"2024-04-31"', '"24-01-01"', '"0000-01-01"']),
    ("format time", {"type": "string", "format": "time"}, ['"23:59:59Z"', '"00:00:00.123+02:00"'], ['"24:00:00Z"', '"12:00"', '"12:00:60Z"', '"12:00:00"']),
    ("format date-time", {"type": "string", "format": "date-time"}, ['"2024-02-29T12:00:00Z"', '"2024-01-01T00:00:00.5-05:30"'], ['"2024-02-30T12:00:00Z"', '"2024-01-01"', '"2024-01-01T25:00:00Z"']),
    ("format uuid", {"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"', '"123e4567-e89b-12d3-a456-42661417400g"']),
    ("format email", {"type": "string", "format": "email"}, ['"a@b.co"', '"first.last+tag@sub.example.org"'], ['"a@b"', '"@b.co"', '"a b@c.de"', '"a@b.co,"', '"a..b@c.de"']),
    ("format ipv4", {"type": "string", "format": "ipv4"}, ['"0.0.0.0"', '"192.168.1.255"'], ['"256.1.1.1"', '"1.1.1"', '"01.1.1.1"']),
    ("format ipv6", {"type": "string", "format": "ipv6"}, ['"::"', '"::1"', '"2001:db8::ff"', '"1:2:3:4:5:6:7:8"'], ['"1:2:3"', '":::"', '"1::2::3"', '"12345::"', '"1:2:3:4:5:6:7:8:9"']),
    ("format nobody knows", {"type": "string", "format": "shoe-size"}, ['"any"'], ["1"]),
    ("format of a number", {"type": "integer", "format": "int32"}, ["1"], ["1.5"]),
    ("minimum maximum", {"type": "integer", "minimum": 3, "maximum": 17}, ["3", "10", "17"], ["2", "18", "170"]),
    ("exclusive bounds", {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, ["4"], ["3", "5"]),
    ("boolean exclusive bounds", {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False}, ["4", "5"], ["3", "6"]),
    ("fractional bounds of integers", {"type": "integer", "minimum": 0.5, "maximum": 2.5}, ["1", "2"], ["0", "3"]),
    ("number bounds", {"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.55}, ["0.1", "0.5", "0.54", "0.5499", "0.549999999"], ["0", "0.09", "0.55", "0.56", "1"]),
    ("number above zero", {"type": "number", "exclusiveMinimum": 0}, ["0.5", "1", "12.25", "0.000001"], ["0", "0.0", "-1"]),
    ("negative bounds", {"type": "number", "exclusiveMinimum": -2.5, "maximum": -1}, ["-1", "-2.4", "-2.49", "-1.0"], ["-2.5", "-0.9", "0", "2"]),
    ("exclusiveMaximum of a whole number", {"type": "number", "minimum": 1, "exclusiveMaximum": 2}, ["1", "1.9", "1.99"], ["2", "2.0", "0.9"]),
    ("safe integers", {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}, ["9007199254740991"], ["9007199254740992"]),
    ("multipleOf one", {"type": "number", "multipleOf": 1}, ["3"], ["3.5"]),
    ("multipleOf that says nothing", {"type": "integer", "multipleOf": 0.5}, ["3"], ["3.5"]),
    ("anyOf", {"anyOf": [STRING, INTEGER]}, ['"a"', "1"], ["1.5", "null"]),
    ("anyOf with null", obj("a", a={"anyOf": [obj("b", b=INTEGER), NULL]}), ['{"a":null}', '{"a":{"b":1}}'], ['{"a":1}', '{"a":{}}']),
    ("anyOf of objects", {"anyOf": [obj("a", a=INTEGER), obj("b", b=INTEGER)]}, ['{"a":1}', '{"b":1}'], ["{}", '{"a":1,"b":1}']),
    ("anyOf of required", {**obj(a=INTEGER, b=INTEGER), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'], ["{}"]),
    ("anyOf of consts", {"anyOf": [{"const": "a", "title": "A"}, {"const": 2}]}, ['"a"', "2"], ['"b"']),
    ("oneOf by type", {"oneOf": [STRING, INTEGER, NULL]}, ['"a"', "1", "null"], ["1.5"]),
    ("oneOf by const", SHAPE, ['{"kind":"circle","radius":1}', '{"kind":"square","side":0.5}'], ['{"kind":"circle","side":1}', '{"kind":"circle","radius":-1}']),
    ("oneOf by enum", {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["c"]}]}, ['"a"', '"c"'], ['"d"']),
    ("oneOf by bounds", {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 5}]}, ["3", "5"], ["4"]),
    ("oneOf and discriminator", {**SHAPE, "discriminator": {"propertyName": "kind"}}, ['{"kind":"circle","radius":1}'], ["{}"]),
    ("recursive oneOf", {"oneOf": [obj("is", **{"is": {"const": "leaf"}}), obj("is of", **{"of": {"$ref": "#"}, "is": {"const": "node"}})]}, ['{"is":"leaf"}', '{"of":{"is":"leaf"},"is":"node"}'], ['{"is":"node"}']),
    ("allOf", {"allOf": [obj("a", a=STRING), obj("b", b=INTEGER)]}, ['{"a":"x","b":1}'], ['{"a":"x"}', '{"b":1}']),
    ("allOf of one key", {"allOf": [obj("a", a={"minimum": 3}), obj(a={"type": "integer", "maximum": 5})]}, ['{"a":4}'], ['{"a":2}', '{"a":6}', '{"a":4.5}']),
    ("allOf and siblings", {"allOf": [{"$ref": "#/$defs/base"}], **obj("own", own=INTEGER), "$defs": {"base": obj("id", id=STRING)}}, ['{"id":"x","own":1}'], ['{"own":1}', '{"id":"x"}']),
    ("allOf of arrays", {"allOf": [{"type": "array", "items": {"minimum": 1}}, {"items": INTEGER, "maxItems": 2}]}, ["[1,2]", "[]"], ["[0]", "[1,2,3]"]),
    ("$ref to $defs", {"$ref": "#/$defs/a", "$defs": {"a": INTEGER}}, ["1"], ['"a"']),
    ("$ref to definitions", {"$ref": "#/definitions/a b", "definitions": {"a b": INTEGER}}, ["1"], ['"a"']),
    ("$ref to a pointer", obj("a b", a=INTEGER, b={"$ref": "#/properties/a"}), ['{"a":1,"b":2}'], ['{"a":1,"b":"x"}']),
    ("$ref with escapes", {"$ref": "#/$defs/a~1b~0c%20d", "$defs": {"a/b~c d": INTEGER}}, ["1"], ['"a"']),
    ("$ref to an anchor", {"$ref": "#here", "$defs": {"a": {"$anchor": "here", **INTEGER}}}, ["1"], ['"a"']),
    ("$ref to its own $id", {"$id": "https://example.com/s", "$ref": "https://example.com/s#/$defs/a", "$defs": {"a": INTEGER}}, ["1"], ['"a"']),
    ("$ref into a list", {"anyOf": [INTEGER, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]}, ["1", "[1]"], ['["a"]']),
    ("$ref with siblings", {"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer", "minimum": 3}}}, ["4"], ["2", "6"]),
    ("enum behind $ref", {"type": "array", "items": {"$ref": "#/$defs/o"}, "$defs": {"o": obj("c", c={"$ref": "#/$defs/c"}), "c": {"enum": ["red", "blue"]}}}, ['[{"c":"red"}]', "[]"], ['[{"c":"green"}]']),
    ("recursive tree", TREE, ['{"value":1}', '{"value":1,"children":[{"value":2,"children":[]}]}'], ['{"children":[]}', '{"value":1,"children":[{}]}']),
    ("recursive list", LIST, ['{"value":"a","next":{"value":"b","next":null}}'], ['{"value":"a"}', '{"value":"a","next":{}}']),
    ("top-level array", {"type": "array", "items": obj("a", a=INTEGER)}, ['[{"a":1}]', "[]"], ["[{}]"]),
    ("keywords that say nothing", {"type": "array", "uniqueItems": False, "not": False, "unevaluatedItems": True, "dependentRequired": {}, "patternProperties": {}}, ["[1,1]"], ["1"]),
    ("an impossible branch", {"anyOf": [{"allOf": [STRING, INTEGER]}, BOOLEAN]}, ["true"], ["1", '"a"']),
]  # fmt: skip
"""Name, schema, texts that fit it, texts that do not."""

REFUSED: list[tuple[str, Schema, str, str]] = [
    ("false", False, "", "#"),
    ("not a schema", 5, "", "#"),
    ("a property that is no schema", obj(a=5), "", "#/properties/a"),
    ("unknown type", obj(a={"type": "int"}), "type", "#/properties/a"),
    ("type that is no name", {"type": 5}, "type", "#"),
    ("no type", {"type": []}, "type", "#"),
    ("not", obj(a={"not": STRING}), "not", "#/properties/a"),
    ("if", {"if": STRING, "then": {"maxLength": 3}}, "if", "#"),
    ("patternProperties", {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False}, "patternProperties", "#"),
    ("propertyNames pattern", {"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames", "#"),
    ("dependentRequired", {**obj(a=STRING, b=STRING), "dependentRequired": {"a": ["b"]}}, "dependentRequired", "#"),
    ("dependentSchemas", {**obj(a=STRING), "dependentSchemas": {"a": obj(b=STRING)}}, "dependentSchemas", "#"),
    ("dependencies", {**obj(a=STRING), "dependencies": {"a": ["b"]}}, "dependencies", "#"),
    ("unevaluatedProperties", {**obj(a=STRING), "unevaluatedProperties": False}, "unevaluatedProperties", "#"),
    ("unevaluatedItems", {"type": "array", "unevaluatedItems": False}, "unevaluatedItems", "#"),
    ("contains", {"type": "array", "contains": INTEGER}, "contains", "#"),
    ("uniqueItems", {"type": "array", "items": INTEGER, "uniqueItems": True}, "uniqueItems", "#"),
    ("multipleOf", obj(a={"type": "integer", "multipleOf": 7}), "multipleOf", "#/properties/a"),
    ("multipleOf a cent", {"type": "number", "multipleOf": 0.01}, "multipleOf", "#"),
    ("$ref to a URL", {"$ref": "https://example.com/x"}, "$ref", "#"),
    ("$ref to nothing", obj(a={"$ref": "#/$defs/no"}), "$ref", "#/properties/a"),
    ("$ref to no anchor", {"$ref": "#no"}, "$ref", "#"),
    ("$ref to itself", {"$ref": "#"}, "$ref", "#"),
    ("$ref in a circle", {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}, "$ref", "#/$defs/b"),
    ("$dynamicRef", {"$dynamicRef": "#x"}, "$dynamicRef", "#"),
    ("lookahead", {"type": "string", "pattern": "^(?=a)b"}, "pattern", "#"),
    ("lookbehind", {"type": "string", "pattern": "(?<!a)b"}, "pattern", "#"),
    ("back-reference", {"type": "string", "pattern": "(a)\\1"}, "pattern", "#"),
    ("word boundary", {"type": "string", "pattern": "\\bword"}, "pattern", "#"),
    ("trailing backslash", {"type": "string", "pattern": "a\\"}, "pattern", "#"),
    ("open group", {"type": "string", "pattern": "(a"}, "pattern", "#"),
    ("pattern that is no text", {"type": "string", "pattern": 1}, "pattern", "#"),
    ("pattern that is too long for maxLength", {"type": "string", "pattern": "^a{5}$", "maxLength": 3}, "pattern", "#"),
    ("pattern no date fits", {"type": "string", "format": "date", "pattern": "^x"}, "pattern", "#"),
    ("minItems over maxItems", {"type": "array", "minItems": 3, "maxItems": 1}, "minItems", "#"),
    ("minLength over maxLength", obj(a={"type": "string", "minLength": 3, "maxLength": 1}), "minLength", "#/properties/a"),
    ("minimum over maximum", {"type": "integer", "minimum": 3, "maximum": 1}, "minimum", "#"),
    ("no integer between", {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "", "#"),
    ("empty enum", {"enum": []}, "enum", "#"),
    ("empty anyOf", {"anyOf": []}, "anyOf", "#"),
    ("allOf that contradicts itself", {"allOf": [STRING, INTEGER]}, "", "#"),
    ("a forbidden key is required", {**obj("b", a=STRING), "additionalProperties": False}, "required", "#"),
    ("a false key is required", obj("a", a=False), "", "#"),
    ("an endless value", {"$defs": {"n": obj("next", next={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"}, "", "#"),
    ("an endless map", {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}}, "", "#"),
    ("oneOf told apart by what holds it", obj("q", q={"oneOf": [{"$ref": "#"}, obj("q", q=NULL)]}), "oneOf", "#/properties/q"),
    ("oneOf that overlaps", {"oneOf": [INTEGER, NUMBER]}, "oneOf", "#"),
    ("oneOf of open objects", {"oneOf": [obj("a", a=STRING), obj("b", b=STRING)]}, "oneOf", "#"),
    ("number that no float holds", {"const": 2**63 - 1}, "", "#/const"),
    ("half a surrogate pair", {"const": "\ud83d"}, "", "#/const"),
    ("minLength that is no number", {"type": "string", "minLength": "3"}, "minLength", "#"),
    ("minimum that is no number", {"type": "integer", "minimum": "3"}, "minimum", "#"),
    ("a bound with too many digits", {"type": "number", "minimum": 0.1234567890123456}, "minimum", "#"),
    ("required that is no list", {"type": "object", "required": "a"}, "required", "#"),
    ("properties that are no object", {"type": "object", "properties": []}, "properties", "#"),
    ("minProperties beside optional keys", {**obj(a=STRING, b=STRING, c=STRING), "minProperties": 2}, "minProperties", "#"),
]  # fmt: skip
"""Name, schema, the keyword at fault and where it stands."""


# ---- what people use


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    street: str
    zip: Annotated[str, Field(pattern=r"^\d{5}(?:-\d{4})?$")]
    country: Literal["DE", "FR", "US"] = "DE"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=40, description="Full name")
    age: int | None = Field(default=None, ge=0, lt=150)
    email: Annotated[str, Field(json_schema_extra={"format": "email"})]
    born: date
    addresses: list[Address] = Field(default_factory=list, max_length=3)
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]
    favourite: Color


class Comment(BaseModel):
    author: str
    replies: list["Comment"] = []


class Expression(BaseModel):
    op: Literal["+", "-", "const"]
    value: float | None = None
    left: Optional["Expression"] = None
    right: Optional["Expression"] = None


class Event(BaseModel):
    id: UUID
    at: datetime
    until: time | None
    scores: dict[str, int]
    position: tuple[float, float]
    tags: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1, max_length=5)
    extra: dict[str, Any]
    ratio: float = Field(gt=0, lt=1)


class Step(BaseModel):
    explanation: str
    output: str


class Answer(BaseModel):
    steps: list[Step]
    final_answer: str


_MODELS: list[type[BaseModel]] = [Address, Cat, Dog, Person, Comment, Expression, Event, Step, Answer]

_FIELDS: list[tuple[Any, Any]] = [
    (str, ...),
    (int, ...),
    (float, ...),
    (bool, ...),
    (str | None, None),
    (Optional[int], None),
    (list[str], ...),
    (list[Address], []),
    (dict[str, int], ...),
    (dict[str, list[float]], {}),
    (Literal["low", "medium", "high"], ...),
    (Literal[1, 2, 3], 1),
    (Color, Color.RED),
    (date, ...),
    (datetime, ...),
    (time | None, None),
    (UUID, ...),
    (Address | None, None),
    (Union[Cat, Dog], ...),
    (Union[int, str], ...),
    (tuple[int, str], ...),
    (Comment, ...),
    (Any, None),
    (Annotated[int, Field(ge=1, le=100)], ...),
    (Annotated[float, Field(gt=0)], ...),
    (Annotated[float, Field(ge=-1, le=1)], 0),
    (Annotated[str, Field(pattern=r"^[A-Z]{2,3}-\d+$")], ...),
    (Annotated[str, Field(min_length=2, max_length=10)], ...),
    (Annotated[list[int], Field(min_length=1, max_length=4)], ...),
    (Annotated[set[str], Field(max_length=3)], ...),  # uniqueItems
    (Annotated[int, Field(multiple_of=5)], ...),
]

_ZOD: list[Schema] = [
    STRING,
    NUMBER,
    BOOLEAN,
    {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    {"type": "string", "minLength": 1},
    {"type": "string", "enum": ["draft", "published", "archived"]},
    {"type": "string", "const": "fixed"},
    {"anyOf": [STRING, NULL]},
    {"anyOf": [STRING, NUMBER, BOOLEAN]},
    {"type": "array", "items": STRING},
    {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [STRING, NUMBER]},
    {"type": "array", "prefixItems": [STRING, NUMBER], "items": BOOLEAN},
    {"type": "object", "propertyNames": STRING, "additionalProperties": NUMBER},
    {"type": "object", "propertyNames": {"type": "string", "enum": ["en", "de"]}, "additionalProperties": STRING, "required": ["en", "de"]},
    {"type": "string", "format": "uuid", "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"},
    {"type": "string", "format": "date-time", "pattern": r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z))$"},
    {"type": "string", "format": "date", "pattern": r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))$"},
    {"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"},
    {"type": "string", "format": "uri"},
    {"type": "string", "format": "ipv4", "pattern": r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$"},
    {"type": "string", "format": "cuid", "pattern": "^[cC][^\\s-]{8,}$"},
    {"type": "string", "pattern": "^https?:\\/\\/.*"},
    {"type": "string", "pattern": "^#[0-9a-fA-F]{6}$"},
    {"type": "string", "default": "x"},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"allOf": [obj("a", a=STRING), obj("b", b=NUMBER)]},
    {},
    {"not": {}},
]  # fmt: skip

_WHOLE: list[Schema] = [
    TREE,
    LIST,
    SHAPE,
    {"type": "array", "items": {"$ref": "#/definitions/Item"}, "definitions": {"Item": obj("id", id=INTEGER, parent={"$ref": "#/definitions/Item"})}},
    obj("code", code={"type": "string", "enum": [f"code-{number:04}" for number in range(2000)]}),
    obj("codes", codes={"type": "array", "items": {"enum": [f"Länge {number}" for number in range(2000)]}}),
    {"const": "42"},
    {"enum": ["yes", "no"]},
    {"type": "array", "items": STRING, "minItems": 1},
    obj("when", when={"type": "string", "format": "date"}, at={"type": "string", "format": "date-time"}, clock={"type": "string", "format": "time"}),
    obj("host", host={"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}),
    {**obj("type", type={"enum": ["a", "b"]}), "if": {"properties": {"type": {"const": "a"}}}, "then": {"required": ["x"]}},
    {"type": "object", "patternProperties": {"^S_": STRING}},
    {"oneOf": [obj("a", a=STRING), obj("b", b=STRING)]},
    {"$ref": "https://example.com/person.json"},
    obj("price", price={"type": "number", "multipleOf": 0.01}),
]  # fmt: skip


def used_by_people(count: int = 300) -> list[Schema]:
    """Models of pydantic, output of zod, and schemas written by hand; the same ones each time."""
    rng = random.Random(300)
    found: list[Schema] = [*_WHOLE, *(model.model_json_schema() for model in _MODELS)]
    while len(found) < count:
        found.append(_pydantic(rng) if len(found) % 2 else _zod(rng))
    return found[:count]


def _pydantic(rng: random.Random) -> Schema:
    fields = {f"field_{at}": rng.choice(_FIELDS) for at in range(rng.randint(1, 6))}
    config = ConfigDict(extra=rng.choice(["ignore", "forbid", "allow"]))
    model = create_model("Model", __config__=config, **fields)
    if rng.random() < 0.3:
        model = create_model("Outer", items=(list[model], ...), first=(Optional[model], None))  # type: ignore[valid-type]
    return model.model_json_schema()


def _zod(rng: random.Random) -> Schema:
    properties = {f"key{at}": rng.choice(_ZOD) for at in range(rng.randint(1, 6))}
    schema = {**_closed(rng, properties), "$schema": "https://json-schema.org/draft/2020-12/schema"}
    if rng.random() < 0.3:
        schema["properties"]["nested"] = _closed(
            rng, {"inner": rng.choice(_ZOD), "more": {"type": "array", "items": rng.choice(_ZOD)}}
        )
    return schema


def _closed(rng: random.Random, properties: dict[str, Schema]) -> dict[str, Any]:
    required = [name for name in properties if rng.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def validator(schema: Any) -> Any:
    """With the meaning that drafts before 2020-12 give to a list of items, as strict() reads it."""
    formats = jsonschema.FormatChecker(["ipv4", "ipv6", "uuid", "email", "date"])
    return jsonschema.Draft202012Validator(_modern(schema), format_checker=formats)


def _modern(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_modern(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: value if key in ("const", "enum") else _modern(value) for key, value in schema.items()}
    if schema.get("nullable") and "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*types, "null"]
    return schema


# ---- at random


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """Most keywords in most combinations; not all of them make sense."""
    schema = _random(rng, depth)
    if isinstance(schema, dict) and rng.random() < 0.3:
        schema = {**schema, "$defs": {name: _random(rng, 1) for name in "ab"}}
    return schema


def _random(rng: random.Random, depth: int) -> Schema:
    kinds = [*_RANDOM_LEAVES, *_RANDOM_NESTS] if depth else _RANDOM_LEAVES
    schema = rng.choice(kinds)(rng, depth - 1)
    if isinstance(schema, dict) and rng.random() < 0.15:
        schema = {**schema, "description": "a thing", **_loose(rng)}
    return schema


def _loose(rng: random.Random) -> dict[str, Any]:
    """Keywords of any type, beside what is there."""
    return dict(
        rng.sample(
            [
                ("minLength", rng.randint(0, 3)),
                ("maximum", rng.randint(0, 9)),
                ("maxItems", rng.randint(0, 3)),
                ("required", [rng.choice("abc")]),
                ("enum", [1, "a", "bb", None, True, [], {"a": 1}]),
                ("nullable", True),
                ("type", rng.choice(["string", "integer", "number", "object", "array"])),
                ("not", {"const": 1}),
                ("uniqueItems", True),
                ("anyOf", [{"type": "string"}, {"minimum": 1}]),
            ],
            rng.randint(1, 2),
        )
    )


def _random_string(rng: random.Random, _: int) -> Schema:
    extras: Iterator[tuple[str, Any]] = iter(
        [
            ("minLength", rng.randint(0, 3)),
            ("maxLength", rng.randint(2, 6)),
            ("pattern", rng.choice(["^[a-c]+$", "b", "^\\w*$", "^(x|yz){1,3}$", "\\d$", "^a|b$", "(?=a)", "^.{2,4}$", "[^\\s]"])),
            ("format", rng.choice(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "color"])),
        ]
    )  # fmt: skip
    return {"type": "string", **{key: value for key, value in extras if rng.random() < 0.25}}


def _random_number(rng: random.Random, _: int) -> Schema:
    schema: dict[str, Any] = {"type": rng.choice(["integer", "number"])}
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if rng.random() < 0.25:
            low = keyword.endswith("inimum")
            schema[keyword] = round(rng.uniform(*((-20, 2) if low else (1, 30))), rng.choice([0, 1, 3]))
    return schema


def _random_value(rng: random.Random) -> Any:
    return rng.choice([None, True, False, 0, 7, -1.5, "", "a", 'q"\\', "é😀", [], [1, "a"], {}, {"k": [1]}, 10**6])


def _random_array(rng: random.Random, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = _random(rng, depth) if rng.random() < 0.8 else rng.choice([True, False])
    if rng.random() < 0.3:
        schema["prefixItems"] = [_random(rng, depth) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        schema["minItems"] = rng.randint(0, 2)
    if rng.random() < 0.3:
        schema["maxItems"] = rng.randint(1, 4)
    return schema


def _random_object(rng: random.Random, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "object"}
    if rng.random() < 0.85:
        schema["properties"] = {
            name: _random(rng, depth) for name in rng.sample(["a", "b", "c", 'd"', "é", "a b"], rng.randint(0, 4))
        }
    if rng.random() < 0.6:
        schema["required"] = rng.sample(
            sorted(schema.get("properties", {"a": 1})), rng.randint(0, len(schema.get("properties", "a")))
        )
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.choice([False, True, {}, _random(rng, depth)])
    if rng.random() < 0.1:
        schema["minProperties"] = rng.randint(0, 2)
    if rng.random() < 0.1:
        schema["maxProperties"] = rng.randint(1, 3)
    if rng.random() < 0.1:
        schema["propertyNames"] = rng.choice([{"enum": ["a", "b"]}, {"type": "string"}, {"pattern": "^a"}])
    return schema


def _random_choice(rng: random.Random, depth: int) -> Schema:
    keyword = rng.choice(["anyOf", "anyOf", "oneOf", "allOf"])
    return {keyword: [_random(rng, depth) for _ in range(rng.randint(1, 3))]}


_RANDOM_LEAVES = [
    _random_string,
    _random_string,
    _random_number,
    _random_number,
    lambda rng, _: {"type": rng.choice(["boolean", "null", "string", "integer"])},
    lambda rng, _: {"type": rng.sample(["string", "null", "integer", "array", "boolean"], 2)},
    lambda rng, _: {"const": _random_value(rng)},
    lambda rng, _: {"enum": [_random_value(rng) for _ in range(rng.randint(1, 4))]},
    lambda rng, _: rng.choice([{}, True, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]),
]
_RANDOM_NESTS = [_random_array, _random_array, _random_object, _random_object, _random_object, _random_choice]
