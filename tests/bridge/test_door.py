"""Who gets in: the token, the Host header, web pages."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from bridge.config import BridgeConfig
from bridge.guard import Guard
from tests.bridge.conftest import USER, Bridge, error_of, running
from tests.bridge.fake_room import FakeRoom
from tests.bridge.wire import Reply

pytestmark = pytest.mark.anyio

PAGE = "https://chat.example"
ROUTES = ["/v1/models", "/v1/models/pooled", "/health", "/ready", "/", "/nowhere", "/v1/chat/completions"]


@pytest.fixture(scope="module")
async def locked_bridge(fake_room: FakeRoom) -> AsyncIterator[Bridge]:
    async with running(fake_room, token="s3cret", allow_origins=(PAGE,)) as bridge:
        yield bridge


@pytest.fixture
async def locked(locked_bridge: Bridge, room: FakeRoom) -> Bridge:
    """A bridge that asks for a token and lets one web page in."""
    return locked_bridge


async def asked_with(bridge: Bridge, **headers: str) -> httpx.Response:
    return await bridge.post(json.dumps({"messages": [USER]}).encode(), **headers)


async def status_with(bridge: Bridge, **headers: str) -> Reply:
    """The same byte by byte: client libraries refuse to send some of these headers."""
    async with bridge.wire() as wire:
        await wire.post({"messages": [USER]}, {name.replace("_", "-"): value for name, value in headers.items()})
        return await wire.read_reply()


# ---------------------------------------------------------------- token


@pytest.mark.parametrize("key", [None, "Bearer pooled", "Bearer ", "Basic eA==", "bearer x", ""])
async def test_P3_any_key_works_when_no_token_is_set(bridge: Bridge, key: str | None) -> None:
    headers = {} if key is None else {"authorization": key}
    assert (await status_with(bridge, **headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer s3cre"},
        {"authorization": "Bearer "},
        {"authorization": "Basic s3cret"},
        {"authorization": "s3cret"},
        {"authorization": "Bearer s3cret s3cret"},
        {"authorization": "Bearer \xe9"},
        {"x-api-key": "wrong"},
    ],
)
async def test_P4_C2_without_the_token_there_is_a_401(locked: Bridge, headers: dict[str, str]) -> None:
    reply = await status_with(locked, **headers)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert not locked.room.requests


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s3cret"},
        {"authorization": "bEARER s3cret"},
        {"authorization": "Bearer  s3cret "},
        {"x_api_key": "s3cret"},
        {"authorization": "Bearer wrong", "x_api_key": "s3cret"},
    ],
)
async def test_P4_with_the_token_it_answers(locked: Bridge, headers: dict[str, str]) -> None:
    assert (await status_with(locked, **headers)).status == 200


async def test_P4_M3_what_needs_the_token(locked: Bridge) -> None:
    for path in ("/v1/models", "/v1/models/pooled", "/", "/nowhere"):
        assert (await locked.http.get(path)).status_code == 401
    assert (await locked.http.get("/health")).json() == {"ok": True}
    assert (await locked.http.get("/ready")).json() == {"ok": True}
    known = {"authorization": "Bearer s3cret"}
    assert (await locked.http.get("/health", headers=known)).json()["model"]
    assert (await locked.http.get("/v1/models", headers=known)).json()["data"]


async def test_P4_ready_tells_strangers_the_status_only(locked: Bridge) -> None:
    known = {"authorization": "Bearer s3cret"}
    await locked.room.tell(ready=False, why="layers 8 to 15 have no holder", why_code="no_pipeline")
    while (await locked.http.get("/ready")).status_code != 503:
        pass
    stranger = error_of(await locked.http.get("/ready"))
    friend = error_of(await locked.http.get("/ready", headers=known))
    assert "layers" not in stranger["message"]
    assert stranger["code"] == "room_unavailable"
    assert "layers 8 to 15" in friend["message"]
    assert friend["code"] == "no_pipeline"


# ---------------------------------------------------------------- host


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1:{port}.evil",
        "[::1]:{port}",
        "",
    ],
)
async def test_C3_another_host_is_forbidden_on_every_route(bridge: Bridge, path: str, host: str) -> None:
    reply = await bridge.http.get(path, headers={"host": host.format(port=bridge.port)})
    assert reply.status_code == 403
    error = error_of(reply)
    assert (error["type"], error["code"]) == ("invalid_request_error", "forbidden_host")
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}"])
async def test_C3_this_host_is_fine(bridge: Bridge, host: str) -> None:
    assert (await bridge.http.get("/v1/models", headers={"host": host.format(port=bridge.port)})).status_code == 200


async def test_C3_no_host_at_all_is_forbidden(bridge: Bridge) -> None:
    async with bridge.wire() as wire:
        await wire.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await wire.read_head()).status == 403


def test_C3_the_port_may_be_missing_on_port_80() -> None:
    guard = Guard(BridgeConfig(port=80), 80)
    for host in ("localhost", "127.0.0.1", "LOCALHOST:80", "127.0.0.1:80"):
        guard.check_door({"host": host})


def test_C3_on_ipv6_its_own_address_is_fine() -> None:
    guard = Guard(BridgeConfig(host="::1"), 8080)
    guard.check_door({"host": "[::1]:8080"})


# ---------------------------------------------------------------- web pages


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://127.0.0.1:{port}"])
async def test_C3_a_web_page_is_forbidden_on_every_route(bridge: Bridge, path: str, origin: str) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        headers = {"origin": origin.format(port=bridge.port), "access-control-request-method": "POST"}
        reply = await bridge.http.request(method, path, headers=headers)
        assert (reply.status_code, error_of(reply)["code"]) == (403, "forbidden_origin")
        assert "access-control-allow-origin" not in reply.headers
    assert not bridge.room.requests


async def test_C16_without_allow_origin_there_is_no_cors(bridge: Bridge) -> None:
    reply = await asked_with(bridge)
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_C16_an_allowed_page_is_told_so_on_every_answer(locked: Bridge) -> None:
    known = {"origin": PAGE, "authorization": "Bearer s3cret"}
    for reply in (
        await asked_with(locked, **known),
        await locked.http.get("/nowhere", headers=known),
        await locked.http.get("/v1/models", headers={"origin": PAGE}),
        await locked.http.get("/v1/models", headers={**known, "origin": PAGE.upper()}),
    ):
        assert reply.headers["access-control-allow-origin"].lower() == PAGE
        assert reply.headers["vary"] == "origin"
    assert (await locked.http.get("/", headers={"origin": PAGE + ".evil"})).status_code == 403


async def test_C16_the_preflight_of_an_allowed_page_needs_no_token(locked: Bridge) -> None:
    reply = await locked.http.options(
        "/v1/chat/completions",
        headers={
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type",
            "access-control-request-private-network": "true",
        },
    )
    assert (reply.status_code, reply.content) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization, content-type"
    assert reply.headers["access-control-allow-private-network"] == "true"


async def test_P117_options_that_is_no_preflight_is_a_405(locked: Bridge) -> None:
    known = {"origin": PAGE, "authorization": "Bearer s3cret"}
    reply = await locked.http.options("/v1/chat/completions", headers=known)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


async def test_P133_401_comes_before_404_and_403_before_401(locked: Bridge) -> None:
    assert (await locked.http.get("/nowhere")).status_code == 401
    assert (await locked.http.get("/nowhere", headers={"host": "evil.example"})).status_code == 403
