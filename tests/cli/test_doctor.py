"""`pooled doctor` against rooms behind their real door, by TLS and real sockets."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from cli import checks, doctor, main
from cli.checks import Check, Result, check_way
from protos import dial, room_pb2
from protos.tunnel import tunnel_end
from room.invites import CLIENTS, PEERS
from room.service import MAX_PADDING
from tests.attacks.rig import VERSION, guarded
from tests.cluster import free_port
from tests.one_loop import anyio_backend, one_loop  # noqa: F401
from tests.recorder import Recorder
from tests.room.fakes import open_room

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
OK, FAILED, NOT_CHECKED = Result
INVITE = "pooled://127.0.0.1:{port}/ABC234#k=key&f=" + "0" * 64


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def results(found: Sequence[Check]) -> dict[str, Result]:
    return {check.name: check.result for check in found}


def failures(found: Sequence[Check]) -> dict[str, str]:
    return {check.name: check.text for check in found if check.result is FAILED}


def of(found: Sequence[Check], name: str) -> Check:
    return next(check for check in found if check.name == name)


ALL_WELL = {
    "direct": OK,
    "proxy": NOT_CHECKED,
    "websocket": NOT_CHECKED,
    "certificate": OK,
    "grpc": OK,
    "versions": OK,
    "key": OK,
    "round trip": OK,
    "bandwidth": OK,
}


@pytest.mark.parametrize(("name", "side"), [(PEERS, "peer"), (CLIENTS, "client")])
async def test_all_is_well(name: str, side: str) -> None:
    async with guarded(open_room()) as room:
        for wanted in (None, side):
            found = await check_way(room[name], wanted)
            assert results(found) == ALL_WELL
            assert of(found, "key").figures == {"side": side}
            assert of(found, "versions").figures["room_pooled"] == VERSION
            assert 0 < float(of(found, "round trip").figures["seconds"]) < 5
            assert {*of(found, "bandwidth").figures} == {"up_bytes_per_second", "down_bytes_per_second"}
            assert all(float(rate) > 0 for rate in of(found, "bandwidth").figures.values())
        assert not room.room.roster, "a doctor joins nothing"
        assert not room.door.book[name].guests, "and uses no invite up"


async def test_the_command_says_so_to_programs_and_ends_with_0() -> None:
    async with guarded(open_room()) as room:
        command = [sys.executable, "-c", "from cli.main import main; main()", "doctor", str(room[CLIENTS]), "--json"]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["check"]: line["result"] for line in lines} == {**ALL_WELL, "lending": OK}
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[-1]["device"]
    assert lines[-1]["memory"] > 0
    assert room[CLIENTS].key not in done.stdout


async def test_a_wrong_fingerprint() -> None:
    async with guarded(open_room()) as room:
        found = await check_way(replace(room[PEERS], fingerprint="0" * 64))
    assert "is not the room of this invite" in failures(found)["certificate"]
    assert len(failures(found)) == 1
    assert results(found)["key"] is NOT_CHECKED, "no key goes to a stranger"


async def test_a_wrong_key_is_tried_once() -> None:
    async with guarded(open_room()) as room:
        for _ in range(3):  # which costs nothing yet
            found = await check_way(replace(room[PEERS], key="wrong"))
            assert "does not open this room" in failures(found)["key"]
            assert len(failures(found)) == 1
        assert results(found)["versions"] is OK
        assert results(found)["bandwidth"] is NOT_CHECKED


async def test_a_clients_key_where_a_peers_is_needed() -> None:
    async with guarded(open_room()) as room:
        found = await check_way(room[CLIENTS], "peer")
    assert failures(found) == {
        "key": "it opens the door as a client's, not as a peer's; ask the host for: pooled invite peer"
    }


async def test_another_version_of_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "PROTOCOL", 99)
    async with guarded(open_room()) as room:
        found = await check_way(room[PEERS])
    assert "the room's is the older one, upgrade it" in failures(found)["versions"]
    assert len(failures(found)) == 1
    assert results(found)["key"] is NOT_CHECKED


async def test_an_invite_without_a_key_asks_nobody() -> None:
    async with guarded(open_room()) as room:
        found = await check_way(room.invite)
        assert not list(room.door.knocks)
    assert not failures(found)
    assert "the host is asked" in of(found, "key").text


async def test_by_websocket() -> None:
    async with guarded(open_room()) as room, tunnel_end(("127.0.0.1", 0), ("127.0.0.1", room.invite.port), {}) as port:
        found = await check_way(room[PEERS].by_websocket(f"ws://127.0.0.1:{port}/room"))
        assert results(found) == {**ALL_WELL, "direct": NOT_CHECKED, "websocket": OK}
    found = await check_way(room[PEERS].by_websocket(f"ws://127.0.0.1:{free_port()}/room"))
    assert "nobody answers" in failures(found)["websocket"]


async def test_by_websocket_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is asked for the WebSocket alone: it could not reach this end of the tunnel."""
    async with guarded(open_room()) as room, tunnel_end(("127.0.0.1", 0), ("127.0.0.1", room.invite.port), {}) as port:
        with Recorder() as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            found = await check_way(room[PEERS].by_websocket(f"ws://127.0.0.1:{port}/room"))
        assert results(found) == {**ALL_WELL, "direct": NOT_CHECKED, "websocket": OK}
        assert {head.split()[1] for head in proxy.heads} == {f"127.0.0.1:{port}"}


async def test_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(open_room()) as room:
        with Recorder() as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            found = await check_way(room[PEERS])
            assert results(found) == {**ALL_WELL, "proxy": OK}
            assert not of(found, "direct").needed
            nowhere = await check_way(replace(room[PEERS], port=free_port()))
        assert {*failures(nowhere)} == {"direct", "proxy"}
        found = await check_way(room[PEERS])
        assert "check https_proxy" in failures(found)["proxy"]


async def test_a_port_that_speaks_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr(checks, "STEP", 0.3)
    async with guarded(open_room()) as room, await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await check_way(replace(room[PEERS], port=port))
    assert "does not speak TLS" in failures(found)["certificate"]


@pytest.mark.parametrize(
    "request_", [room_pb2.EchoRequest(padding=bytes(MAX_PADDING + 1)), room_pb2.EchoRequest(wanted=MAX_PADDING + 1)]
)
async def test_an_echo_has_its_limit(request_: room_pb2.EchoRequest) -> None:
    async with guarded(open_room()) as room:
        stub = await room.stub()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Echo(request_, metadata=dial.credentials(room[PEERS], VERSION))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---------------------------------------------------------------- the command


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.logs.configure", lambda options: None)


@pytest.mark.usefixtures("_quiet")
def test_nobody_listens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_lending", lambda device, needed: Check("lending", OK, "", needed=needed))
    assert main.run(["doctor", INVITE.format(port=free_port()), "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = {line["check"]: line for line in lines}
    assert (told["direct"]["result"], told["lending"]["result"]) == ("failed", "ok")
    assert "does the room run" in told["direct"]["text"]
    assert {told[name]["result"] for name in ("certificate", "grpc", "versions", "key")} == {"not checked"}


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(("side", "code"), [("client", 0), ("peer", 1)])
def test_a_machine_without_torch_is_a_bridge(
    side: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def well(invite: object, side: str | None) -> list[Check]:
        return [Check("key", OK, "it opens the door", {"side": side or ""})]

    monkeypatch.setattr(doctor, "check_way", well)
    monkeypatch.setattr(doctor, "installed", lambda package: None if package == "torch" else "1")
    assert main.run(["doctor", INVITE.format(port=1), "--as", side]) == code
    out = " ".join(capsys.readouterr().out.split())
    assert "can serve as a bridge" in out
    assert "torch not installed" in out
    assert "pip install -c constraints.txt '.[host]'" in out


def test_the_table_takes_no_orders_from_others() -> None:
    out = io.StringIO()
    doctor.show([Check("key", FAILED, "[bold]no\x1b[2J")], Console(file=out, width=80))
    assert "[bold]no\ufffd[2J" in out.getvalue()
