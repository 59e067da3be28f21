"""Tool calls of an answer, whole and streamed."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.calls import new_id
from bridge.config import Timeouts
from bridge.exchange import Patience
from bridge.reply import Head, WholeAnswer, dump
from bridge.sse import ChunkWriter
from protos import room_pb2
from tests.bridge import shapes
from tests.bridge.conftest import Bridge, deltas
from tests.bridge.fake_room import Refuse, Step, call, call_delta, finish, queued, reasoning, text, usage

pytestmark = pytest.mark.anyio

TOOL_CALLS = room_pb2.FINISH_REASON_TOOL_CALLS
LENGTH = room_pb2.FINISH_REASON_LENGTH

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "weather")]

Entry = dict[str, Any]


def script(*events: Step, reason: room_pb2.FinishReason.ValueType = TOOL_CALLS) -> list[Step]:
    return [queued(0), *events, finish(reason), usage()]


TWO = script(
    call(0, "add"), call_delta(0, '{"a": 2, '), call_delta(0, '"b": 2}'), call(1, "weather"), call_delta(1, "{}")
)


async def whole(bridge: Bridge, steps: Sequence[Step]) -> tuple[Entry, str]:
    """The message and the finish reason of a whole answer."""
    bridge.room.script = steps
    choice = (await bridge.ask(tools=TOOLS)).json()["choices"][0]
    return choice["message"], choice["finish_reason"]


async def entries(bridge: Bridge, steps: Sequence[Step]) -> list[Entry]:
    """The entries of `tool_calls` in a stream."""
    bridge.room.script = steps
    streamed = deltas(await bridge.events(tools=TOOLS))
    return [entry for delta in streamed for entry in delta.get("tool_calls", ())]


def without_ids(calls: list[Entry]) -> list[Entry]:
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", call.pop("id")) for call in calls if "id" in call)
    return calls


def function(name: str, arguments: str) -> Entry:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


# ---------------------------------------------------------------- whole answers


async def test_P101_T6_T7_T11_an_answer_of_calls_alone(bridge: Bridge) -> None:
    message, reason = await whole(bridge, TWO)
    assert reason == "tool_calls"
    assert message["content"] is None
    assert without_ids(message["tool_calls"]) == [function("add", '{"a": 2, "b": 2}'), function("weather", "{}")]


async def test_P101_T4_text_before_calls_is_the_content(bridge: Bridge) -> None:
    message, reason = await whole(bridge, script(text("Let me "), text("see."), *TWO[1:-2]))
    assert (message["content"], len(message["tool_calls"]), reason) == ("Let me see.", 2, "tool_calls")


async def test_P92_T5_without_calls_there_is_no_key_for_them(bridge: Bridge) -> None:
    message, _ = await whole(bridge, script(text("no need"), reason=room_pb2.FINISH_REASON_STOP))
    assert "tool_calls" not in message


async def test_T12_a_call_without_arguments_has_an_empty_object(bridge: Bridge) -> None:
    message, _ = await whole(bridge, script(call(0, "weather"), call_delta(0, "{}")))
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_T24_thoughts_before_calls(bridge: Bridge) -> None:
    message, _ = await whole(bridge, script(reasoning("which tool?"), *TWO[1:-2]))
    assert (message["reasoning_content"], message["content"], len(message["tool_calls"])) == ("which tool?", None, 2)


@pytest.mark.parametrize("cut", ["", "{", '{"command": "rm -rf /', '{"a": 1', "[1]", "{}{"])
async def test_T13_a_call_that_was_cut_off_is_left_out(bridge: Bridge, cut: str) -> None:
    message, reason = await whole(bridge, script(call(0, "add"), call_delta(0, cut), reason=LENGTH))
    assert (message["content"], reason) == ("", "length")
    assert "tool_calls" not in message
    message, _ = await whole(bridge, script(text("so"), call(0, "add"), call_delta(0, cut), reason=LENGTH))
    assert message["content"] == "so"


async def test_T13_calls_already_complete_are_delivered(bridge: Bridge) -> None:
    cut = script(
        call(0, "add"), call_delta(0, '{"a": 1}'), call(1, "weather"), call_delta(1, '{"city": '), reason=LENGTH
    )
    message, reason = await whole(bridge, cut)
    assert (message["content"], reason) == (None, "length")
    assert without_ids(message["tool_calls"]) == [function("add", '{"a": 1}')]


async def test_T13_P39_a_call_complete_at_the_limit_is_delivered(bridge: Bridge) -> None:
    message, reason = await whole(bridge, script(call(0, "add"), call_delta(0, '{"a": 1}'), reason=LENGTH))
    assert (len(message["tool_calls"]), reason) == (1, "length")


# ---------------------------------------------------------------- streams


async def test_T14_P105_P106_B9_B10_B11_B20_how_calls_are_streamed(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), reasoning("hm"), text("Let me see."), *TWO[1:]]
    *chunks, done = await bridge.events(tools=TOOLS, reasoning_effort="low")
    assert done == "[DONE]"
    streamed = deltas(chunks)
    ids = [entry.pop("id") for delta in streamed for entry in delta.get("tool_calls", ()) if "id" in entry]
    assert streamed == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Let me see."},
        {"tool_calls": [{"index": 0, **function("add", "")}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 2, '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"b": 2}'}}]},
        {"tool_calls": [{"index": 1, **function("weather", "")}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 8 + ["tool_calls"]
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", call_id) for call_id in ids)
    assert len(set(ids)) == 2


async def test_T14_T15_pieces_without_text_are_not_sent(bridge: Bridge) -> None:
    streamed = await entries(bridge, script(call(0, "add"), call_delta(0, ""), call_delta(0, "{}"), call_delta(0, "")))
    assert [entry["function"]["arguments"] for entry in streamed] == ["", "{}"]


async def test_T13_a_stream_cut_off_in_a_call_stays_unclosed(bridge: Bridge) -> None:
    cut = script(call(0, "add"), call_delta(0, '{"path": "/etc'), reason=LENGTH)
    bridge.room.script = cut
    *chunks, done = await bridge.events(tools=TOOLS)
    assert (chunks[-1]["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
    written = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas(chunks) if "tool_calls" in delta]
    assert "".join(written) == '{"path": "/etc'


async def test_T16_B34_arguments_of_every_kind_of_text_arrive_whole(bridge: Bridge) -> None:
    value = {"text": 'new\nline "quoted" \\ \u2028\x85 caf\u00e9 \U0001f9e9'}
    arguments = json.dumps(value, ensure_ascii=False)
    steps = script(call(0, "add"), *(call_delta(0, character) for character in arguments))
    streamed = await entries(bridge, steps)
    message, _ = await whole(bridge, steps)
    joined = "".join(entry["function"]["arguments"] for entry in streamed)
    assert joined == message["tool_calls"][0]["function"]["arguments"] == arguments
    assert json.loads(joined) == value


async def test_P95_B8_B39_the_finish_is_the_same_in_both_forms(bridge: Bridge) -> None:
    _, reason = await whole(bridge, TWO)
    *_, last, _ = await bridge.events(tools=TOOLS)
    assert reason == last["choices"][0]["finish_reason"] == "tool_calls"


async def test_T27_sixteen_calls(bridge: Bridge) -> None:
    steps = script(*(step for index in range(16) for step in (call(index, "add"), call_delta(index, "{}"))))
    message, _ = await whole(bridge, steps)
    assert len({call["id"] for call in message["tool_calls"]}) == 16
    assert [entry["index"] for entry in await entries(bridge, steps) if "id" in entry] == list(range(16))


async def test_P113_a_stream_that_fails_in_a_call(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), call(0, "add"), call_delta(0, '{"a": '), Refuse("pipeline_lost", "a peer left")]
    *chunks, last = await bridge.events(tools=TOOLS)
    assert last["error"]["code"] == "pipeline_lost"
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_P115_a_caller_that_leaves_in_a_call_stops_it(bridge: Bridge, stream: bool) -> None:
    bridge.room.script = [queued(0), call(0, "add"), call_delta(0, "{"), asyncio.Event()]
    async with bridge.wire() as wire:
        await wire.post({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "stream": stream})
        await bridge.room.until_running()
    await asyncio.wait_for(bridge.room.until_cancelled(), 60)


async def test_P93_arguments_of_no_call_are_no_answer(bridge: Bridge) -> None:
    bridge.room.script = script(call_delta(3, "{}"))
    assert (await bridge.ask(tools=TOOLS)).status_code == 500


# ---------------------------------------------------------------- by themselves


def test_T10_ids_are_unique_and_of_one_form() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", call_id) for call_id in ids)


@pytest.mark.parametrize("event", [call(0, "add"), call_delta(0, "{")])
def test_P111_a_request_that_writes_a_call_runs(event: room_pb2.GenerateEvent) -> None:
    patience = Patience(Timeouts(), now=0.0)
    patience.heard(queued(3), now=0.0)
    patience.heard(event, now=1.0)
    assert patience.ahead == 0


PIECES = st.lists(st.text(), max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(["add", "weather"]), PIECES), max_size=4)


@settings(max_examples=100)
@given(PIECES, PIECES, CALLS)
def test_P100_T14_T16_any_events_give_the_same_answer_in_both_forms(
    thoughts: list[str], texts: list[str], calls: list[tuple[str, list[str]]]
) -> None:
    events = [queued(0), *map(reasoning, thoughts), *map(text, texts)]
    for index, (name, pieces) in enumerate(calls):
        events += [call(index, name), *(call_delta(index, piece) for piece in pieces)]
    events += [finish(TOOL_CALLS if calls else room_pb2.FINISH_REASON_STOP), usage()]
    head = Head("m", thinking=True)
    answer, writer = WholeAnswer(head), ChunkWriter(head, include_usage=True)
    for event in events:
        answer.add(event)
    stream = b"".join(map(writer.write, events))
    body = json.loads(dump(answer.to_json()))
    shapes.check_whole(body)
    shapes.check_stream(stream)
    *chunks, last, _ = shapes.events_of(stream)
    message, streamed = body["choices"][0]["message"], deltas(chunks)
    assert "".join(delta.get("content", "") for delta in streamed) == (message["content"] or "") == "".join(texts)
    assert "".join(delta.get("reasoning_content", "") for delta in streamed) == message.get("reasoning_content", "")
    assert _put_together(streamed) == without_ids(message.get("tool_calls", []))
    assert (chunks[-1]["choices"][0]["finish_reason"], last["usage"]) == (
        body["choices"][0]["finish_reason"],
        body["usage"],
    )


def _put_together(streamed: list[Entry]) -> list[Entry]:
    """The calls of a stream, as clients add them up."""
    calls: list[Entry] = []
    for entry in (entry for delta in streamed for entry in delta.get("tool_calls", ())):
        if "id" in entry:
            assert entry["index"] == len(calls)
            calls.append({"type": entry["type"], "function": entry["function"]})
        else:
            assert entry.keys() == {"index", "function"}
            assert entry["function"].keys() == {"arguments"}
            calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    return calls
