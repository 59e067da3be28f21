"""Section A and what HTTP itself asks of a server, byte by byte."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator

import pytest

from bridge.app import listening
from bridge.config import BridgeConfig, Timeouts
from tests.bridge.conftest import USER, Bridge, error_of, running
from tests.bridge.fake_room import FakeRoom, Pause, answer, queued
from tests.bridge.wire import Reply, Wire

pytestmark = pytest.mark.anyio

ASK = {"messages": [USER]}


def error_in(reply: Reply) -> str:
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    return str(reply.json()["error"]["code"])


# ---------------------------------------------------------------- what is asked for


def test_P2_the_default_address_is_this_machine_alone() -> None:
    assert (BridgeConfig().host, BridgeConfig().port) == ("127.0.0.1", 8080)


async def test_P2_other_addresses_of_the_machine_are_closed(bridge: Bridge) -> None:
    with socket.socket() as other:
        other.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().sock_connect(other, ("127.0.0.2", bridge.port))


def test_small_answers_are_not_held_back() -> None:
    """asyncio switches Nagle's algorithm off only for sockets that name their protocol."""
    with listening(BridgeConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
async def test_P6_json_is_accepted(bridge: Bridge, kind: str) -> None:
    assert (await bridge.post(json.dumps(ASK).encode(), content_type=kind)).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_P6_C8_other_types_are_refused(bridge: Bridge, kind: str) -> None:
    reply = await bridge.post(json.dumps(ASK).encode(), content_type=kind)
    assert (reply.status_code, error_of(reply)["code"]) == (415, "unsupported_media_type")


async def test_P6_C8_no_type_is_refused(bridge: Bridge) -> None:
    reply = await bridge.http.post("/v1/chat/completions", content=json.dumps(ASK).encode())
    assert (reply.status_code, error_of(reply)["code"]) == (415, "unsupported_media_type")


async def test_P7_C8_a_compressed_body_is_refused(bridge: Bridge) -> None:
    reply = await bridge.post(gzip.compress(json.dumps(ASK).encode()), content_encoding="gzip")
    assert (reply.status_code, error_of(reply)["code"]) == (415, "unsupported_media_type")
    assert (await bridge.post(json.dumps(ASK).encode(), content_encoding="identity")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/v1/chat/completions/",
                                  "/chat/completions/", "/v1/chat/completions?api-version=2&x=y"])  # fmt: skip
async def test_P8_other_names_of_the_path(bridge: Bridge, path: str) -> None:
    assert (await bridge.http.post(path, json=ASK)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_P117_C5_only_post_asks(bridge: Bridge, method: str) -> None:
    reply = await bridge.http.request(method, "/v1/chat/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    if method == "HEAD":
        assert reply.content == b""
    else:
        assert error_of(reply)["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/pooled", "/health", "/ready", "/"])
async def test_P117_C5_other_routes_are_read_only(bridge: Bridge, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        reply = await bridge.http.request(method, path)
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")
        assert error_of(reply)["code"] == "method_not_allowed"
    got, head = await bridge.http.get(path), await bridge.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")


# ---------------------------------------------------------------- the connection


async def test_P7_P9_a_connection_is_used_again_and_stays_in_step(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        await wire.post(ASK)
        assert (await wire.read_reply()).status == 200
        await wire.post({"messages": []})
        assert (await wire.read_reply()).status == 400
        await wire.post(ASK, {"content-type": "text/plain"})
        assert (await wire.read_reply()).status == 415
        await wire.post({**ASK, "stream": True})
        assert (await wire.read_reply()).body.endswith(b"[DONE]\n\n")
        bridge.room.script = [queued(0)]
        await wire.post({**ASK, "stream": True})
        assert b'"error"' in (await wire.read_reply()).body
        await wire.send(wire.head("HEAD", "/v1/models"))
        assert (await wire.read_head()).status == 200
        await wire.send(wire.head("GET", "/nowhere"))
        assert (await wire.read_reply()).status == 404
        bridge.room.script = answer("Hello")
        await wire.post(ASK)
        assert (await wire.read_reply()).status == 200


async def test_P7_a_chunked_request(bridge: Bridge) -> None:
    body = json.dumps(ASK).encode()
    async with bridge.wire() as wire:
        headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
        await wire.send(wire.head("POST", "/v1/chat/completions", headers))
        for start in range(0, len(body), 7):
            piece = body[start : start + 7]
            await wire.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await wire.send(b"0\r\n\r\n")
        assert (await wire.read_reply()).status == 200
        await wire.post(ASK)
        assert (await wire.read_reply()).status == 200


async def test_P7_P102_expect_continue(bridge: Bridge) -> None:
    body = json.dumps(ASK).encode()
    async with bridge.wire() as wire:
        own = {"content-type": "application/json", "content-length": str(len(body)), "expect": "100-continue"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own))
        assert (await wire.read_head()).status == 100
        await wire.send(body)
        assert (await wire.read_reply()).status == 200


async def test_P7_expect_continue_is_refused_without_the_body_and_the_connection_ends(bridge: Bridge) -> None:
    """The caller may send its body or not: what follows on this connection could be either."""
    async with bridge.wire() as wire:
        own = {"content-type": "text/plain", "content-length": "9", "expect": "100-continue"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own))
        reply = await wire.read_reply()
        assert (reply.status, reply.headers["connection"]) == (415, "close")
        assert await wire.closed()


async def test_P9_a_refusal_before_the_body_leaves_the_connection_in_step(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        own = {"content-type": "text/plain", "content-length": "300000"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own))
        assert (await wire.read_reply()).status == 415
        await wire.send(b"x" * 300_000)
        await wire.post(ASK)
        assert (await wire.read_reply()).status == 200


async def test_P9_requests_sent_ahead_are_answered_in_order(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        await wire.post(ASK)
        await wire.send(wire.head("GET", "/nowhere"))
        await wire.send(wire.head("GET", "/v1/models"))
        assert [(await wire.read_reply()).status for _ in range(3)] == [200, 404, 200]


async def test_P9_idle_connections_are_kept_for_75_seconds() -> None:
    assert Timeouts().idle == 75


MALFORMED = {
    "garbage": b"\x00garbage\r\n\r\n",
    "no request line": b"\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "bad header": b"GET /health HTTP/1.1\r\nhost localhost\r\n\r\n",
    "bad length": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5),
    "HTTP/3": b"GET /health HTTP/3.0\r\nhost: 127.0.0.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"\x11" * 190,
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_P131_malformed_http_gets_the_error_shape(bridge: Bridge, data: bytes) -> None:
    async with bridge.wire() as wire:
        await wire.send(data)
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply)) == (400, "malformed_http")
        assert await wire.closed()


async def test_P131_a_header_too_large(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        await wire.send(b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000)
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply)) == (431, "header_too_large")


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"-5\r\nhello\r\n", b"f" * 25 + b"\r\nhello\r\n", b"2\r\n{}xx\r\n0\r\n\r\n"]
)
async def test_P131_a_chunked_body_that_is_none(bridge: Bridge, body: bytes) -> None:
    async with bridge.wire() as wire:
        headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
        await wire.send(wire.head("POST", "/v1/chat/completions", headers) + body)
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply)) == (400, "malformed_http")
        assert await wire.closed()
    assert not bridge.room.requests


async def test_P131_a_body_with_two_lengths_is_refused_and_what_follows_is_no_request(bridge: Bridge) -> None:
    """Somebody before us may have read its end elsewhere, and let through what it took for the body."""
    async with bridge.wire() as wire:
        own = {"content-type": "application/json", "content-length": "5", "transfer-encoding": "chunked"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own) + b"0\r\n\r\n" + wire.head("GET", "/health"))
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply), reply.headers["connection"]) == (400, "malformed_http", "close")
        assert await wire.closed()


async def test_P7_a_caller_that_only_closes_its_side_gets_its_answer(bridge: Bridge) -> None:
    for stream in (False, True):
        async with bridge.wire() as wire:
            await wire.post({**ASK, "stream": stream})
            wire.writer.write_eof()
            reply = await wire.read_reply()
            assert (reply.status, reply.complete) == (200, True)
            assert await wire.closed()


@pytest.fixture(scope="module")
async def hasty(fake_room: FakeRoom) -> AsyncIterator[Bridge]:
    """A bridge with little patience and little room."""
    timeouts = Timeouts(header=0.1, body=0.2, idle=0.3)
    async with running(fake_room, timeouts=timeouts, max_body=200_000) as bridge:
        yield bridge


async def test_C6_a_header_that_does_not_come(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        await wire.send(b"GET / HTTP/1.1\r\nhost: ")
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply), reply.headers["connection"]) == (408, "request_timeout", "close")
        assert await wire.closed()


async def test_C6_the_next_header_that_does_not_come(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        await wire.send(wire.head("GET", "/") + b"GET / HT")
        assert (await wire.read_reply()).status == 200
        assert (await wire.read_reply()).status == 408


async def test_C6_a_body_that_does_not_come(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        own = {"content-type": "application/json", "content-length": "100"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own) + b'{"messages"')
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply), reply.headers["connection"]) == (408, "request_timeout", "close")
        assert await wire.closed()


async def test_C6_an_unwanted_body_is_not_waited_for_without_end(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        own = {"content-type": "text/plain", "content-length": "100"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own))
        assert (await wire.read_reply()).status == 415
        assert await wire.closed()


async def test_P9_a_connection_whose_body_came_too_late_is_closed_when_idle(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        await wire.send(
            wire.head("POST", "/v1/chat/completions", {"content-type": "text/plain", "content-length": "3"})
        )
        assert (await wire.read_reply()).status == 415
        await wire.send(b"abc")
        assert await wire.closed()


async def test_P9_a_connection_that_never_asks_is_closed(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        assert await wire.closed()


async def test_so_many_connections_and_no_more(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.connection.MAX_CONNECTIONS", 2)
    async with bridge.wire() as first, bridge.wire():
        await first.send(first.head("GET", "/"))
        assert (await first.read_reply()).status == 200
        async with bridge.wire() as third:
            reply = await third.read_reply()
            assert (reply.status, reply.json()["error"]["code"]) == (503, "too_many_connections")
            assert await third.closed()
        await first.send(first.head("GET", "/"))
        assert (await first.read_reply()).status == 200, "those who were there before go on"


# ---------------------------------------------------------------- bodies


INVALID: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello",
    "array": b"[]",
    "string": b'"x"',
    "number": b"5",
    "null": b"null",
    "cut off": b'{"messages": [',
    "not UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "raw surrogate": b'{"messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}',
    "nested": b"[" * 100_000,
    "nested object": b'{"a":' * 100_000,
    "NaN": b'{"messages": [], "temperature": NaN}',
    "Infinity": b'{"messages": [], "temperature": -Infinity}',
    "endless number": b'{"seed": ' + b"9" * 10_000 + b"}",
    "two values": b"{} {}",
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
async def test_P132_what_is_no_json_object_is_refused(bridge: Bridge, body: bytes) -> None:
    reply = await bridge.post(body)
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["code"], error["param"]) == ("invalid_json", None)
    assert reply.headers["x-should-retry"] == "false"


async def test_P132_of_equal_keys_the_last_counts(bridge: Bridge) -> None:
    body = b'{"stream": "x", "messages": 5, "messages": [{"role": "user", "content": "hi"}], "stream": false}'
    assert (await bridge.post(body)).status_code == 200


async def test_P132_a_byte_order_mark_is_skipped(bridge: Bridge) -> None:
    assert (await bridge.post(b"\xef\xbb\xbf" + json.dumps(ASK).encode())).status_code == 200


async def test_P132_deep_nesting_in_what_is_written_again_is_no_crash(bridge: Bridge) -> None:
    for depth in (100, *range(900, 1000, 3)):
        arguments = b'{"a":' * depth + b"1" + b"}" * depth
        call = b'{"id": "c", "function": {"name": "f", "arguments": ' + arguments + b"}}"
        message = b'{"role": "assistant", "tool_calls": [' + call + b"]}"
        reply = await bridge.post(b'{"messages": [' + message + b', {"role": "user", "content": "hi"}]}')
        assert reply.status_code in (200, 400)


async def test_C17_a_body_of_countless_values_is_refused_unparsed(bridge: Bridge) -> None:
    reply = await bridge.post(b'{"messages": [' + b"[]," * 2_000_000 + b"0]}")
    assert (reply.status_code, error_of(reply)["code"]) == (400, "context_length_exceeded")


async def test_P132_P136_C7_a_body_over_64_mib_is_a_413(bridge: Bridge) -> None:
    head = b'{"messages": [{"role": "user", "content": "hi"}], "user": "'
    fits = head + b"x" * ((64 << 20) - len(head) - 2) + b'"}'
    assert (await bridge.post(fits)).status_code == 200
    reply = await bridge.post(fits + b" ")
    assert (reply.status_code, error_of(reply)["code"]) == (413, "request_too_large")


async def test_P136_a_body_too_large_is_refused_unread(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        own = {"content-type": "application/json", "content-length": str(10**12)}
        await wire.send(wire.head("POST", "/v1/chat/completions", own))
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply)) == (413, "request_too_large")


async def test_P136_the_connection_is_usable_after_a_413(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        await wire.post(b"x" * 200_001)
        assert (await wire.read_reply()).status == 413
        await wire.post(ASK)
        assert (await wire.read_reply()).status == 200


async def test_P136_a_chunked_body_too_large_is_a_413(hasty: Bridge) -> None:
    async with hasty.wire() as wire:
        headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
        await wire.send(wire.head("POST", "/v1/chat/completions", headers))
        chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        for _ in range(20):
            await wire.send(chunk)
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply)) == (413, "request_too_large")
        await wire.send(b"0\r\n\r\n")
        await wire.post(ASK)
        assert (await wire.read_reply()).status == 200


async def test_P136_also_for_a_caller_that_wants_the_connection_closed(hasty: Bridge) -> None:
    """Closing with unread bytes would reset the connection, and the caller might never see the status."""
    async with hasty.wire() as wire:
        size = 30 << 20
        own = {"content-type": "application/json", "content-length": str(size), "connection": "close"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own))
        for _ in range(size >> 20):
            await wire.send(b"x" * (1 << 20))
        reply = await wire.read_reply()
        assert (reply.status, error_in(reply)) == (413, "request_too_large")
        assert await wire.closed()


async def test_P133_the_order_of_refusals(bridge: Bridge) -> None:
    large = {"content-length": str(10**12)}
    for path, method, headers, status in [
        ("/nowhere", "PUT", {"host": "evil.example", **large}, 403),
        ("/nowhere", "PUT", large, 404),
        ("/v1/chat/completions", "PUT", large, 405),
        ("/v1/chat/completions", "POST", large, 415),
        ("/v1/chat/completions", "POST", {"content-type": "application/json", **large}, 413),
    ]:
        async with bridge.wire() as wire:
            await wire.send(wire.head(method, path, headers))
            assert (await wire.read_reply()).status == status


async def test_P110_a_whole_answer_may_take_longer_than_connections_idle(fake_room: FakeRoom) -> None:
    fake_room.reset()
    fake_room.script = [queued(0), Pause(1.2), *answer("late")[1:]]
    quick = Timeouts(header=0.1, body=0.2, idle=0.3)
    async with running(fake_room, timeouts=quick) as bridge, Wire(bridge.port) as wire:
        await wire.post(ASK)
        assert b"late" in (await wire.read_reply()).body


async def test_an_empty_line_before_a_request_is_ignored(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        for before in (b"\r\n", b""):  # in one piece with the request, and after an answer by itself
            await wire.send(before + wire.head("GET", "/v1/models"))
            assert (await wire.read_reply()).status == 200
            await wire.send(b"\r\n")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://127.0.0.1:{port}/v1/models", None, 200),
        ("HTTP://localhost:{port}/v1/models?x=http://a", None, 200),
        ("http://127.0.0.1:{port}/v1/models", "elsewhere.example", 200),
        ("http://elsewhere.example/v1/models", None, 403),
        ("http://127.0.0.1:{port}@elsewhere.example/v1/models", None, 403),
        ("http://127.0.0.1:{port}", None, 200),
        ("https://127.0.0.1:{port}/v1/models", None, 404),
    ],
)
async def test_C3_the_target_may_be_a_whole_url_whose_authority_counts(
    bridge: Bridge, target: str, host: str | None, status: int
) -> None:
    async with bridge.wire() as wire:
        await wire.send(wire.head("GET", target.format(port=bridge.port), {"host": host} if host else {}))
        assert (await wire.read_reply()).status == status
