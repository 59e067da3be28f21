"""Section K: the stream."""

import asyncio
import json
import re
from collections.abc import Sequence

import pytest

from bridge.sse import comment, data
from tests.bridge.conftest import USER, Bridge, deltas, error_of
from tests.bridge.fake_room import Pause, Refuse, Step, answer, finish, notice, prefill, queued, reasoning, text, usage
from tests.bridge.shapes import events_of

pytestmark = pytest.mark.anyio

STREAM = {"messages": [USER], "stream": True}
REST: list[Step] = [text("Hello"), finish(), usage()]


async def raw(bridge: Bridge, script: Sequence[Step]) -> str:
    """The stream's text for a script."""
    bridge.room.script = script
    reply = await bridge.ask(stream=True)
    assert reply.status_code == 200
    return reply.content.decode()


async def test_P1_the_curl_of_the_documentation(bridge: Bridge) -> None:
    body = b"""{
  "model": "pooled",
  "messages": [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is a KV cache?"}
  ],
  "stream": true,
  "stream_options": {"include_usage": true}
}"""
    reply = await bridge.post(body)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert reply.content.endswith(b"data: [DONE]\n\n")


async def test_P105_P106_the_order_and_shape_of_chunks(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), prefill(1, 2), reasoning("hm"), text(""), text("a"), reasoning(""), text("b")]
    bridge.room.script = [*bridge.room.script, finish(), usage()]
    *chunks, done = await bridge.events(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert {(chunk["object"], chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        ("chat.completion.chunk", chunks[0]["id"], chunks[0]["created"], "pooled/fake-1b")
    }
    assert chunks[0]["id"].startswith("chatcmpl-")
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["stop"]
    assert {choice["index"] for choice in choices} == {0}
    assert not any("message" in choice for choice in choices)


async def test_P105_the_role_chunk_comes_with_the_first_delta_not_before(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        bridge.room.script = [queued(0), notice("here"), Pause(0.05), *REST]
        await wire.post(STREAM)
        await wire.read_head()
        assert await wire.read_chunk() == b": here\n\n"
        role, first = events_of(await wire.read_chunk())
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["choices"][0]["delta"] == {"content": "Hello"}


async def test_P107_P112_nothing_but_data_lines_and_comments(chatty: Bridge) -> None:
    script: list[Step] = [
        queued(1),
        Pause(0.3),
        notice("a\nb\r\nid: 5"),
        text("x\nid: 1\n\nevent: y\u2028z\x85\r"),
        Pause(0.3),
    ]
    stream = await raw(chatty, [*script, finish(), usage()])
    assert stream.endswith("\n\n")
    assert "\r" not in stream
    for block in stream.removesuffix("\n\n").split("\n\n"):
        assert re.fullmatch(r"data: [^\n]+|: [^\n]+", block), block
        assert len(block.splitlines()) == 1, "split by a client that knows Unicode's line ends"


def test_P107_events_are_one_line_of_utf8() -> None:
    assert data({"a": "caf\u00e9 \U0001f9e9"}) == 'data: {"a":"caf\u00e9 \U0001f9e9"}\n\n'.encode()
    assert json.loads(data({"a": "\u2028\u2029\x85"}).removeprefix(b"data: ")) == {"a": "\u2028\u2029\x85"}


def test_P112_comments_carry_a_word_and_end_with_a_blank_line() -> None:
    assert comment("peer left,\nresuming") == b": peer left, resuming\n\n"


async def test_P108_the_headers_go_out_with_the_rooms_first_event(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        bridge.room.script = [queued(3), Pause(0.1), *REST]
        await wire.post(STREAM)
        head = await wire.read_head()
        assert head.status == 200
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert head.headers["cache-control"] == "no-cache"
        assert head.headers["x-accel-buffering"] == "no"
        assert head.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in head.headers
        assert bridge.room.running == 1, "nothing but Queued has been said yet"
        assert b"Hello" in (await wire.read_chunk())


async def kept_alive(bridge: Bridge, first: Sequence[Step], then: Sequence[Step]) -> str:
    """What a stream is from a comment that breaks a silence on. Only when that has come does the room go on."""
    gate = asyncio.Event()
    bridge.room.script = [*first, gate, *then]
    async with bridge.wire() as wire:
        await wire.post(STREAM)
        await wire.read_head()
        while (stream := await wire.read_chunk()) != b": keep-alive\n\n":
            pass
        gate.set()
        while chunk := await wire.read_chunk():
            stream += chunk
    return stream.decode()


async def test_P108_P114_a_silent_room_gets_headers_and_a_comment_and_later_faults_are_chunks(chatty: Bridge) -> None:
    stream = await kept_alive(chatty, [], [Refuse("context_length_exceeded", "too long", "messages")])
    error = events_of(stream.encode())[-1]["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "context_length_exceeded", "messages", "invalid_request_error"
    )  # fmt: skip
    assert "[DONE]" not in stream


async def test_P110_P111_P112_comments_while_waiting_reading_and_writing(chatty: Bridge) -> None:
    """The room goes on only when the comment has come."""
    stages = [
        (queued(2), b": queued, 2 ahead\n\n"),
        (queued(1), b": queued, 1 ahead\n\n"),
        (queued(0), b": keep-alive\n\n"),
        (prefill(1, 9), b": keep-alive\n\n"),
        (text("a"), b": keep-alive\n\n"),
        (text("b"), b": keep-alive\n\n"),
    ]
    gates = [asyncio.Event() for _ in stages]
    steps = zip((event for event, _ in stages), gates, strict=True)
    chatty.room.script = [step for stage in steps for step in stage] + [finish(), usage()]
    async with chatty.wire() as wire:
        await wire.post(STREAM)
        await wire.read_head()
        for (_, said), gate in zip(stages, gates, strict=True):
            while await wire.read_chunk() != said:
                pass
            gate.set()
        rest = b""
        while chunk := await wire.read_chunk():
            rest += chunk
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_P111_a_running_request_is_never_called_queued(chatty: Bridge) -> None:
    stream = await kept_alive(chatty, [queued(2), prefill(0, 9), queued(2)], [prefill(9, 9), queued(2), *REST])
    assert "queued" not in stream
    assert '"content":"Hello"' in stream


async def test_P112_a_notice_is_a_comment(bridge: Bridge) -> None:
    stream = await raw(bridge, [queued(0), text("a"), notice("peer left, resuming"), notice(" "), *REST])
    assert ": peer left, resuming\n\n" in stream
    assert "\n: \n" not in stream


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("pipeline_lost", "server_error"),
        ("internal_error", "server_error"),
        ("cancelled_by_room", "server_error"),
        ("room_timeout", "server_error"),
        ("queue_timeout", "server_error"),
    ],
)
async def test_P113_C15_a_failure_after_the_start_is_an_error_chunk(bridge: Bridge, code: str, kind: str) -> None:
    bridge.room.script = [queued(0), text("half"), Refuse(code, "it broke")]
    async with bridge.wire() as wire:
        await wire.post(STREAM)
        reply = await wire.read_reply()
        assert reply.complete, "the chunked body must end cleanly"
        *chunks, last = events_of(reply.body)
        assert set(last) == {"error"}
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert (last["error"]["code"], last["error"]["type"]) == (code, kind)
        assert last["error"]["message"] == f"it broke; request id: {reply.headers['x-request-id']}"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        assert b"[DONE]" not in reply.body


async def test_P113_no_finish_chunk_when_the_room_fails_between_finish_and_usage(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("half"), finish(), Refuse("pipeline_lost", "it broke")]
    *chunks, last = await bridge.events()
    assert last["error"]["code"] == "pipeline_lost"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_P105_what_happens_after_the_usage_does_not_matter(bridge: Bridge, stream: bool) -> None:
    bridge.room.script = [*answer("Hello"), Refuse("internal_error", "too late")]
    reply = await bridge.ask(stream=stream)
    assert reply.status_code == 200
    assert "Hello" in reply.text
    assert "too late" not in reply.text


async def test_P114_a_failure_before_the_first_event_is_a_status(bridge: Bridge) -> None:
    bridge.room.script = [Refuse("no_pipeline", "layers 8 to 15 have no holder")]
    reply = await bridge.ask(stream=True)
    assert reply.status_code == 503
    error = error_of(reply)
    assert (error["code"], error["message"].partition(";")[0]) == ("no_pipeline", "layers 8 to 15 have no holder")


async def test_P5_every_chunk_has_a_choice_unless_usage_was_asked_for(bridge: Bridge) -> None:
    events = await bridge.events()
    assert all(event["choices"] for event in events if event != "[DONE]")
    assert "".join(delta.get("content") or "" for delta in deltas(events)) == "Hello there"


async def test_B35_comments_do_not_reach_the_answer(chatty: Bridge) -> None:
    script: list[Step] = [Pause(0.25), queued(1), Pause(0.25), text("a"), Pause(0.25), text("b")]
    stream = await raw(chatty, [*script, finish(), usage()])
    assert "".join(delta.get("content", "") for delta in deltas(events_of(stream.encode()))) == "ab"
