"""Callers that leave or stop reading, and rooms that do."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Sequence

import pytest

from bridge.config import Timeouts
from tests.bridge.conftest import USER, Bridge, error_of, running
from tests.bridge.fake_room import FakeRoom, Pause, Step, answer, prefill, queued, text
from tests.bridge.shapes import events_of
from tests.bridge.wire import Wire

pytestmark = pytest.mark.anyio

NEVER = asyncio.Event
GUARD = 60.0
"""Seconds after which what has not come never will."""

STAGES: dict[str, Sequence[Step]] = {
    "before the first event": [],
    "queued": [queued(2)],
    "reading the prompt": [queued(0), prefill(1, 9)],
    "writing": [queued(0), text("a")],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())
async def test_P115_a_caller_that_leaves_stops_its_request(bridge: Bridge, stage: Sequence[Step], stream: bool) -> None:
    bridge.room.script = [*stage, NEVER()]
    async with bridge.wire() as wire:
        await wire.post({"messages": [USER], "stream": stream})
        await bridge.room.until_running()
        if stream and stage:
            await wire.read_head()
    await asyncio.wait_for(bridge.room.until_cancelled(), GUARD)
    assert bridge.room.cancelled == [bridge.room.asked.request_id]
    await bridge.until(queue=0)
    bridge.room.script = answer("next")
    assert (await bridge.ask()).status_code == 200


async def test_P115_C10_it_is_logged_as_499(bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pooled.bridge")
    bridge.room.script = [queued(0), text("a"), NEVER()]
    async with bridge.wire() as wire:
        await wire.post({"messages": [USER], "stream": True})
        await wire.read_head()
    await bridge.until(queue=0)
    statuses = [getattr(record, "status", None) for record in caplog.records if "/chat/" in record.getMessage()]
    assert statuses == [499]


@pytest.mark.parametrize("stream", [False, True])
async def test_P115_also_when_it_had_sent_its_next_request(bridge: Bridge, stream: bool) -> None:
    bridge.room.script = [queued(0), text("a"), NEVER()]
    async with bridge.wire() as wire:
        await wire.post({"messages": [USER], "stream": stream})
        await bridge.room.until_running()
        await wire.post({"messages": [USER]})
        await bridge.http.get("/health")
    await asyncio.wait_for(bridge.room.until_cancelled(), GUARD)
    assert len(bridge.room.requests) == 1


async def test_P115_a_caller_that_leaves_in_the_middle_of_its_request(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        own = {"content-type": "application/json", "content-length": "100"}
        await wire.send(wire.head("POST", "/v1/chat/completions", own) + b'{"messages"')
    assert (await bridge.ask()).status_code == 200
    assert len(bridge.room.requests) == 1


async def test_P115_many_that_vanish_leave_nothing_behind(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("a"), NEVER()]
    async with contextlib.AsyncExitStack() as wires:
        for index in range(20):
            wire = await wires.enter_async_context(bridge.wire())
            await wire.post({"messages": [USER], "stream": bool(index % 2)})
        await bridge.room.until_running(20)
    await asyncio.wait_for(bridge.room.until_cancelled(20), GUARD)
    await bridge.until(queue=0)


def slow_reader(port: int) -> socket.socket:
    """A caller with next to no room for what it does not read."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect(("127.0.0.1", port))
    body = json.dumps({"messages": [USER], "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    caller.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    return caller


async def _until_stalled(room: FakeRoom) -> int:
    """Wait until the room cannot send more; how many bytes it has sent."""
    sent = -1
    while sent != room.sent or not sent:
        sent = room.sent
        await asyncio.sleep(0.2)
    return sent


async def test_P116_a_slow_reader_fills_four_mebibytes_at_most_and_disturbs_nobody(bridge: Bridge) -> None:
    piece = text("x" * 16_000)
    bridge.room.script = [queued(0), *[piece] * 2000]
    with slow_reader(bridge.port):
        await bridge.room.until_running()
        sent = await _until_stalled(bridge.room)
        assert sent < 4 << 20
        bridge.room.script = answer("Hello")
        assert (await bridge.ask()).status_code == 200
    await asyncio.wait_for(bridge.room.until_cancelled(), GUARD)


async def test_P116_a_reader_that_takes_no_byte_is_dropped(room: FakeRoom) -> None:
    assert Timeouts().slow_reader == 120
    room.script = [queued(0), *[text("x" * 16_000)] * 2000]
    async with running(room, timeouts=Timeouts(slow_reader=0.3)) as bridge:
        with slow_reader(bridge.port):
            await asyncio.wait_for(room.until_cancelled(), GUARD)
            await bridge.until(queue=0)


async def test_P116_a_reader_that_takes_a_little_now_and_then_is_not(room: FakeRoom) -> None:
    room.script = [queued(0), *[text("x" * 16_000)] * 300, *answer()[2:]]
    async with running(room, timeouts=Timeouts(slow_reader=3.0)) as bridge:
        caller = slow_reader(bridge.port)
        caller.setblocking(False)
        loop = asyncio.get_running_loop()
        with caller:
            for _ in range(8):
                await asyncio.sleep(0.45)
                assert await loop.sock_recv(caller, 60_000)
            received = b""
            while piece := await loop.sock_recv(caller, 1 << 20):
                received = (received + piece)[-100:]
                if received.endswith(b"0\r\n\r\n"):
                    break
            assert b"data: [DONE]\n\n" in received


async def _broken_off(bridge: Bridge) -> str:
    """How a stream ends that had begun. On a busy machine the time may be over before it has: then it is no stream."""
    while (reply := await bridge.ask(stream=True)).status_code == 504:
        pass
    *_, last = events_of(reply.content)
    return str(last["error"]["code"])


async def test_C14_a_room_that_falls_silent(room: FakeRoom) -> None:
    async with running(room, timeouts=Timeouts(room=0.3), keepalive=60) as bridge:
        for before in STAGES["before the first event"], STAGES["writing"]:
            room.script = [*before, NEVER()]
            reply = await bridge.ask()
            assert (reply.status_code, error_of(reply)["code"]) == (504, "room_timeout")
        assert await _broken_off(bridge) == "room_timeout"
        await asyncio.wait_for(room.until_cancelled(3), GUARD)


async def test_C14_a_room_that_reads_a_long_prompt_is_not_silent(room: FakeRoom) -> None:
    async with running(room, timeouts=Timeouts(room=3.0), keepalive=60) as bridge:
        reading = [step for done in range(1, 6) for step in (Pause(0.7), prefill(done, 6))]
        room.script = [queued(0), *reading, *answer("read")[1:]]
        assert (await bridge.ask()).status_code == 200


async def test_C14_a_place_in_the_queue_for_too_long(room: FakeRoom) -> None:
    async with running(room, timeouts=Timeouts(room=0.6, queue=1.3), keepalive=60) as bridge:
        room.script = [queued(2), Pause(0.2), queued(1), NEVER()]
        while error_of(reply := await bridge.ask())["code"] == "room_timeout":
            pass  # on a busy machine it may come to no place in the queue in time
        assert (reply.status_code, error_of(reply)["code"]) == (504, "queue_timeout")
        assert await _broken_off(bridge) == "queue_timeout"


async def test_C13_the_room_goes_and_comes_back(room: FakeRoom) -> None:
    ours = FakeRoom()
    await ours.start()
    async with running(ours) as bridge:
        ours.script = [queued(0), text("a"), NEVER()]
        async with Wire(bridge.port) as wire:
            await wire.post({"messages": [USER], "stream": True})
            await ours.until_running()
            await wire.read_head()
            await ours.stop()
            rest = b""
            while chunk := await wire.read_chunk():
                rest += chunk
            assert b'"code":"pipeline_lost"' in rest
            assert b"[DONE]" not in rest
        await bridge.until(connected=False, ready=False)
        for stream in (False, True):
            reply = await bridge.ask(stream=stream)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
            assert error_of(reply)["code"] == "room_unavailable"
        assert (await bridge.http.get("/v1/models")).json()["data"] == []
        assert (await bridge.http.get("/ready")).status_code == 503
        ours.reset()
        await ours.start()
        await bridge.until(connected=True, ready=True)
        assert (await bridge.ask()).status_code == 200
    await ours.stop()
