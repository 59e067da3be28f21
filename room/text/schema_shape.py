"""What JSON values may look like: the form that schemas are brought into before a grammar is written.

A schema becomes Shapes: for each JSON type the alternatives a value of that type has, none where the type is not
allowed. Two Shapes can be intersected, joined and told apart by looking at pairs of alternatives of one type, which is
what allOf, anyOf and oneOf come down to.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Place:
    """Where in the document a schema stands, as a JSON pointer, or (`literal`) a value that is the only one allowed."""

    path: str
    literal: bool = False
    raw: Any = field(default=None, compare=False, repr=False)


Node: TypeAlias = tuple[Place, ...]
"""A value that fits the schemas at all of these places; with none of them, any value."""


ANYTHING: Node = ()
NOTHING: Node = (Place("", raw=False),)


def both(left: Node, right: Node) -> Node:
    return tuple(dict.fromkeys(left + right))


@dataclass(frozen=True)
class Null:
    pass


@dataclass(frozen=True)
class Boolean:
    values: frozenset[bool] = frozenset((False, True))


@dataclass(frozen=True)
class Bound:
    """A limit of a number; with `open` the limit itself is not allowed."""

    at: Fraction
    open: bool = False


@dataclass(frozen=True)
class Number:
    integer: bool = False
    low: Bound | None = None
    high: Bound | None = None
    values: tuple[int | float, ...] | None = None

    def holds(self, value: int | float) -> bool:
        at = exact(value)
        low, high = self.low, self.high
        return (
            (not self.integer or at.denominator == 1)
            and (low is None or at > low.at or (at == low.at and not low.open))
            and (high is None or at < high.at or (at == high.at and not high.open))
        )

    @property
    def empty(self) -> bool:
        if self.values is not None:
            return not self.values
        if self.low is None or self.high is None:
            return False
        if self.integer:
            return lowest_integer(self.low) > highest_integer(self.high)
        return self.low.at > self.high.at or (self.low.at == self.high.at and (self.low.open or self.high.open))


@dataclass(frozen=True)
class String:
    """Lengths are in code points; `patterns` match the whole string and are in the dialect of the grammar compiler."""

    shortest: int = 0
    longest: int | None = None
    patterns: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None

    @property
    def empty(self) -> bool:
        return self.values == () or (self.longest is not None and self.shortest > self.longest)


@dataclass(frozen=True)
class Array:
    """`first` items have schemas of their own, the others `rest`."""

    first: tuple[Node, ...] = ()
    rest: Node = ANYTHING
    fewest: int = 0
    most: int | None = None

    def item(self, at: int) -> Node:
        return self.first[at] if at < len(self.first) else self.rest

    @property
    def empty(self) -> bool:
        return self.most is not None and self.fewest > self.most


@dataclass(frozen=True, eq=False)
class Object:
    """`rest` is what keys other than the `properties` hold; None where no schema says so.

    Then any key may come to an object whose schema lists no properties (not `listed`) and none to one whose does.
    """

    properties: Mapping[str, Node] = field(default_factory=dict)
    rest: Node | None = None
    listed: bool = False
    required: tuple[str, ...] = ()
    fewest: int = 0
    most: int | None = None

    @property
    def closed(self) -> bool:
        return self.rest == NOTHING or (self.rest is None and self.listed)

    @cached_property
    def keys(self) -> dict[str, Node]:
        """Every key with a name, in the order they are written in."""
        unlisted = self.rest if self.rest is not None else ANYTHING
        return {**self.properties, **{name: unlisted for name in self.required if name not in self.properties}}

    def under(self, name: str) -> Node:
        """What JSON schema itself lets `name` hold."""
        unlisted = self.rest if self.rest is not None else ANYTHING
        return self.properties.get(name, unlisted)

    @property
    def free(self) -> bool:
        """Any object will do."""
        return not (self.properties or self.listed or self.required or self.fewest) and (
            self.rest in (None, ANYTHING) and self.most is None
        )

    @property
    def empty(self) -> bool:
        return self.most is not None and max(self.fewest, len(self.required)) > self.most


Shape: TypeAlias = Null | Boolean | Number | String | Array | Object
Shapes: TypeAlias = dict[type[Shape], tuple[Shape, ...]]

FREE: Shapes = {kind: (kind(),) for kind in (Null, Boolean, Number, String, Array, Object)}


def free(shape: Shape) -> bool:
    """Any value of its type will do."""
    return shape.free if isinstance(shape, Object) else shape == type(shape)()


def exact(value: int | float) -> Fraction:
    """The number that its JSON text says, which is not what a float holds."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def lowest_integer(low: Bound) -> int:
    at = -(-low.at.numerator // low.at.denominator)
    return at + 1 if low.open and at == low.at else at


def highest_integer(high: Bound) -> int:
    at = high.at.numerator // high.at.denominator
    return at - 1 if high.open and at == high.at else at


def intersect(left: Shapes, right: Shapes) -> Iterator[Shape]:
    """What fits both. One at a time, since there may be very many."""
    for kind, shapes in left.items():
        for one in shapes:
            for other in right.get(kind, ()):
                merged = one if free(other) else other if free(one) else _MERGE[kind](one, other)
                if not merged.empty if isinstance(merged, Number | String | Array | Object) else merged is not None:
                    yield merged


def by_type(shapes: Iterator[Shape]) -> Shapes:
    """One that is free makes the others of its type needless."""
    found: dict[type[Shape], list[Shape]] = {}
    for shape in shapes:
        found.setdefault(type(shape), []).append(shape)
    return {kind: tuple(next(([one] for one in alike if free(one)), alike)) for kind, alike in found.items()}


def _merge_boolean(one: Boolean, other: Boolean) -> Boolean | None:
    values = one.values & other.values
    return Boolean(values) if values else None


def _merge_number(one: Number, other: Number) -> Number:
    lows = [shape.low for shape in (one, other) if shape.low]
    highs = [shape.high for shape in (one, other) if shape.high]
    merged = Number(
        one.integer or other.integer,
        max(lows, key=lambda bound: (bound.at, bound.open), default=None),
        min(highs, key=lambda bound: (bound.at, not bound.open), default=None),
    )
    if one.values is None and other.values is None:
        return merged
    values = _common(one.values, other.values, exact)
    return Number(values=tuple(value for value in values if merged.holds(value)))


def _merge_string(one: String, other: String) -> String:
    shortest, longest = max(one.shortest, other.shortest), _least(one.longest, other.longest)
    patterns = tuple(dict.fromkeys(one.patterns + other.patterns))
    if one.values is None and other.values is None:
        return String(shortest, longest, patterns)
    values = _common(one.values, other.values, str)
    fitting = (value for value in values if shortest <= len(value) and (longest is None or len(value) <= longest))
    return String(patterns=patterns, values=tuple(fitting))


def _common(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None, key: Callable[[Any], Any]) -> tuple[Any, ...]:
    if one is None or other is None:
        return one if one is not None else other or ()
    keys = {key(value) for value in other}
    return tuple(value for value in one if key(value) in keys)


def _merge_array(one: Array, other: Array) -> Array:
    length = max(len(one.first), len(other.first))
    return Array(
        tuple(both(one.item(at), other.item(at)) for at in range(length)),
        both(one.rest, other.rest),
        max(one.fewest, other.fewest),
        _least(one.most, other.most),
    )


def _merge_object(one: Object, other: Object) -> Object:
    names = dict.fromkeys((*one.properties, *other.properties))
    rests = [shape.rest for shape in (one, other) if shape.rest is not None]
    return Object(
        {name: both(one.under(name), other.under(name)) for name in names},
        both(rests[0], rests[-1]) if rests else None,
        one.listed or other.listed,
        tuple(dict.fromkeys(one.required + other.required)),
        max(one.fewest, other.fewest),
        _least(one.most, other.most),
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


_MERGE: dict[type[Shape], Callable[[Any, Any], Any]] = {
    Null: lambda one, _: one,
    Boolean: _merge_boolean,
    Number: _merge_number,
    String: _merge_string,
    Array: _merge_array,
    Object: _merge_object,
}


def disjoint(left: Shapes, right: Shapes, property_disjoint: Callable[[Node, Node], bool]) -> bool:
    """No value fits both, and that is certain. `property_disjoint` answers for what two objects hold in one key."""
    return all(
        _DISJOINT[kind](one, other, property_disjoint)
        for kind, shapes in left.items()
        for one in shapes
        for other in right.get(kind, ())
    )


def _disjoint_objects(one: Object, other: Object, property_disjoint: Callable[[Node, Node], bool]) -> bool:
    names = dict.fromkeys(one.required + other.required)
    most = _least(one.most, other.most)
    return (most is not None and max(one.fewest, other.fewest, len(names)) > most) or any(
        property_disjoint(one.under(name), other.under(name)) for name in names
    )


_DISJOINT: dict[type[Shape], Callable[[Any, Any, Any], bool]] = {
    Null: lambda *_: False,
    Boolean: lambda one, other, _: not one.values & other.values,
    Number: lambda one, other, _: _merge_number(one, other).empty,
    String: lambda one, other, _: _merge_string(one, other).empty,
    Array: lambda one, other, _: _merge_array(one, other).empty,
    Object: _disjoint_objects,
}
