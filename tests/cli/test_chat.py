"""`pooled chat` against a room that answers from a script."""

import io
import sys
from collections.abc import AsyncIterator

import pytest

from bridge.client import RoomClient
from bridge.errors import ApiError, Loading, NoPipeline
from cli import main
from protos import room_pb2
from protos.invite import Invite

INVITE = "pooled://127.0.0.1:7070/ABC234#k=key&f=none"
Event = room_pb2.GenerateEvent


def text(value: str) -> Event:
    return Event(text=room_pb2.TextDelta(text=value))


def finish(reason: room_pb2.FinishReason) -> Event:
    return Event(finish=room_pb2.Finish(reason=reason))


class Script:
    """Stands for a connection to a room; each request gets the next answer, or its error in the middle."""

    id = "client"
    state = room_pb2.RoomState(ready=True)

    def __init__(self, *answers: list[Event | ApiError]) -> None:
        self.answers = list(answers)
        self.requests: list[room_pb2.GenerateRequest] = []
        self.closed = False

    async def generate(self, request: room_pb2.GenerateRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        for event in self.answers.pop(0):
            if isinstance(event, ApiError):
                raise event
            yield event

    async def close(self) -> None:
        self.closed = True


def run(script: Script, monkeypatch: pytest.MonkeyPatch, *arguments: str, typed: str = "", first: str = INVITE) -> int:
    async def connect(invite: Invite, *, version: str) -> Script:
        return script

    monkeypatch.setattr(RoomClient, "connect", connect)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    monkeypatch.setattr("cli.logs.configure", lambda options: None)
    code = main.run(["chat", first, *arguments])
    assert script.closed
    return code


def test_one_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    queued = Event(queued=room_pb2.Queued(ahead=2))
    script = Script([queued, text("It is "), text("a cache.\x1b"), finish(room_pb2.FINISH_REASON_STOP)])
    assert run(script, monkeypatch, "What is it?") == 0
    assert capsys.readouterr() == ("It is a cache.\ufffd\n", "Waiting, 2 ahead.\n")
    (request,) = script.requests
    assert [(turn.role, turn.text) for turn in request.turns] == [(room_pb2.ROLE_USER, "What is it?")]
    assert (request.client, request.max_new > 0, request.HasField("sampling")) == ("client", True, False)


def test_a_question_alone_goes_to_the_room_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POOLED_INVITE", INVITE)
    script = Script([text("Seven."), finish(room_pb2.FINISH_REASON_STOP)])
    assert run(script, monkeypatch, first="What is 3 + 4?") == 0
    assert "Seven." in capsys.readouterr().out
    monkeypatch.delenv("POOLED_INVITE")
    assert main.run(["chat", "What is 3 + 4?"]) == 2
    assert "start with pooled://" in capsys.readouterr().err


def test_one_question_that_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Script([NoPipeline("no peer has joined")]), monkeypatch, "What?") == 1
    assert capsys.readouterr() == ("", "pooled: no peer has joined\n")


def test_a_room_that_loads_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loads = room_pb2.RoomState(why="the peers load", why_code="loading")
    attic = room_pb2.PeerState(name="attic", state="loading", end=4, loaded=0.5)
    loading = room_pb2.RoomState(why="the peers load", why_code="loading", peers=[attic])
    there = room_pb2.PeerState(name="attic", state="ready", end=4, loaded=1)
    ready = room_pb2.RoomState(ready=True, model="pooled/m", ctx=64, peers=[there])

    async def states(invite: Invite) -> AsyncIterator[room_pb2.RoomState]:
        for state in (loading, ready):
            yield state

    script = Script([text("Here.")])
    script.state = loads
    monkeypatch.setattr("cli.loading.room_states", states)
    assert run(script, monkeypatch, "What?") == 0
    out, err = capsys.readouterr()
    assert out == "Here.\n"
    assert err.splitlines()[0] == "attic: layers 0 to 3 50%"
    assert err.splitlines()[-1] == "Ready: pooled/m with a context of 64 tokens, on attic (layers 0 to 3)."


def test_a_room_that_loads_anew_is_waited_for_within_a_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def states(invite: Invite) -> AsyncIterator[room_pb2.RoomState]:
        yield room_pb2.RoomState(why="the peers load", why_code="loading")
        yield room_pb2.RoomState(ready=True, model="pooled/m", ctx=64)

    monkeypatch.setattr("cli.loading.room_states", states)
    script = Script([text("one")], [Loading("the peers load")], [text("two")])
    assert run(script, monkeypatch, typed="first\nsecond\n") == 0
    out, err = capsys.readouterr()
    assert out.split() == ["one", "two"]
    assert "That did not work" not in err
    assert "Ready: pooled/m" in err


def test_an_answer_that_was_cut_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Script([text("It is"), finish(room_pb2.FINISH_REASON_LENGTH)]), monkeypatch, "What?") == 0
    assert "cut off" in capsys.readouterr().err


def test_a_conversation_remembers_what_was_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script([text("one")], [text("half"), NoPipeline("a peer left")], [text("two")])
    assert run(script, monkeypatch, typed="first\n\nlost\nsecond\n") == 0
    out, err = capsys.readouterr()
    assert out.split() == ["one", "half", "two"]
    assert err == "That did not work: a peer left\n"
    assert [turn.text for turn in script.requests[-1].turns] == ["first", "one", "second"]
