"""The body of a POST: its type, its size, its arrival and its JSON."""

import json
from collections.abc import Mapping

import anyio
from starlette.types import Receive

from bridge.errors import (
    ClientGone,
    ContextTooLong,
    InvalidRequest,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from bridge.members import JsonObject

MAX_JSON_VALUES = 2_000_000
"""More than any text within the limits can need. 64 MiB of `[],` would take seconds and gigabytes to parse."""


def check_content(headers: Mapping[str, str], limit: int) -> None:
    """Refuse by the header alone what is not JSON, compressed, or longer than `limit` bytes."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("The request's content-type must be application/json.")
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("The request's body must not be compressed.")
    if int(headers.get("content-length", "0")) > limit:
        raise _too_large(limit)


async def read_body(receive: Receive, limit: int, timeout: float) -> bytes:
    """The whole body, which must be there within `timeout` seconds."""
    body = bytearray()
    with anyio.move_on_after(timeout):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("the client left while it was sending its request")
            body += message["body"]
            if len(body) > limit:
                raise _too_large(limit)
            if not message["more_body"]:
                return bytes(body)
    raise RequestTimeout(f"The request's body was not complete after {timeout:g} seconds.")


def parse_json(body: bytes) -> JsonObject:
    """The JSON object in `body`. Of a key that comes twice the last one counts.

    Raises InvalidRequest for anything else, NaN and Infinity included, and for nesting deeper than the parser goes.
    """
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > MAX_JSON_VALUES:
        raise ContextTooLong(f"The request has more than {MAX_JSON_VALUES:,} JSON values, more than any context holds.")
    try:
        # Some Windows clients write a byte order mark; RFC 8259 lets readers skip it.
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _invalid_json("it is not UTF-8") from error
    except RecursionError as error:
        raise _invalid_json("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise _invalid_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise _invalid_json("it has a number that JSON does not know or that is too long") from error
    if not isinstance(value, dict):
        raise _invalid_json("it is not an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _invalid_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The request's body must be a JSON object: {reason}.", code="invalid_json")


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request's body is larger than {limit} bytes.")
