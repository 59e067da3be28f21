"""The table of status codes, request ids, and what the log says."""

import logging

import grpc
import pytest

from bridge.exchange import Exchange
from tests.bridge.conftest import Bridge, error_of, running
from tests.bridge.fake_room import Crash, FakeRoom, Refuse, answer, queued, text

pytestmark = pytest.mark.anyio

REFUSALS = [
    # code of the room, status, type, Retry-After, x-should-retry
    ("invalid_value", 400, "invalid_request_error", None, "false"),
    ("context_length_exceeded", 400, "invalid_request_error", None, "false"),
    ("queue_full", 429, "rate_limit_error", "5", None),
    ("internal_error", 500, "server_error", None, None),
    ("pipeline_lost", 502, "server_error", "1", None),
    ("room_unavailable", 503, "server_error", "5", None),
    ("no_pipeline", 503, "server_error", "5", None),
    ("loading", 503, "server_error", "5", None),
    ("shutting_down", 503, "server_error", "5", None),
    ("cancelled_by_room", 503, "server_error", None, "false"),
    ("room_timeout", 504, "server_error", None, None),
    ("queue_timeout", 504, "server_error", None, None),
]


@pytest.mark.parametrize(("code", "status", "kind", "retry_after", "should_retry"), REFUSALS)
async def test_C1_C9_C11_C12_C13_C14_what_the_room_refuses(
    bridge: Bridge, code: str, status: int, kind: str, retry_after: str | None, should_retry: str | None
) -> None:
    ends = grpc.StatusCode.INVALID_ARGUMENT if status == 400 else grpc.StatusCode.UNAVAILABLE
    bridge.room.script = [Refuse(code, "the room says why", "messages" if status == 400 else None, status=ends)]
    for stream in (False, True):
        reply = await bridge.ask(stream=stream)
        assert reply.status_code == status
        error = error_of(reply)
        assert (error["type"], error["code"]) == (kind, code)
        assert error["message"].startswith("the room says why")
        assert error["param"] == ("messages" if status == 400 else None)
        assert reply.headers.get("retry-after") == retry_after
        assert reply.headers.get("x-should-retry") == should_retry


@pytest.mark.parametrize(("said", "told"), [(None, "5"), (17, "17"), (0, "5"), (3600, "60")])
async def test_C9_retry_after_follows_the_rooms_pace(bridge: Bridge, said: int | None, told: str) -> None:
    bridge.room.script = [Refuse("queue_full", "the line is full", retry_after=said)]
    assert (await bridge.ask()).headers["retry-after"] == told


async def test_C9_the_line_of_this_bridge_holds_eight(bridge: Bridge, room: FakeRoom) -> None:
    asked = await bridge.seen()
    assert asked.max_waiting == 8
    assert asked.client
    assert (await bridge.seen()).client == asked.client
    async with running(room, max_queue=3) as other:
        theirs = await other.seen()
        assert theirs.max_waiting == 3
        assert theirs.client != asked.client


async def test_C10_C11_a_bug_in_the_room_tells_nothing_of_the_request(bridge: Bridge) -> None:
    bridge.room.script = [Crash("boom: hi")]
    reply = await bridge.ask()
    error = error_of(reply)
    assert (reply.status_code, error["code"]) == (500, "internal_error")
    assert "boom" not in reply.text
    bridge.room.script = [queued(0), text("a"), Crash("boom: hi")]
    *_, last = await bridge.events()
    assert last["error"]["code"] == "internal_error"
    assert "boom" not in last["error"]["message"]


async def test_C11_a_code_from_a_newer_room_is_an_internal_error(bridge: Bridge) -> None:
    bridge.room.script = [Refuse("quantum_error", "???")]
    reply = await bridge.ask()
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_C11_a_bug_in_the_bridge_is_told_and_logged_without_its_text(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def broken(self: Exchange, within: float = 0) -> None:
        raise ValueError("the prompt was: hi")

    monkeypatch.setattr(Exchange, "next", broken)
    reply = await bridge.ask(stream=stream)
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")
    assert "the prompt" not in reply.text + caplog.text
    assert "ValueError in request" in caplog.text


async def test_C12_a_link_that_breaks_in_the_middle_is_a_lost_pipeline(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("a"), Refuse("", "gone")]
    reply = await bridge.ask()
    assert (reply.status_code, error_of(reply)["code"], reply.headers["retry-after"]) == (502, "pipeline_lost", "1")
    *_, last = await bridge.events()
    assert last["error"]["code"] == "pipeline_lost"


async def test_C13_a_link_that_breaks_before_the_first_event_is_an_unavailable_room(bridge: Bridge) -> None:
    bridge.room.script = [Refuse("", "gone")]
    reply = await bridge.ask()
    assert (reply.status_code, error_of(reply)["code"], reply.headers["retry-after"]) == (503, "room_unavailable", "5")


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION"])
@pytest.mark.parametrize("code", ["", "room_unavailable"])
async def test_C13_being_turned_away_does_not_clear_by_itself(bridge: Bridge, status: str, code: str) -> None:
    bridge.room.script = [Refuse(code, "the key does not open this room", status=grpc.StatusCode[status])]
    reply = await bridge.ask()
    assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
    assert "retry-after" not in reply.headers
    error = error_of(reply)
    assert error["code"] == "room_unavailable"
    assert error["message"].startswith("the key does not open this room")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1", "/v1/chat", "/favicon.ico", "/%00"])
async def test_C4_M5_unknown_urls_say_what_exists(bridge: Bridge, path: str) -> None:
    for method in ("GET", "POST"):
        reply = await bridge.http.request(method, path)
        error = error_of(reply)
        assert (reply.status_code, error["type"], error["code"]) == (404, "invalid_request_error", "unknown_url")
        assert "/v1/chat/completions" in error["message"]


async def test_C16_every_response_has_an_id_and_5xx_end_with_it(bridge: Bridge) -> None:
    ids = set()
    for path in ("/", "/v1/models", "/nowhere", "/health"):
        ids.add((await bridge.http.get(path)).headers["x-request-id"])
    for script in (answer("a"), [Refuse("no_pipeline", "no layers.")]):
        bridge.room.script = script
        reply = await bridge.ask()
        ids.add(reply.headers["x-request-id"])
        assert bridge.room.asked.request_id == reply.headers["x-request-id"], "the room's log has the same id"
    assert error_of(reply)["message"] == f"no layers; request id: {reply.headers['x-request-id']}"
    assert len(ids) == 6


async def test_C17_a_refusal_never_asks_the_room(bridge: Bridge) -> None:
    await bridge.refused(temperature=9)
    await bridge.room.tell()
    assert not bridge.room.requests


async def test_the_log_has_a_line_per_request_and_nothing_of_its_content(
    bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bridge.room.script = answer("THE-ANSWER")
    reply = await bridge.ask([{"role": "user", "content": "THE-PROMPT"}])
    await bridge.ask([{"role": "user", "content": "THE-PROMPT"}], stream=True)
    await bridge.refused([{"role": "THE-PROMPT", "content": "THE-PROMPT"}])
    await bridge.http.get("/nowhere%0Aforged?q=THE-PROMPT")
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    lines = [record for record in ours if record.name == "pooled.bridge"]
    assert [(record.levelname, record.__dict__["status"]) for record in lines] == [
        ("INFO", 200), ("INFO", 200), ("INFO", 400), ("INFO", 404)
    ]  # fmt: skip
    assert lines[0].__dict__["request_id"] == reply.headers["x-request-id"]
    assert lines[0].getMessage() == "POST /v1/chat/completions"
    assert lines[3].getMessage() == "GET /nowhere%0Aforged"
    assert not [record for record in ours if "THE-" in record.getMessage()]


async def test_the_log_has_a_line_for_what_is_not_http(bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with bridge.wire() as wire:
        await wire.send(b"GET /THE-PROMPT\r\n\r\n")
        reply = await wire.read_reply()
    (line,) = (record for record in caplog.records if record.name == "pooled.bridge")
    assert line.getMessage() == "- -"
    assert (line.levelname, line.__dict__["status"]) == ("INFO", 400)
    assert line.__dict__["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_log_has_one_line_for_a_body_that_breaks_off_into_nonsense(
    bridge: Bridge, caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    async with bridge.wire() as wire:
        headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
        head = wire.head("POST", "/v1/chat/completions", headers)
        if at_once:
            await wire.send(head + b"zz\r\n")
        else:
            await wire.send(head + b"1\r\n{\r\n")
            await bridge.http.get("/health")
            caplog.clear()
            await wire.send(b"zz\r\n")
        reply = await wire.read_reply()
        assert await wire.closed()
    (line,) = (record for record in caplog.records if record.name == "pooled.bridge")
    assert line.getMessage() == "POST /v1/chat/completions"
    assert line.__dict__["status"] == 400
    assert line.__dict__["request_id"] == reply.headers["x-request-id"]
