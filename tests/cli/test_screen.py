import io
import logging
import shlex

import pytest
from rich.console import Console

from cli.loading import Teller
from cli.logs import LogOptions
from cli.screen import Bars, Lines, Records, Silent, as_argument, showing
from protos import room_pb2


def test_lines_tell_loading_in_steps(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Lines()
    for hundredth in range(101):
        screen.loading("attic", hundredth / 100, "layers 0 to 3")
    assert capsys.readouterr().err.splitlines() == [f"attic: layers 0 to 3 {done}%" for done in (0, 25, 50, 75, 100)]


def test_records_carry_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pooled.cli"):
        Records().loading("attic", 0.5, "layers 0 to 3")
    (record,) = caplog.records
    assert (record.__dict__["who"], record.__dict__["done"], record.__dict__["what"]) == ("attic", 0.5, "layers 0 to 3")


def test_bars_can_be_settled_and_shown_again() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    screen = Bars(console)
    for _ in range(2):
        screen.loading("attic", 0.5, "layers 0 to 3")
        screen.loading("attic", 1.0, "layers 0 to 3")
        screen.settle()
    screen.say("Ready [not markup].")
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "100%" in out
    assert "Ready [not markup]." in out


def test_names_of_others_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().say("\x1b[2Jattic\r\u009b: done\n")
    assert capsys.readouterr().err == "\ufffd[2Jattic\ufffd\ufffd: done\n\n"


def test_the_screen_follows_where_stderr_goes() -> None:
    with showing(LogOptions()) as screen:
        assert type(screen) is Lines
    with showing(LogOptions(json_lines=True)) as screen:
        assert type(screen) is Records
    with showing(LogOptions(), silent=True) as screen:
        assert type(screen) is Silent


def test_each_change_of_the_room_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    peer = room_pb2.PeerState(name="attic", state="loading", start=0, end=4, loaded=0.5)
    ready = room_pb2.PeerState(name="attic", state="ready", start=0, end=4, loaded=1)
    states = [
        room_pb2.RoomState(why="no peer has joined", why_code="no_pipeline"),
        room_pb2.RoomState(why="the peers load", why_code="loading", peers=[peer]),
        room_pb2.RoomState(ready=True, model="pooled/m", ctx=64, peers=[ready]),
    ]
    teller = Teller(Lines())
    for state in states:
        teller.tell(state)
        teller.tell(state)
    assert capsys.readouterr().err.splitlines() == [
        "Not ready: no peer has joined.",
        "attic: layers 0 to 3 50%",
        "attic: layers 0 to 3 100%",
        "Ready: pooled/m with a context of 64 tokens, on attic (layers 0 to 3).",
    ]


@pytest.mark.parametrize("name", ["attic", "root at vm", "it's", "$(reboot)", "-rf", "pooled://h:1/ABC234#k=a&f=b"])
def test_a_name_on_a_command_line_is_one_argument(name: str) -> None:
    *options, argument = shlex.split(f"pooled peers allow {as_argument(name)}")[3:]
    assert argument == name
    assert options == (["--"] if name.startswith("-") else [])


def test_a_line_tells_the_pace_after_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().loading("reading", 0.25, pace="126.5 MB/s, 1 s left")
    Lines().loading("attic", 0.5, "layers 0 to 3", "2.0 MB/s, 9 s left")
    assert capsys.readouterr().err.splitlines() == [
        "reading: 25%, 126.5 MB/s, 1 s left",
        "attic: layers 0 to 3 50%, 2.0 MB/s, 9 s left",
    ]
