"""The small parts of `pooled host`; the whole runs in tests/e2e."""

import stat
from pathlib import Path

import pytest

from cli.errors import Failed
from cli.host import Opening, _write_private
from cli.hosting import ask_room
from cli.join import Lent
from cli.logs import LogOptions
from cli.processes import ChildEnded
from cli.screen import Lines
from cli.values import Memory
from protos import room_pb2
from protos.host_key import HostKey
from protos.invite import Invite
from room.config import RoomConfig
from tests.cluster import free_port


def test_the_invite_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "invite"
    file.write_text("older")
    file.chmod(0o644)
    _write_private(file, "newer\n")
    assert file.read_text() == "newer\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_invite_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot write the invite"):
        _write_private(tmp_path / "nowhere" / "invite", "")


def test_what_is_lent_as_a_command_line() -> None:
    lent = Lent(name="peer 1", memory=Memory(share=0.5), threads=2)
    assert lent.arguments == ("join", "--json", "--name=peer 1", "--memory=50.00%", "--threads=2")
    assert Lent().arguments == ("join", "--json")


def test_a_room_goes_on_without_a_local_peer_that_was_asked_to_leave(capsys: pytest.CaptureFixture[str]) -> None:
    opening = Opening(RoomConfig("model"), Lent(), (), None, False, Lines(), LogOptions())
    opening._goes_on_without(ChildEnded("the local peer", 0, []))
    assert "The local peer has left; the room goes on without it." in capsys.readouterr().err
    with pytest.raises(ChildEnded, match="lend more"):
        opening._goes_on_without(ChildEnded("the local peer", 1, ["pooled: lend more"]))


def test_a_room_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = HostKey(Invite("127.0.0.1", free_port(), "ABC234", ""), "key")
    monkeypatch.setattr("cli.hosting.open_room", lambda code: nobody)
    with pytest.raises(Failed, match="room ABC234 of this machine does not answer"):
        ask_room(None, lambda stub, metadata: stub.Peers(room_pb2.PeersRequest(), metadata=metadata))
