"""The host looks at what its room does and stops an answer: the real commands, on a room over its socket."""

import asyncio
import json
import logging
from pathlib import Path

import grpc
import pytest

from cli import main
from protos import dial, room_pb2
from protos.host_key import open_rooms
from protos.room_pb2_grpc import HostStub
from tests.contract.rig import Rig, events_of, line, running

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests of one run share a home; here it is known which rooms run."""
    monkeypatch.setattr("cli.logs.configure", lambda options: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def pooled(*argv: str) -> int:
    """Run a command as another process would; it has an event loop of its own."""
    return await asyncio.to_thread(main.run, list(argv))


async def until_running(rig: Rig, count: int) -> None:
    while len(rig.room.running) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_P118_an_answer_that_the_host_stops_never_ends_as_a_finished_one(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tiny, tmp_path) as rig:
        rig.play(line("a", fault="hang"))
        streamed = asyncio.create_task(rig.post(stream=True))
        await until_running(rig, 1)
        whole = asyncio.create_task(rig.post())
        await until_running(rig, 2)
        assert await pooled("requests", "--json") == 0
        listed = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
        assert [each["state"] for each in listed] == ["running", "running"]
        assert all(each["prompt_tokens"] > 0 and each["answer_tokens"] >= 0 for each in listed)
        for each in listed:
            assert await pooled("requests", "stop", str(each["number"])) == 0
        events = events_of((await streamed).text)
        assert events[-1]["error"]["code"] == "cancelled_by_room"
        assert "[DONE]" not in events
        assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
        reply = await whole
        assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
        assert reply.json()["error"]["code"] == "cancelled_by_room"
        assert not rig.room.running


async def test_P118_answers_to_a_client_that_is_put_out(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path) as rig:
        rig.play(line("a", fault="hang"))
        streamed = asyncio.create_task(rig.post(stream=True))
        whole = asyncio.create_task(rig.post())
        await until_running(rig, 2)
        assert await pooled("invite", "revoke", "clients") == 0
        events = events_of((await streamed).text)
        assert events[-1]["error"]["code"] == "cancelled_by_room"
        assert "[DONE]" not in events
        reply = await whole
        assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
        assert reply.json()["error"]["code"] == "cancelled_by_room"


async def test_P118_a_request_is_stopped_in_the_line_too(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tiny, tmp_path, max_running=1) as rig:
        rig.play(line("a", fault="hang"), line("b"))
        first = asyncio.create_task(rig.post())
        await until_running(rig, 1)
        second = asyncio.create_task(rig.post())
        while not len(rig.room.line):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert await pooled("requests") == 0
        shown = capsys.readouterr().out
        assert "waiting, 1 ahead" in shown
        assert await pooled("requests", "stop", "2") == 0
        assert (await second).json()["error"]["code"] == "cancelled_by_room"
        assert await pooled("requests", "stop", "2") == 1
        assert "there is no request 2" in capsys.readouterr().err
        assert len(rig.room.running) == 1, "the other one is not touched"
        first.cancel()


async def test_only_the_host_may(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path) as rig:
        (host_key,) = open_rooms()
        assert host_key.invite.code == rig.room.code
        async with await dial.open_channel(host_key.invite) as channel:
            for metadata in (
                dial.credentials(host_key.invite, ""),
                (*dial.credentials(host_key.invite, ""), (dial.HOST_KEY, "k")),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await HostStub(channel).Requests(room_pb2.RequestsRequest(), metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "only the host" in str(caught.value.details())
    assert open_rooms() == []


async def test_which_room(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await pooled("requests") == 1
    assert "no room of yours runs on this machine" in capsys.readouterr().err
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with running(tiny, tmp_path / "one") as rig, running(tiny, tmp_path / "two"):
        assert await pooled("requests") == 1
        assert "name one with --room" in capsys.readouterr().err
        assert await pooled("requests", "--room", "QQQQQQ") == 1
        assert "no room QQQQQQ" in capsys.readouterr().err
        assert await pooled("requests", "--room", rig.room.code.lower()) == 0
        assert capsys.readouterr().out == "no requests\n"


@pytest.mark.parametrize("command", [("peers", "pause", "p1"), ("peers", "remove", "p1"), ("requests", "stop", "1")])
async def test_the_room_may_be_named_before_the_command_too(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    group, *rest = command
    async with running(tiny, tmp_path) as rig:
        assert await pooled(group, "--room", "QQQQQQ", *rest) == 1
        assert "no room QQQQQQ" in capsys.readouterr().err, "the only room is another one"
        assert await pooled(group, "--room", rig.room.code, *rest) == 1
        assert "there is no" in capsys.readouterr().err
        assert await pooled(group, "--json", *rest) == 2
        assert f"leave out {rest[0]}" in capsys.readouterr().err


async def test_the_log_says_what_the_host_did_and_which_requests_failed(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pooled")
    async with running(tiny, tmp_path) as rig:
        rig.play(line("a", fault="hang"))
        asked = asyncio.create_task(rig.post(stream=True))
        await until_running(rig, 1)
        (number,) = (session.number for session in rig.room.running)
        assert await pooled("requests", "stop", str(number)) == 0
        await asked
    said = {record.getMessage(): vars(record) for record in caplog.records if record.name.startswith("pooled")}
    assert said["the host acts"]["what"] == f"stops request {number}"
    assert (said["request failed"]["number"], "host" in said["request failed"]["why"]) == (number, True)
    access = said["POST /v1/chat/completions"]
    assert (access["status"], access["error"]) == (200, "cancelled_by_room")
    assert access["request_id"] == said["request failed"]["request"]
