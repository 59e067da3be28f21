"""JSON schemas, keyword by keyword, as Shapes."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from math import isfinite
from time import monotonic
from typing import Any

from room.text.schema_errors import InvalidSchema, SchemaTooComplex
from room.text.schema_formats import FORMATS
from room.text.schema_pattern import BadPattern, whole_match
from room.text.schema_pointer import Document, LostReference, below
from room.text.schema_shape import (
    ANYTHING,
    FREE,
    NOTHING,
    Array,
    Boolean,
    Bound,
    Node,
    Null,
    Number,
    Object,
    Place,
    Shape,
    Shapes,
    String,
    by_type,
    disjoint,
    free,
    intersect,
)

_MOST_STEPS = 200_000
"""Alternatives and their properties looked at, for a whole document."""
_LONGEST_S = 1.5
_DEEPEST = 60
"""How deep schemas may nest without a property or an item between them."""
_DEEPEST_DIFFERENCE = 4
"""How deep in two objects a difference is looked for."""

_TYPES: dict[str, Shape] = {
    "null": Null(),
    "boolean": Boolean(),
    "number": Number(),
    "integer": Number(integer=True),
    "string": String(),
    "array": Array(),
    "object": Object(),
}

_NEVER = "cannot be enforced; leave it out, or say the same in other words"

# Keywords that are refused, unless they have one of these values, with which they say nothing.
_UNENFORCED: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (),
    "then": (True, {}),
    "else": (True, {}),
    "patternProperties": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "contains": (),
    "uniqueItems": (False,),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
_ADDS_KEYS = {"if", "then", "else", "patternProperties", "dependentSchemas", "dependencies", "propertyNames"}
"""Where one of these is passed over, keys that no `properties` lists must be let through."""

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRINGS = ("minLength", "maxLength", "pattern", "format")
_ARRAYS = ("items", "prefixItems", "additionalItems", "minItems", "maxItems")
_OBJECTS = ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames")


class _Circular(InvalidSchema):
    """A schema is what refers to it."""


class Reader:
    """Reads one document. A `lenient` one never refuses: it passes over what it cannot make use of.

    Raises InvalidSchema and SchemaTooComplex, a lenient one only the latter.
    """

    def __init__(self, document: object, param: str, *, lenient: bool) -> None:
        self._document = Document(document)
        self._param = param
        self._lenient = lenient
        self._places: dict[Place, Shapes] = {}
        self._open: list[Place] = []
        self._steps = 0
        self._deadline = monotonic() + _LONGEST_S

    @property
    def root(self) -> Node:
        return (self._document.root,)

    def shapes(self, node: Node) -> Shapes:
        """What a value may be that fits all the schemas of a node."""
        return narrowed(self._all(map(self._whole, node)))

    def _whole(self, place: Place) -> Shapes:
        """Of a place that nothing being read leads to."""
        try:
            return self._place(place)
        except _Circular:
            if not self._lenient:
                raise
            return FREE

    def refuse(self, keyword: str, path: str, reason: str) -> InvalidSchema:
        return InvalidSchema(self._param, keyword, path, reason)

    def _step(self, shapes: Iterable[Shape]) -> Iterator[Shape]:
        for shape in shapes:
            self._spend(1 + len(shape.properties) if isinstance(shape, Object) else 1)
            yield shape

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS or monotonic() > self._deadline:
            raise SchemaTooComplex("its alternatives multiply")

    def _all(self, several: Iterable[Shapes]) -> Shapes:
        fitting = FREE
        for shapes in several:
            fitting = shapes if fitting is FREE else by_type(self._step(intersect(fitting, shapes)))
        return fitting

    def _any(self, several: Iterable[Shapes]) -> Shapes:
        return by_type(self._step(shape for shapes in several for alike in shapes.values() for shape in alike))

    def _place(self, place: Place) -> Shapes:
        if place not in self._places:
            if place in self._open:  # what sets oneOf branches apart may lie in what holds the oneOf
                raise _Circular(self._param, "$ref", place.path, "leads back to itself without an end")
            if len(self._open) > _DEEPEST:
                raise SchemaTooComplex("it nests too deep")
            self._open.append(place)
            try:
                self._places[place] = self._read(place)
            finally:
                self._open.pop()
        return self._places[place]

    def _read(self, place: Place) -> Shapes:
        if place.literal:
            return self._values([place.raw], place.path, whole=True)
        if isinstance(place.raw, bool):
            return FREE if place.raw else {}
        if not isinstance(place.raw, dict):
            self.pass_over("", place.path, "must be an object or a boolean")
            return FREE
        return self._schema(place.raw, place.path)

    def _schema(self, raw: dict[str, Any], path: str) -> Shapes:
        self._check_unenforced(raw, path)
        own = self._all(self._own(raw, path))
        # In the order of the schema, from which the order of an object's keys follows.
        order = [keyword for keyword in raw if keyword in _NESTING or keyword == "properties"]
        if "properties" not in raw:
            order.insert(0, "properties")
        return self._all(
            own if keyword == "properties" else _NESTING[keyword](self, raw, path, own) for keyword in order
        )

    def _own(self, raw: dict[str, Any], path: str) -> Iterator[Shapes]:
        """What the keywords say that nest no schema in place."""
        if "type" in raw:
            yield self._types(raw, path)
        if "const" in raw:
            yield self._values([raw["const"]], below(path, "const"), whole=True)
        if "enum" in raw:
            yield self._enum(raw["enum"], path)
        groups: tuple[tuple[tuple[str, ...], Callable[[dict[str, Any], str], Shape]], ...] = (
            (_NUMBERS, self._number),
            (_STRINGS, self._string),
            (_ARRAYS, self._array),
            (_OBJECTS, self._object),
        )
        for keywords, read in groups:
            if any(keyword in raw for keyword in keywords):
                shape = self._filled(read(raw, path), path)
                yield {**FREE, type(shape): (shape,)}

    def _filled(self, shape: Shape, path: str) -> Shape:
        """One schema that contradicts itself is a mistake, wherever it stands."""
        if isinstance(shape, Number | String | Array | Object) and shape.empty:
            low, high = {
                Number: ("minimum", "maximum"),
                String: ("minLength", "maxLength"),
                Array: ("minItems", "maxItems"),
                Object: ("minProperties", "maxProperties"),
            }[type(shape)]
            self.pass_over(low, path, f"leaves no value that '{high}' allows too")
            return type(shape)()
        return shape

    def pass_over(self, keyword: str, path: str, reason: str) -> None:
        if not self._lenient:
            raise self.refuse(keyword, path, reason)

    def _check_unenforced(self, raw: dict[str, Any], path: str) -> None:
        for keyword in raw:
            if keyword in _UNENFORCED and not any(_same(raw[keyword], idle) for idle in _UNENFORCED[keyword]):
                self.pass_over(keyword, path, _NEVER)

    # ---- keywords about any value

    def _types(self, raw: dict[str, Any], path: str) -> Shapes:
        names = raw["type"] if isinstance(raw["type"], list) else [raw["type"]]
        unknown = [name for name in names if not isinstance(name, str) or name not in _TYPES]
        if unknown or not names:
            self.pass_over("type", path, f"is not a type of JSON: {str(unknown and unknown[0])[:40]!r}")
            return FREE
        if raw.get("nullable") is True:
            names = [*names, "null"]
        if "number" in names:
            names = [name for name in names if name != "integer"]
        return by_type(_TYPES[name] for name in dict.fromkeys(names))

    def _enum(self, values: Any, path: str) -> Shapes:
        if not isinstance(values, list) or not values:
            self.pass_over("enum", path, "must be a list of at least one value")
            return FREE
        return self._values(values, below(path, "enum"), whole=False)

    def _values(self, values: list[Any], path: str, *, whole: bool) -> Shapes:
        """Any of `values`, which stand at `path`, or the one that is the `whole` of what stands there."""
        paths = [path] if whole else [below(path, at) for at in range(len(values))]
        try:
            shapes = [self._literal(value, at) for value, at in zip(values, paths, strict=True)]
        except InvalidSchema:
            if not self._lenient:
                raise
            return FREE
        numbers = [value for shape in shapes if isinstance(shape, Number) for value in shape.values or ()]
        strings = [value for shape in shapes if isinstance(shape, String) for value in shape.values or ()]
        booleans = [value for shape in shapes if isinstance(shape, Boolean) for value in shape.values]
        joined: list[Shape] = [shape for shape in shapes if isinstance(shape, Array | Object)]
        joined += [Null()] * any(isinstance(shape, Null) for shape in shapes)
        joined += [Boolean(frozenset(booleans))] * bool(booleans)
        joined += [Number(values=tuple(dict.fromkeys(numbers)))] * bool(numbers)
        joined += [String(values=tuple(dict.fromkeys(strings)))] * bool(strings)
        return by_type(self._step(joined))

    def _literal(self, value: Any, path: str) -> Shape:
        match value:
            case None:
                return Null()
            case bool():
                return Boolean(frozenset((value,)))
            case int() | float():
                return Number(values=(self._literal_number(value, path),))
            case str():
                self._check_text(value, path)
                return String(values=(value,))
            case list():
                items = tuple((Place(below(path, at), True, item),) for at, item in enumerate(value))
                return Array(items, NOTHING, len(value), len(value))
        for name in value:
            self._check_text(name, path)
        properties = {name: (Place(below(path, name), True, item),) for name, item in value.items()}
        return Object(properties, NOTHING, True, tuple(value))

    def _literal_number(self, value: int | float, path: str) -> int | float:
        """The grammar compiler keeps numbers as floats: one that they do not hold would become another."""
        if isinstance(value, float) and isfinite(value):
            return int(value) if value.is_integer() and abs(value) < 2**63 else value
        if not isinstance(value, int) or abs(value) >= 2**63 or int(float(value)) != value:
            raise self.refuse("", path, "is a number beyond those that can be enforced exactly")
        return value

    def _check_text(self, text: str, path: str) -> None:
        if any(0xD800 <= ord(char) < 0xE000 for char in text):
            raise self.refuse("", path, "holds half of a surrogate pair, which no text can hold")

    # ---- keywords about values of one type

    def _number(self, raw: dict[str, Any], path: str) -> Number:
        low = self._limit(raw, path, "minimum", "exclusiveMinimum")
        high = self._limit(raw, path, "maximum", "exclusiveMaximum")
        return Number(self._whole_numbers(raw, path), max(low, key=_tightness, default=None), _lowest(high))

    def _limit(self, raw: dict[str, Any], path: str, closed: str, opened: str) -> list[Bound]:
        found = []
        at = self._fraction(raw, path, closed)
        if raw.get(opened) is True or raw.get(opened) is False:  # as draft 4 has it
            return [] if at is None else [Bound(at, raw[opened])]
        if at is not None:
            found.append(Bound(at))
        if (at := self._fraction(raw, path, opened)) is not None:
            found.append(Bound(at, open=True))
        return found

    def _fraction(self, raw: dict[str, Any], path: str, keyword: str) -> Fraction | None:
        value = raw.get(keyword)
        if isinstance(value, int) and not isinstance(value, bool):
            return Fraction(value)
        if isinstance(value, float) and isfinite(value):
            return Fraction(repr(value))
        if keyword in raw:
            self.pass_over(keyword, path, "must be a number")
        return None

    def _whole_numbers(self, raw: dict[str, Any], path: str) -> bool:
        """multipleOf says something that can be enforced only where it asks for whole numbers."""
        step = self._fraction(raw, path, "multipleOf")
        types = raw.get("type")
        if step == 1:
            return True
        of_integers = types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)
        if step is not None and not (of_integers and step > 0 and (1 / step).denominator == 1):
            self.pass_over("multipleOf", path, _NEVER)
        return False

    def _string(self, raw: dict[str, Any], path: str) -> String:
        patterns = []
        if "pattern" in raw and (pattern := self._pattern(raw["pattern"], path)):
            patterns.append(pattern)
        if isinstance(raw.get("format"), str) and raw["format"] in FORMATS:
            patterns.append(FORMATS[raw["format"]])
        shortest, longest = self._count(raw, path, "minLength"), self._count(raw, path, "maxLength")
        return String(shortest or 0, longest, tuple(patterns))

    def _pattern(self, pattern: Any, path: str) -> str | None:
        if not isinstance(pattern, str):
            self.pass_over("pattern", path, "must be a string")
            return None
        try:
            return whole_match(pattern)
        except BadPattern as error:
            self.pass_over("pattern", path, str(error))
            return None

    def _count(self, raw: dict[str, Any], path: str, keyword: str) -> int | None:
        value = raw.get(keyword)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if keyword in raw:
            self.pass_over(keyword, path, "must be a whole number that is not negative")
        return None

    def _array(self, raw: dict[str, Any], path: str) -> Array:
        first, rest = raw.get("prefixItems", []), "items"
        keyword = "prefixItems"
        if isinstance(raw.get("items"), list):  # as drafts before 2020-12 have it
            first, rest, keyword = raw["items"], "additionalItems", "items"
        if not isinstance(first, list):
            self.pass_over(keyword, path, "must be a list of schemas")
            first = []
        fewest, most = self._count(raw, path, "minItems"), self._count(raw, path, "maxItems")
        places = tuple(self._child(below(path, keyword, at), item) for at, item in enumerate(first))
        return Array(places, self._child(below(path, rest), raw[rest]) if rest in raw else ANYTHING, fewest or 0, most)

    def _child(self, path: str, raw: Any) -> Node:
        if raw is True or raw == {}:
            return ANYTHING
        return NOTHING if raw is False else (Place(path, raw=raw),)

    def _object(self, raw: dict[str, Any], path: str) -> Object:
        properties = {
            name: self._child(below(path, "properties", name), schema)
            for name, schema in self._properties(raw, path).items()
        }
        rest = None
        if "additionalProperties" in raw:
            rest = self._child(below(path, "additionalProperties"), raw["additionalProperties"])
        if (
            self._lenient
            and any(keyword in raw for keyword in _ADDS_KEYS)
            and (rest is None or "patternProperties" in raw)
        ):
            rest = ANYTHING
        listed = "properties" in raw
        names = self._names(raw, path)
        if names is not None:
            unlisted = ANYTHING if rest is None else rest
            properties = {
                name: properties.get(name, ANYTHING if listed and rest is None else unlisted) for name in names
            }
            rest, listed = NOTHING, True
        fewest, most = self._count(raw, path, "minProperties"), self._count(raw, path, "maxProperties")
        required = self._required(raw, path)
        forbidden = [name for name in required if rest == NOTHING and properties.get(name, NOTHING) == NOTHING]
        if forbidden:
            self.pass_over("required", path, f"asks for the key {forbidden[0][:40]!r}, which is not allowed")
            required = tuple(name for name in required if name not in forbidden)
        return Object(properties, rest, listed, required, fewest or 0, most)

    def _properties(self, raw: dict[str, Any], path: str) -> dict[str, Any]:
        properties = raw.get("properties", {})
        if not isinstance(properties, dict):
            self.pass_over("properties", path, "must be an object whose values are schemas")
            return {}
        for name in properties:
            self._check_name(name, path, "properties")
        return properties

    def _required(self, raw: dict[str, Any], path: str) -> tuple[str, ...]:
        required = raw.get("required", [])
        if isinstance(required, bool):  # as draft 3 has it, on the property itself
            return ()
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self.pass_over("required", path, "must be a list of names")
            return ()
        for name in required:
            self._check_name(name, path, "required")
        return tuple(dict.fromkeys(required))

    def _check_name(self, name: str, path: str, keyword: str) -> None:
        try:
            self._check_text(name, path)
        except InvalidSchema as error:
            self.pass_over(keyword, path, error.reason)

    def _names(self, raw: dict[str, Any], path: str) -> list[str] | None:
        """The only names that propertyNames allows; None where it allows all."""
        schema = raw.get("propertyNames", True)
        if schema is True or schema == {} or schema == {"type": "string"}:
            return None
        values = None
        if (
            isinstance(schema, dict)
            and set(schema) <= {"enum", "const", "type"}
            and schema.get("type") in (None, "string")
        ):
            values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values and all(isinstance(name, str) for name in values):
            return list(dict.fromkeys(values))
        self.pass_over("propertyNames", path, _NEVER)
        return None

    # ---- keywords that nest schemas in place

    def _branches(self, raw: dict[str, Any], path: str, keyword: str) -> list[Shapes]:
        schemas = raw[keyword]
        if not isinstance(schemas, list) or not schemas:
            self.pass_over(keyword, path, "must be a list of at least one schema")
            return [FREE]
        return [self._place(Place(below(path, keyword, at), raw=schema)) for at, schema in enumerate(schemas)]

    def _all_of(self, raw: dict[str, Any], path: str, _: Shapes) -> Shapes:
        return self._all(self._branches(raw, path, "allOf"))

    def _any_of(self, raw: dict[str, Any], path: str, own: Shapes) -> Shapes:
        return self._any(narrowed(self._all([own, branch])) for branch in self._branches(raw, path, "anyOf"))

    def _one_of(self, raw: dict[str, Any], path: str, own: Shapes) -> Shapes:
        """The branches have nothing in common, or else what fits two would have to be left out."""
        wide = [self._all([own, branch]) for branch in self._branches(raw, path, "oneOf")]
        narrow = list(map(narrowed, wide))
        for one, other in combinations(range(len(wide)), 2):
            if not (self._disjoint(narrow[one], wide[other]) and self._disjoint(wide[one], narrow[other])):
                reason = "has branches that may fit the same value; use 'anyOf', or give each a key with a 'const'"
                self.pass_over("oneOf", path, reason)
                break
        return self._any(narrow)

    def _disjoint(self, one: Shapes, other: Shapes, depth: int = 0) -> bool:
        self._spend(sum(len(alike) * len(other.get(kind, ())) for kind, alike in one.items()))

        def property_disjoint(left: Node, right: Node) -> bool:
            if depth == _DEEPEST_DIFFERENCE:
                return False
            try:
                one, other = (self._all(map(self._place, node)) for node in (left, right))
            except _Circular:  # what holds the oneOf that is being read
                return False
            return self._disjoint(one, other, depth + 1)

        return disjoint(one, other, property_disjoint)

    def _ref(self, raw: dict[str, Any], path: str, _: Shapes) -> Shapes:
        try:
            place = self._document.find(raw["$ref"])
        except LostReference as error:
            self.pass_over("$ref", path, str(error))
            return FREE
        if place in self._open:
            raise _Circular(self._param, "$ref", path, "leads back to itself without an end")
        return self._place(place)


_NESTING: dict[str, Callable[[Reader, dict[str, Any], str, Shapes], Shapes]] = {
    "allOf": Reader._all_of,
    "anyOf": Reader._any_of,
    "oneOf": Reader._one_of,
    "$ref": Reader._ref,
}


def narrowed(shapes: Shapes) -> Shapes:
    """Where only values of one type are spoken of and no type is named, that one is meant."""
    spoken_of = [kind for kind, alike in shapes.items() if not all(map(free, alike))]
    return {kind: shapes[kind] for kind in spoken_of} if len(shapes) == len(FREE) and len(spoken_of) == 1 else shapes


def _tightness(bound: Bound) -> tuple[Fraction, bool]:
    return bound.at, bound.open


def _lowest(bounds: list[Bound]) -> Bound | None:
    return min(bounds, key=lambda bound: (bound.at, not bound.open), default=None)


def _same(value: Any, other: Any) -> bool:
    """Equal, and 1 is not True."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
