"""/v1/models, /health, /ready and /."""

import asyncio

import grpc
import pytest

from tests.bridge.conftest import USER, Bridge, error_of, running
from tests.bridge.fake_room import CODE, CTX, MODEL, FakeRoom, answer, queued, text

pytestmark = pytest.mark.anyio

ENTRY = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "pooled", "max_model_len": CTX}


async def unready(bridge: Bridge, code: str = "loading", why: str = "the model is loading") -> None:
    await bridge.room.tell(ready=False, why=why, why_code=code)
    await bridge.until(ready=False)


async def test_M1_the_list_has_one_entry(bridge: Bridge) -> None:
    for path in ("/v1/models", "/v1/models/", "/models"):
        assert (await bridge.http.get(path)).json() == {"object": "list", "data": [ENTRY]}


async def test_M1_M2_before_the_model_is_ready_there_is_none(bridge: Bridge) -> None:
    await unready(bridge)
    reply = await bridge.http.get("/v1/models")
    assert (reply.status_code, reply.json()) == (200, {"object": "list", "data": []})
    reply = await bridge.http.get("/v1/models/pooled")
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("name", ["pooled%2Ffake-1b", "pooled/fake-1b", "pooled", "pooled/"])
async def test_M2_one_model_by_its_names(bridge: Bridge, name: str) -> None:
    assert (await bridge.http.get(f"/v1/models/{name}")).json() == ENTRY


@pytest.mark.parametrize("name", ["gpt-4o", "pooled/other", "POOLED", "fake-1b", "%00"])
async def test_M2_C4_other_models_are_unknown(bridge: Bridge, name: str) -> None:
    reply = await bridge.http.get(f"/v1/models/{name}")
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")


async def test_M3_health_tells_how_things_are(bridge: Bridge) -> None:
    before = (await bridge.http.get("/health")).json()
    assert before == {
        "ok": True,
        "room": CODE,
        "connected": True,
        "ready": True,
        "model": MODEL,
        "ctx": CTX,
        "queue": 0,
        "served": before["served"],
    }
    await bridge.ask()
    await bridge.ask(stream=True)
    await bridge.refused(temperature=9)
    assert (await bridge.http.get("/health")).json()["served"] == before["served"] + 2


async def test_M3_the_queue_is_what_waits_or_runs_from_here(bridge: Bridge) -> None:
    gate = asyncio.Event()
    bridge.room.script = [queued(1), gate, *answer("a")]
    asking = [asyncio.ensure_future(bridge.ask()) for _ in range(2)]
    await bridge.room.until_running(2)
    assert (await bridge.http.get("/health")).json()["queue"] == 2
    gate.set()
    await asyncio.gather(*asking)
    assert (await bridge.http.get("/health")).json()["queue"] == 0


async def test_M3_ready_is_whether_a_request_would_be_served(bridge: Bridge) -> None:
    reply = await bridge.http.get("/ready")
    assert (reply.status_code, reply.json()) == (200, {"ok": True})
    for code in ("loading", "no_pipeline", "shutting_down"):
        await unready(bridge, code, "this is why")
        while error_of(reply := await bridge.http.get("/ready"))["code"] != code:
            pass
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert error_of(reply)["message"].startswith("this is why")
    assert (await bridge.http.head("/ready")).status_code == 503


async def test_M3_health_answers_while_the_room_hangs(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("a"), asyncio.Event()]
    async with bridge.wire() as wire:
        await wire.post({"messages": [USER], "stream": True})
        await bridge.room.until_running()
        assert (await bridge.http.get("/health")).status_code == 200


async def test_M4_the_root_says_what_this_is(bridge: Bridge) -> None:
    reply = await bridge.http.get("/")
    assert reply.headers["content-type"].startswith("text/plain")
    assert "/v1/chat/completions" in reply.text


async def test_M3_health_of_a_client_turned_away(room: FakeRoom) -> None:
    async with running(room) as bridge:
        room.turned_away = grpc.StatusCode.PERMISSION_DENIED
        await room.tell()
        await bridge.until(connected=False, closed="the host removed you")
        reply = await bridge.ask()
        assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
        assert not room.requests
        assert (await bridge.http.get("/ready")).status_code == 503
        room.turned_away = None
        await bridge.until(connected=True)
        assert "closed" not in (await bridge.http.get("/health")).json()
