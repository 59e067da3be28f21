"""Shapes as a JSON schema in the few forms that the grammar compiler takes at their word.

One definition for each node with arrays or objects, since nodes recur and nest deep; everything else stands where it is
used. What no value fits is gone: an alternative, an optional key. Every number's bounds are exact as floats.
"""

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from typing import Any

from room.text.schema_errors import SchemaTooComplex
from room.text.schema_probe import Unwritable, fits_something, string_schema
from room.text.schema_read import Reader
from room.text.schema_shape import (
    ANYTHING,
    Array,
    Boolean,
    Bound,
    Node,
    Null,
    Number,
    Object,
    Shape,
    Shapes,
    String,
    free,
    highest_integer,
    lowest_integer,
)

Schema = dict[str, Any]

_MOST_NODES = 20_000
_DEEPEST = 150
"""How deep definitions may use one another: the compiler recurses on the native stack, which 1,000 overflow."""
_MOST_ITEMS = 20_000

_INTEGERS = 10**18 - 1
"""Integers have 18 digits at most, so that a weak model comes to an end."""
_DIGITS = 15
"""Decimals of so many digits in all are told apart by every parser that reads them as floats."""
_DECIMALS = 9

# At most one blank, or a line break with an indent, between two tokens.
_WHITESPACE = r" |\n(?:\t{0,16}| {0,64})"


def guidance(*, open_objects: bool = False) -> Schema:
    """How the compiler is to read a schema: the x-guidance of its root.

    Escapes of printable characters are let through, except where an object has keys beside those it lists: a listed
    key would slip past its own schema in another spelling.
    """
    options: Schema = {"whitespace_flexible": False, "whitespace_pattern": _WHITESPACE}
    if open_objects:
        return {**options, "json_allowed_escapes": 'nrbtf\\"'}
    return {**options, "json_allow_general_unicode_escapes": True}


def write(reader: Reader, root: Node) -> Schema:
    """The schema for a grammar, of all that fits the node `root`. Raises InvalidSchema and SchemaTooComplex."""
    return _Writer(reader, root).write()


class _Writer:
    def __init__(self, reader: Reader, root: Node) -> None:
        self._reader = reader
        self._root = root
        self._nodes: dict[Node, Shapes] = {}
        self._possible: set[Node] = set()
        self._names: dict[Node, str] = {}
        self._shared: dict[str, str] = {}
        self._open_objects = False

    def write(self) -> Schema:
        self._discover()
        self._find_possible()
        if self._root not in self._possible:
            raise self._reader.refuse("", "#", "is impossible: no value fits it")
        self._check_depth()
        schema = self._use(self._root)
        definitions: dict[str, Schema] = {}
        while len(definitions) < len(self._names):
            for node, name in list(self._names.items())[len(definitions) :]:
                definitions[name] = self._alternatives(node)
        definitions |= {name: json.loads(schema) for schema, name in self._shared.items()}
        return {"x-guidance": guidance(open_objects=self._open_objects), "$defs": definitions, **schema}

    def _discover(self) -> None:
        """Read every node that can be reached."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if node in self._nodes:
                continue
            if len(self._nodes) == _MOST_NODES:
                raise SchemaTooComplex("it has too many parts")
            shapes = self._reader.shapes(node)
            if String in shapes:
                shapes = {**shapes, String: tuple(filter(None, (self._probed(one, node) for one in shapes[String])))}
            self._nodes[node] = shapes
            waiting += [child for shape in _shapes(shapes) for child in _children(shape)]

    def _probed(self, shape: Shape, node: Node) -> Shape | None:
        """A string shape, if there is such a string."""
        assert isinstance(shape, String)
        if not shape.patterns:
            return shape
        try:
            if fits_something(shape):
                return shape
        except Unwritable as error:
            self._reader.pass_over("pattern", node[0].path, str(error))
            return String(shape.shortest, shape.longest, (), shape.values)
        if len(node) == 1:
            self._reader.pass_over("pattern", node[0].path, "matches no text that the rest of the schema allows")
        return None

    def _find_possible(self) -> None:
        """Nodes that some finite value fits."""
        found = True
        while found:
            # Children come after their parents, so that looking backwards mostly takes one round.
            found = False
            for node in reversed(self._nodes):
                if node not in self._possible and any(map(self._is_possible, _shapes(self._nodes[node]))):
                    self._possible.add(node)
                    found = True

    def _is_possible(self, shape: Shape) -> bool:
        if isinstance(shape, Object):
            known = sum(node in self._possible for node in shape.keys.values())
            return all(shape.keys[name] in self._possible for name in shape.required) and (
                shape.fewest <= known or (not shape.closed and (shape.rest or ANYTHING) in self._possible)
            )
        if isinstance(shape, Array):
            needed = {shape.item(at) for at in range(min(shape.fewest, len(shape.first) + 1))}
            return needed <= self._possible
        return True

    def _check_depth(self) -> None:
        """Walk the definitions as the compiler will."""
        seen = {self._root}
        stack = [iter(self._below(self._root))]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
            elif node not in seen:
                seen.add(node)
                stack.append(iter(self._below(node)))
                if len(stack) > _DEEPEST:
                    raise SchemaTooComplex("it nests too deep")

    def _below(self, node: Node) -> list[Node]:
        children = chain.from_iterable(map(_children, _shapes(self._nodes[node])))
        return [child for child in children if child in self._possible and self._is_defined(child)]

    def _is_defined(self, node: Node) -> bool:
        return any(isinstance(shape, Array | Object) and not free(shape) for shape in _shapes(self._nodes[node]))

    def _use(self, node: Node) -> Schema:
        """The schema of a node where it is used."""
        if not self._is_defined(node):
            return self._alternatives(node)
        return {"$ref": f"#/$defs/{self._names.setdefault(node, f'n{len(self._names)}')}"}

    def _alternatives(self, node: Node) -> Schema:
        shapes = [shape for shape in _shapes(self._nodes[node]) if self._is_possible(shape)]
        if len(self._nodes[node]) == len(_WRITE) and all(map(free, shapes)):
            return {}
        options = list(filter(None, (_WRITE[type(shape)](self, shape, node) for shape in _joined(shapes))))
        if not options:
            raise self._reader.refuse("", node[0].path, "is impossible: no value fits it")
        return options[0] if len(options) == 1 else {"anyOf": options}

    # ---- one shape; None where no value is left that can be written

    def _null(self, shape: Null, node: Node) -> Schema:
        return {"type": "null"}

    def _boolean(self, shape: Boolean, node: Node) -> Schema:
        return {"type": "boolean"} if len(shape.values) == 2 else {"const": next(iter(shape.values))}

    def _number(self, shape: Number, node: Node) -> Schema | None:
        if shape.values is not None:
            return {"enum": list(shape.values)}
        try:
            return self._once(_integer(shape)) if shape.integer else _decimal(shape)
        except Unwritable as error:
            self._reader.pass_over("minimum" if shape.low else "maximum", node[0].path, str(error))
            return {"type": "number"}

    def _string(self, shape: String, node: Node) -> Schema | None:
        schema = string_schema(shape)
        return self._once(schema) if shape.patterns else schema

    def _once(self, schema: Schema | None) -> Schema | None:
        """By reference: the compiler builds what such a schema may be from scratch wherever it stands."""
        if schema is None:
            return None
        name = self._shared.setdefault(json.dumps(schema), f"s{len(self._shared)}")
        return {"$ref": f"#/$defs/{name}"}

    def _array(self, shape: Array, node: Node) -> Schema | None:
        most = math.inf if shape.most is None else shape.most
        if shape.rest not in self._possible:
            most = min(most, len(shape.first))
        impossible = (at for at, item in enumerate(shape.first) if item not in self._possible)
        most = min(most, next(impossible, most))
        if max(shape.fewest, most if most < math.inf else 0) > _MOST_ITEMS:
            raise SchemaTooComplex(f"it counts to more than {_MOST_ITEMS} items")
        schema: Schema = {"type": "array"}
        if first := [self._use(item) for at, item in enumerate(shape.first) if at < most]:
            schema["prefixItems"] = first
        if most > len(shape.first):
            schema["items"] = self._use(shape.rest)
        if shape.fewest:
            schema["minItems"] = shape.fewest
        return schema if most == math.inf else {**schema, "maxItems": int(most)}

    def _object(self, shape: Object, node: Node) -> Schema | None:
        open_rest = not shape.closed and (shape.rest or ANYTHING) in self._possible
        keys: dict[str, Schema | bool] = {}
        for name, value in shape.keys.items():
            if value in self._possible:
                keys[name] = self._use(value)
            elif open_rest:
                keys[name] = False
        counts = self._counts(shape, [name for name in keys if keys[name] is not False], open_rest, node)
        if counts is None:
            return None
        self._open_objects |= open_rest and bool(keys)
        rest = self._use(shape.rest or ANYTHING) if open_rest else False
        schema = {"type": "object", "properties": keys, "required": list(shape.required), "additionalProperties": rest}
        return {**schema, **counts}

    def _counts(self, shape: Object, names: list[str], open_rest: bool, node: Node) -> Schema | None:
        """minProperties and maxProperties as far as they say something that the compiler can hold to."""
        required, optional = len(shape.required), len(names) - len(shape.required)
        most = math.inf if open_rest else len(names)
        if shape.fewest > most:
            return None
        missing = shape.fewest - required
        counts: Schema = {}
        if missing > 0:
            counts["minProperties"] = shape.fewest
        if shape.most is not None and shape.most < most:
            counts["maxProperties"] = shape.most
        if open_rest:
            # Keys that nobody lists may come twice, so that no more than one can be asked for.
            held = missing <= 1 and not optional
        else:
            held = missing <= 1 and counts.get("maxProperties", required + 1) == required + 1
        if counts and not held:
            keyword = next(iter(counts))
            self._reader.pass_over(keyword, node[0].path, "cannot be enforced beside optional properties; leave it out")
            return {}
        return counts


def _shapes(shapes: Shapes) -> Iterator[Shape]:
    return chain.from_iterable(shapes.values())


def _children(shape: Shape) -> Iterator[Node]:
    if isinstance(shape, Array):
        yield from shape.first
        yield shape.rest
    elif isinstance(shape, Object):
        yield from shape.keys.values()
        if not shape.closed:
            yield shape.rest or ANYTHING


def _joined(shapes: list[Shape]) -> list[Shape]:
    """Fewer alternatives: values of all in one."""
    numbers = [value for one in shapes if isinstance(one, Number) and one.values for value in one.values]
    strings = [
        value for one in shapes if isinstance(one, String) and one.values and not one.patterns for value in one.values
    ]
    booleans = [value for one in shapes if isinstance(one, Boolean) for value in one.values]
    rest = [
        one
        for one in shapes
        if not isinstance(one, Boolean)
        and not (isinstance(one, Number) and one.values)
        and not (isinstance(one, String) and one.values and not one.patterns)
    ]
    joined: list[Shape] = [Boolean(frozenset(booleans))] * bool(booleans)
    joined += [Number(values=tuple(dict.fromkeys(numbers)))] * bool(numbers)
    joined += [String(values=tuple(dict.fromkeys(strings)))] * bool(strings)
    return joined + rest


def _integer(shape: Number) -> Schema | None:
    low = max(lowest_integer(shape.low), -_INTEGERS) if shape.low else -_INTEGERS
    high = min(highest_integer(shape.high), _INTEGERS) if shape.high else _INTEGERS
    if low > _INTEGERS or high < -_INTEGERS:
        raise Unwritable("asks for integers beyond 18 digits, which cannot be enforced exactly")
    low, high = _inward(low, math.inf), _inward(high, -math.inf)
    return {"type": "integer", "minimum": low, "maximum": high} if low <= high else None


def _inward(value: int, towards: float) -> int:
    """The nearest integer that a float holds."""
    near = float(value)
    while (int(near) < value) if towards > 0 else (int(near) > value):
        near = math.nextafter(near, towards)
    return int(near)


def _decimal(shape: Number) -> Schema | None:
    """Bounds on a grid of decimals: what lies on neither side of a bound as text does not as a float either.

    The compiler lets 0.50 but not 0.5 pass where the maximum is 0.55. So numbers with fewer places than the bounds
    have get alternatives of their own.
    """
    bounds = [bound for bound in (shape.low, shape.high) if bound]
    if not bounds:
        return {"type": "number"}
    needed = max(map(_places, bounds))
    finest = _finest(bounds, needed)
    options = list(filter(None, (_range(shape, places, finest) for places in (*range(needed), finest))))
    return {"anyOf": options} if len(options) > 1 else options[0] if options else None


def _range(shape: Number, places: int, finest: int) -> Schema | None:
    """The numbers with so many decimal places."""
    scale = 10**places
    schema: Schema = {"type": "number", "minimum": -(10**_DIGITS), "maximum": 10**_DIGITS}
    low, high = -math.inf, math.inf
    # A bound that is itself excluded is moved by one step; not so on the side away from zero, where the compiler
    # would want all of its nines.
    if shape.low:
        low = math.ceil(shape.low.at * scale)
        schema["minimum"] = _float(Fraction(low, scale))
        if shape.low.open and low == shape.low.at * scale:
            if places == finest and low < 0:
                schema["exclusiveMinimum"] = schema.pop("minimum")
            else:
                schema["minimum"] = _float(Fraction(low + 1, scale))
            low += 1
    if shape.high:
        high = math.floor(shape.high.at * scale)
        schema["maximum"] = _float(Fraction(high, scale))
        if shape.high.open and high == shape.high.at * scale:
            if places == finest and high > 0:
                schema["exclusiveMaximum"] = schema.pop("maximum")
            else:
                schema["maximum"] = _float(Fraction(high - 1, scale))
            high -= 1
    if low > high:
        return None
    if low == high:
        return {"enum": [_float(Fraction(int(low), scale))]}
    return {**schema, "multipleOf": float(Fraction(1, scale)) if places else 1}


def _places(bound: Bound) -> int:
    places = next((places for places in range(_DIGITS) if (bound.at * 10**places).denominator == 1), None)
    if places is None:
        raise Unwritable("has too many digits to be enforced exactly")
    return places


def _finest(bounds: list[Bound], needed: int) -> int:
    """How many decimal places the numbers between `bounds` may have."""
    whole = max(len(str(abs(int(bound.at)))) for bound in bounds)
    most = min(max(_DECIMALS, needed + 2), _DIGITS - whole)
    usable = [places for places in range(needed, most + 1) if _counts_down(places)]
    if not usable:
        raise Unwritable("has too many digits to be enforced exactly")
    return usable[-1]


def _counts_down(places: int) -> bool:
    """The compiler finds a step's decimal places by multiplying with ten until it is whole, which may go astray."""
    step, found = 10.0**-places, 0
    while not step.is_integer() and found <= places:
        step, found = step * 10, found + 1
    return step == 1 and found == places


def _float(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


_WRITE: dict[type[Shape], Any] = {
    Null: _Writer._null,
    Boolean: _Writer._boolean,
    Number: _Writer._number,
    String: _Writer._string,
    Array: _Writer._array,
    Object: _Writer._object,
}
