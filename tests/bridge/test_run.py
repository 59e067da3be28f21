"""Starting and stopping: run_bridge, its settings, and the client of the room."""

import asyncio
import socket
from dataclasses import replace
from typing import Any

import grpc
import pytest

from bridge.app import run_bridge
from bridge.client import RoomClient
from bridge.config import BridgeConfig
from bridge.errors import ApiError, BadConfig, BridgeError, CancelledByRoom, PortTaken, RoomRefused, RoomUnreachable
from protos import room_pb2
from protos.invite import Invite
from tests.bridge.conftest import USER, running
from tests.bridge.fake_room import CERTIFICATE, CODE, KEY, MODEL, FakeRoom, Refuse, answer, queued, text
from tests.bridge.wire import Wire

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"host": "192.168.1.5"},
        {"host": "example.org"},
        {"port": -1},
        {"port": 70_000},
        {"token": ""},
        {"token": "two words"},
        {"token": "\u00e9"},
        {"token": "line\n"},
        {"max_queue": 0},
        {"keepalive": 0},
        {"keepalive": float("nan")},
        {"keepalive": float("inf")},
        {"allow_origins": ("*",)},
        {"allow_origins": ("chat.example",)},
        {"allow_origins": ("https://chat.example/path",)},
        {"allow_origins": ("https://ok.example", "null")},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as caught:
        BridgeConfig(**settings)
    assert isinstance(caught.value, BridgeError)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError):
        BridgeConfig(prot=8080)  # type: ignore[call-arg]


def test_settings_never_show_the_token() -> None:
    assert "s3cret" not in repr(BridgeConfig(token="s3cret"))


@pytest.fixture(params=[None, CERTIFICATE.fingerprint], ids=["plain", "tls"])
def invite(request: pytest.FixtureRequest) -> Invite:
    return Invite("127.0.0.1", 0, CODE, KEY, request.param)


async def test_another_room_at_the_address_ends_the_start(room: FakeRoom) -> None:
    with pytest.raises(RoomRefused, match="not the room of this invite"):
        await start(replace(room.invite, fingerprint="0" * 64))


async def start(invite: Invite, **settings: Any) -> None:
    await run_bridge(BridgeConfig(port=0, **settings), invite)


@pytest.mark.parametrize(
    ("code", "key", "sentence"),
    [(CODE, "wrong", "the key does not open this room"), ("ZZZ999", KEY, "there is no such room")],
)
async def test_an_invite_the_room_does_not_accept_ends_the_start(
    room: FakeRoom, code: str, key: str, sentence: str
) -> None:
    with pytest.raises(RoomRefused, match=sentence):
        await start(replace(room.invite, code=code, key=key))


async def test_another_protocol_ends_the_start(room: FakeRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protos.dial.PROTOCOL", 999)
    with pytest.raises(RoomRefused, match="another protocol"):
        await start(room.invite)


async def test_nobody_at_the_address_ends_the_start(invite: Invite) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(RoomUnreachable, match="nobody answers"):
            await start(replace(invite, port=unused.getsockname()[1]))


async def test_somebody_who_says_nothing_ends_the_start(invite: Invite) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(RoomUnreachable):
            await RoomClient.connect(replace(invite, port=silent.getsockname()[1]), timeout=0.2)


async def test_a_client_that_was_never_in_lost_no_room(room: FakeRoom, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RoomRefused):
        await RoomClient.connect(replace(room.invite, key="wrong"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = RoomClient(replace(room.invite, port=unused.getsockname()[1]))
        with pytest.raises(RoomUnreachable):
            await client._first
        client._leave(RoomRefused("the host closed the door"))
        await client.close()
    assert "lost the room" not in caplog.text
    assert "turns this client away: the host closed the door" in caplog.text


async def test_a_taken_port_ends_the_start(room: FakeRoom) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"{port}.*choose another --port"):
            await run_bridge(BridgeConfig(port=port), room.invite)


async def test_a_room_that_is_not_ready_yet_is_told_with_its_reason(room: FakeRoom) -> None:
    await room.tell(ready=False, why="the peers load", why_code="loading")
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answering = asyncio.Event()
    bridge = asyncio.create_task(
        run_bridge(BridgeConfig(port=0), room.invite, unready=told.set_result, answering=answering.set)
    )
    assert await told == "the peers load"
    assert not answering.is_set()
    await room.tell(ready=True, why="", why_code="")
    await answering.wait()
    bridge.cancel()
    await asyncio.gather(bridge, return_exceptions=True)


async def test_ready_gets_the_base_url(room: FakeRoom) -> None:
    async with running(room) as bridge:
        assert bridge.base_url == f"http://127.0.0.1:{bridge.port}/v1"
        reply = await bridge.http.get(bridge.base_url + "/models")
        assert reply.json()["data"][0]["id"] == MODEL


async def test_C13_stopping_ends_every_answer_with_an_error(room: FakeRoom) -> None:
    room.script = [queued(0), text("a"), asyncio.Event()]
    async with running(room) as bridge, Wire(bridge.port) as streamed, Wire(bridge.port) as whole:
        await streamed.post({"messages": [USER], "stream": True})
        await whole.post({"messages": [USER]})
        await room.until_running(2)
        await streamed.read_head()
        bridge.task.cancel()
        rest = b""
        while chunk := await streamed.read_chunk():
            rest += chunk
        assert b'"code":"pipeline_lost"' in rest, "of the codes that an error chunk may have"
        assert b"[DONE]" not in rest
        reply = await whole.read_reply()
        assert (reply.status, reply.json()["error"]["code"]) == (503, "shutting_down")
        with pytest.raises(asyncio.CancelledError):
            await bridge.task
        assert await streamed.closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", bridge.port)
    await room.until_cancelled(2)


async def test_stopping_does_not_wait_for_idle_or_half_sent_requests(room: FakeRoom) -> None:
    async with running(room) as bridge, Wire(bridge.port) as idle, Wire(bridge.port) as half:
        await idle.send(idle.head("GET", "/"))
        await idle.read_reply()
        own = {"content-type": "application/json", "content-length": "100"}
        await half.send(half.head("POST", "/v1/chat/completions", own))
        await bridge.http.get("/")
        bridge.task.cancel()
        await asyncio.wait({bridge.task}, timeout=10)
        assert bridge.task.done()


async def test_signals_are_left_to_the_caller(room: FakeRoom) -> None:
    import signal

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with running(room):
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# ---------------------------------------------------------------- the client by itself, as the CLI uses it


async def test_a_client_knows_the_room_once_it_is_connected(room: FakeRoom) -> None:
    async with await RoomClient.connect(room.invite, version="1.2") as client:
        assert (client.state.code, client.state.model, client.ready) == (CODE, MODEL, True)
        assert repr(client) == f"<RoomClient [127.0.0.1:{room.port}: connected | {MODEL}]>"
        client.check()


async def test_a_client_yields_the_events_of_an_answer(room: FakeRoom) -> None:
    async with await RoomClient.connect(room.invite) as client:
        request = room_pb2.GenerateRequest(request_id="r1", client=client.id)
        kinds = [event.WhichOneof("event") async for event in client.generate(request)]
        assert kinds == ["queued", "prefill", "text", "text", "finish", "usage"]


async def test_a_client_that_leaves_its_answer_stops_it(room: FakeRoom) -> None:
    room.script = [queued(0), text("a"), asyncio.Event()]
    async with await RoomClient.connect(room.invite) as client:
        events = client.generate(room_pb2.GenerateRequest(request_id="r1"))
        assert (await anext(events)).HasField("queued")
        await events.aclose()
        await asyncio.wait_for(room.until_cancelled(), 60)


async def test_a_client_raises_typed_errors(room: FakeRoom) -> None:
    room.script = [queued(0), Refuse("cancelled_by_room", "the host stopped this answer")]
    async with await RoomClient.connect(room.invite) as client:
        with pytest.raises(CancelledByRoom, match="the host stopped") as caught:
            async for _ in client.generate(room_pb2.GenerateRequest()):
                pass
        assert isinstance(caught.value, ApiError)
        assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)


async def test_a_client_knows_when_it_is_turned_away(room: FakeRoom) -> None:
    async with await RoomClient.connect(room.invite) as client:
        room.turned_away = grpc.StatusCode.PERMISSION_DENIED
        room.script = answer()
        await room.tell()
        while client.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(RoomRefused, match="the host removed you"):
            client.check()
        assert "refused" in repr(client)
