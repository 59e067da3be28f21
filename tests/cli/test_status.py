import io
import json

import pytest
from rich.console import Console

from cli import main, status
from protos import room_pb2
from protos.invite import Invite

STATE = room_pb2.RoomState(
    code="ABC234",
    name="cellar",
    model="pooled/m",
    ready=True,
    ctx=4096,
    layers=30,
    running=2,
    waiting=1,
    served=2**40,
    tokens_per_second=12.5,
    pages=100,
    pages_free=60,
    peers=[
        room_pb2.PeerState(
            name="[bold]attic\x1b",
            state="ready",
            device="cpu",
            dtype="float32",
            start=0,
            end=30,
            weight_bytes=5 * 10**8,
        ),
        room_pb2.PeerState(name="shed", state="loading", loaded=0.25, memory=2 * 10**9),
    ],
)


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def state(invite: Invite) -> room_pb2.RoomState:
        return STATE

    monkeypatch.setattr(status, "_state", state)
    monkeypatch.setattr("cli.logs.configure", lambda options: None)


def test_json_holds_every_field_with_numbers_as_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "pooled://localhost:1/ABC234#k=k&f=none", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {field.name for field in room_pb2.RoomState.DESCRIPTOR.fields}
    assert (shown["served"], shown["tokens_per_second"], shown["why"]) == (2**40, 12.5, "")
    assert (shown["peers"][0]["end"], shown["peers"][1]["loaded"]) == (30, 0.25)


def test_what_is_kept_in_fewer_bits_is_said() -> None:
    lines = []
    for changed in (
        {},
        {"quant": "none", "kv": "auto", "wire": "auto"},
        {"quant": "int8", "kv": "auto", "wire": "bf16"},
    ):
        out, state = io.StringIO(), room_pb2.RoomState(**changed)
        status._show(state, Console(file=out, width=120))
        lines.append([each for each in out.getvalue().splitlines() if "precision" in each])
    assert lines == [[], [], ["precision: weights in int8, hidden states in bf16"]]


def test_the_table_shows_peers_and_their_layers() -> None:
    out = io.StringIO()
    status._show(STATE, Console(file=out, width=120))
    text = out.getvalue()
    assert "Room cellar, pooled/m with a context of 4096: ready" in text
    assert "2 running, 1 waiting" in text
    assert "[bold]attic\ufffd" in text
    assert "layers 0 to 29" in text
    assert "500.0 MB" in text
    assert "loading 25%" in text
    assert "0.0 MB" not in text.replace("500.0 MB", ""), "what is not known yet is left out"
