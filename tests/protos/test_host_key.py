import os
import stat
from pathlib import Path

import pytest

from protos.host_key import HostKey, kept, open_rooms
from protos.invite import Invite

HOST_KEY = HostKey(Invite("127.0.0.1", 7070, "ABC234", "door"), "host")


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_it_is_found_as_long_as_the_room_runs(state: dict[str, str]) -> None:
    assert open_rooms(state) == []
    with kept(HOST_KEY, state):
        assert open_rooms(state) == [HOST_KEY]
        other = HostKey(Invite("127.0.0.1", 7071, "AAA222", "door"), "other")
        with kept(other, state):
            assert open_rooms(state) == [other, HOST_KEY]
    assert open_rooms(state) == []


def test_a_room_of_the_same_code_keeps_what_it_has(state: dict[str, str]) -> None:
    other = HostKey(Invite("127.0.0.1", 7071, "ABC234", "door"), "other")
    with kept(HOST_KEY, state):
        with pytest.raises(OSError, match="a room of this code is running already"), kept(other, state):
            pass
        assert open_rooms(state) == [HOST_KEY]


def test_it_is_its_users_alone(state: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "pooled" / "rooms" / "ABC234"
    file.parent.mkdir(parents=True)
    file.write_text("older")
    file.chmod(0o644)
    with kept(HOST_KEY, state):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_a_killed_room_left_counts_for_nothing(state: dict[str, str]) -> None:
    child = os.fork()
    if not child:
        with kept(HOST_KEY, state):
            os._exit(0)
    os.waitpid(child, 0)
    assert open_rooms(state) == []


def test_the_keys_are_in_no_repr() -> None:
    assert "host" not in repr(HOST_KEY).replace("host=", "").replace("HostKey", "")
    assert "door" not in repr(HOST_KEY)
