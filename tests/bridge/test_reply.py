"""Section J: the whole answer."""

import time

import pytest

from protos import room_pb2
from tests.bridge.conftest import Bridge, deltas, error_of
from tests.bridge.fake_room import MODEL, Pause, Refuse, answer, finish, notice, queued, reasoning, text, usage

pytestmark = pytest.mark.anyio


async def test_P92_P94_the_shape_of_a_whole_answer(bridge: Bridge) -> None:
    reply = await bridge.ask()
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert abs(body.pop("created") - time.time()) < 60
    assert body.pop("id").startswith("chatcmpl-")
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 31, "completion_tokens": 2, "total_tokens": 33},
    }


async def test_P92_ids_are_unique(bridge: Bridge) -> None:
    assert len({(await bridge.ask()).json()["id"] for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (room_pb2.FINISH_REASON_STOP, "stop"),
        (room_pb2.FINISH_REASON_LENGTH, "length"),
        (room_pb2.FINISH_REASON_TOOL_CALLS, "tool_calls"),
    ],
)
async def test_P93_P95_P96_finish_reasons(bridge: Bridge, reason: room_pb2.FinishReason.ValueType, word: str) -> None:
    bridge.room.script = [queued(0), text("x"), finish(reason), usage()]
    assert (await bridge.ask()).json()["choices"][0]["finish_reason"] == word
    *_, last, done = await bridge.events()
    assert (last["choices"][0]["finish_reason"], done) == (word, "[DONE]")


@pytest.mark.parametrize("script", [[queued(0), text("x"), finish(room_pb2.FINISH_REASON_UNSPECIFIED), usage()],
                                    [queued(0), text("x")], [queued(0), text("x"), finish()],
                                    [queued(0), text("x"), usage()], []])  # fmt: skip
async def test_P93_P113_an_answer_without_a_proper_end_is_none(
    bridge: Bridge, script: list[room_pb2.GenerateEvent]
) -> None:
    bridge.room.script = script
    reply = await bridge.ask()
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")
    if script:
        *chunks, last = await bridge.events()
        assert last["error"]["code"] == "internal_error"
        assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)


async def test_P97_P98_P99_cached_tokens_are_what_the_room_says(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("x"), finish(), usage(prompt=31, completion=1, cached=16)]
    counts = (await bridge.ask()).json()["usage"]
    assert counts == {
        "prompt_tokens": 31,
        "completion_tokens": 1,
        "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    *_, last, _ = await bridge.events(stream_options={"include_usage": True})
    assert last["usage"] == counts


async def test_P100_P109_both_forms_give_the_same_text_and_counts(bridge: Bridge) -> None:
    pieces = ["caf\u00e9 ", "\U0001f6d1", "\U0001f468\u200d\U0001f469", ' "quoted" \\ \n', "\u2028\x85\x00 end"]
    bridge.room.script = [queued(0), reasoning("\u7d76"), *map(text, pieces), finish(), usage(7, 5, 0, 1)]
    members = {"reasoning_effort": "low"}
    whole = (await bridge.ask(**members)).json()
    streamed = await bridge.events(stream_options={"include_usage": True}, **members)
    content = "".join(delta.get("content", "") for delta in deltas(streamed))
    assert content == whole["choices"][0]["message"]["content"] == "".join(pieces)
    assert streamed[-2]["usage"] == whole["usage"]


async def test_P101_an_empty_answer_has_empty_content(bridge: Bridge) -> None:
    bridge.room.script = answer()
    assert (await bridge.ask()).json()["choices"][0]["message"]["content"] == ""
    assert deltas(await bridge.events()) == [{"role": "assistant", "content": ""}, {}]


async def test_P102_not_a_byte_before_a_whole_answer_is_done(chatty: Bridge) -> None:
    """Longer than the silence after which a stream would get a comment."""
    chatty.room.script = [queued(2), Pause(0.3), queued(0), text("a"), notice("peer left, resuming"), Pause(0.3)]
    chatty.room.script = [*chatty.room.script, text("b"), finish(), usage()]
    async with chatty.wire() as wire:
        await wire.post({"messages": [{"role": "user", "content": "hi"}]})
        reply = await wire.read_reply()
        assert reply.status == 200
        assert int(reply.headers["content-length"]) == len(reply.body)
        assert reply.json()["choices"][0]["message"]["content"] == "ab"


async def test_P118_a_stopped_answer_is_no_answer(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("half an"), Refuse("cancelled_by_room", "the host stopped this answer")]
    reply = await bridge.ask()
    assert reply.status_code == 503
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert error_of(reply)["code"] == "cancelled_by_room"
    assert "half an" not in reply.text
    *chunks, last = await bridge.events()
    assert last["error"]["code"] == "cancelled_by_room"
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
