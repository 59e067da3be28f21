"""What callers hear when the room cannot go on: C11 to C15, P112 to P114."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.app import run_bridge
from bridge.config import BridgeConfig, Timeouts
from room.app import run_host
from room.config import RoomConfig
from tests.contract.rig import USER, Rig, events_of, line, running, started

pytestmark = pytest.mark.anyio

FIVE = ["a", "b", "c", "d", "e"]


def told(reply: httpx.Response, code: str, kind: str = "server_error") -> None:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, kind)
    assert reply.headers["x-request-id"] in error["message"]


async def broken(rig: Rig, *tokens: str, fault: str) -> tuple[str, list[Any]]:
    """The text of a stream that breaks, and its events; the answer so far is checked."""
    rig.play(line(*tokens, fault=fault))
    reply = await rig.post(stream=True, stream_options={"include_usage": True})
    assert reply.status_code == 200
    events = events_of(reply.text)
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert said == "".join(tokens)
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert "[DONE]" not in reply.text
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    return reply.text, events


async def test_P113_C11_C15_B36_a_fault_in_the_middle_is_an_error_chunk(rig: Rig) -> None:
    _, events = await broken(rig, *FIVE, fault="error")
    assert events[-1]["error"]["code"] == "internal_error"


async def test_P112_P113_C12_C15_B36_a_chain_that_is_lost_for_good(rig: Rig) -> None:
    text, events = await broken(rig, *FIVE, fault="drop")
    assert events[-1]["error"]["code"] == "pipeline_lost"
    assert ": peer left, resuming\n\n" in text
    rig.play(line("again"))
    assert (await rig.ask()).content == "again"


async def test_P99_nothing_is_cached_after_a_chain_was_lost(rig: Rig) -> None:
    question = [{"role": "user", "content": "Is this still held after the chain was lost?"}]

    async def cached() -> int:
        usage = (await rig.ask(question)).usage
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    await cached()
    assert await cached() > 0
    rig.play(line(fault="drop"))
    assert (await rig.post()).status_code == 502
    rig.play(line("ok"))
    assert await cached() == 0


async def test_P112_others_go_on_when_a_peer_comes_back(rig: Rig) -> None:
    """A drop takes everybody's caches; who had begun goes on where it was, and no text comes twice."""
    stream = ""
    while ": peer left, resuming\n\n" not in stream:  # on a busy machine it may end before the drop
        rig.play(line(*"resumed", at_ms=[0, 0, 0, 1000]), line("x", fault="drop"))
        other = asyncio.create_task(rig.post(stream=True))
        while not any(session.decoding for session in rig.room.running):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        told(await rig.post(), "pipeline_lost")
        stream = (await other).text
    contents = [
        event["choices"][0]["delta"].get("content", "") for event in events_of(stream)[:-1] if "error" not in event
    ]
    assert "resumed".startswith("".join(contents))


@pytest.mark.parametrize(
    ("fault", "status", "code", "retry_after"),
    [("error", 500, "internal_error", None), ("drop", 502, "pipeline_lost", "1")],
)
async def test_C11_C12_P114_a_whole_answer_that_fails_is_a_status(
    rig: Rig, fault: str, status: int, code: str, retry_after: str | None
) -> None:
    for tokens in ([], FIVE):
        rig.play(line(*tokens, fault=fault))
        reply = await rig.post()
        assert reply.status_code == status
        assert reply.headers.get("retry-after") == retry_after
        told(reply, code)
        assert "".join(FIVE) not in reply.text, "no partial answer"


async def test_C13_B43_layers_without_a_holder_are_named_at_once(tiny: Path) -> None:
    async with (
        started(run_host, RoomConfig(str(tiny), listen="127.0.0.1:0")) as opened,
        started(run_bridge, BridgeConfig(port=0), opened.clients[0]) as base_url,
        httpx.AsyncClient() as http,
    ):
        for stream in (False, True):
            async with asyncio.timeout(60):
                reply = await http.post(f"{base_url}/chat/completions", json={"messages": [USER], "stream": stream})
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "5"
            told(reply, "no_pipeline")
            assert "layers 0 to 0" in reply.json()["error"]["message"]
        assert (await http.get(f"{base_url}/models")).json()["data"] == []
        assert (await http.get(base_url.replace("/v1", "/ready"))).status_code == 503


async def test_C13_P118_a_room_that_closes_ends_answers_as_unfinished(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path) as rig:
        rig.play(line("a", fault="hang"))
        streamed = asyncio.create_task(rig.post(stream=True))
        whole = asyncio.create_task(rig.post())
        while len(rig.room.running) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        rig.room.shut_down()
        events = events_of((await streamed).text)
        assert events[-1]["error"]["code"] == "cancelled_by_room"
        assert "[DONE]" not in events
        reply = await whole
        assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
        told(reply, "cancelled_by_room")
        told(await rig.post(), "shutting_down")


async def test_C14_C15_a_room_that_says_nothing_more(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, bridge={"timeouts": Timeouts(room=0.3)}) as rig:
        rig.play(line("a", fault="hang"))
        reply = await rig.post()
        assert reply.status_code == 504
        told(reply, "room_timeout")
        while (reply := await rig.post(stream=True)).status_code == 504:
            pass  # on a busy machine the time may be over before the stream has begun
        assert events_of(reply.text)[-1]["error"]["code"] == "room_timeout"
        await rig.at_rest()
