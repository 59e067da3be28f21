"""Reading one member of a JSON object. An optional member that is null is absent; a boolean is never a number."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bridge.errors import InvalidRequest

JsonObject = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")


def invalid_type(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{param} must be {expected}.", param=param, code="invalid_type")


def invalid_value(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{param} must be {expected}.", param=param, code="invalid_value")


def unsupported(param: str, sentence: str, *, code: str = "unsupported_parameter") -> InvalidRequest:
    return InvalidRequest(sentence, param=param, code=code)


def clean(text: str) -> str:
    """`text` with half surrogate pairs, which UTF-8 cannot carry, replaced by U+FFFD.

    Clients that once cut an emoji in two send it with their history for ever: refusing would end the session.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def compact(value: object, param: str) -> str:
    """`value` as JSON text without blanks, its keys in the caller's order."""
    try:
        return clean(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except RecursionError as error:  # writing goes a little less deep than reading did
        raise invalid_value(param, "nested less deeply") from error
    except ValueError as error:  # 1e999 is read as infinity, which JSON cannot write
        raise invalid_value(param, "without numbers that are too large") from error


def text(data: JsonObject, name: str, param: str) -> str | None:
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid_type(param, "a string")
    return clean(value)


def boolean(data: JsonObject, name: str, param: str | None = None) -> bool | None:
    value = data.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid_type(param or name, "true or false")
    return value


def number(data: JsonObject, name: str, low: float, high: float) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    expected = f"a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_type(name, expected)
    if not low <= value <= high:
        raise invalid_value(name, expected)
    return float(value)


def count(data: JsonObject, name: str) -> int | None:
    """A whole number of 1 or more; 5.0 is 5."""
    value = data.get(name)
    if value is None:
        return None
    expected = "a whole number of 1 or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_type(name, expected)
    if value < 1 or (isinstance(value, float) and not value.is_integer()):
        raise invalid_value(name, expected)
    return int(value)


def mapping(data: JsonObject, name: str) -> JsonObject:
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid_type(name, "an object")
    return value


def sequence(data: JsonObject, name: str, param: str | None = None) -> Sequence[Any]:
    value = data.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid_type(param or name, "an array")
    return value


def refuse(data: JsonObject, name: str, sentence: str) -> None:
    """Refuse `name` when it is there and not null."""
    if data.get(name) is not None:
        raise unsupported(name, sentence)


def neutral(data: JsonObject, name: str) -> None:
    """Refuse a number that asks for something: 0 asks for nothing."""
    value = data.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_type(name, "a number")
    if value != 0:
        raise unsupported(name, f"{name} is not supported; leave it out or send 0.", code="unsupported_value")
