import json
import os
import stat
from pathlib import Path

import pytest

from peer.errors import UnusableKey
from peer.identity import claim, running_peers, wait_ended


def test_a_restarted_peer_has_its_id_again(tmp_path: Path) -> None:
    with claim("attic", "ABC234", tmp_path) as first:
        assert len(first.id) == 32
    assert stat.S_IMODE((tmp_path / "attic.key").stat().st_mode) == 0o600
    with claim("attic", "ABC234", tmp_path) as again:
        assert (again.id, again.public_key) == (first.id, first.public_key)
        assert again.certificate != first.certificate, "a fresh one for each process"


def test_a_key_that_is_none_stops_the_peer(tmp_path: Path) -> None:
    (tmp_path / "attic.key").write_text("no key")
    with pytest.raises(UnusableKey, match="remove it"), claim("attic", "ABC234", tmp_path):
        pass


def test_two_peers_side_by_side_have_two_ids(tmp_path: Path) -> None:
    with claim("attic", "ABC234", tmp_path) as first, claim("attic", "ABC234", tmp_path) as second:
        assert first.id != second.id
        before = first.id, second.id
    with claim("attic", "ABC234", tmp_path) as first_again, claim("attic", "ABC234", tmp_path) as second_again:
        assert (first_again.id, second_again.id) == before


def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    with claim("../../etc/x", "ABC234", tmp_path / "ids") as made:
        assert made
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "ids"] * 2


def test_peers_that_run_are_found_by_name_and_no_others(tmp_path: Path) -> None:
    assert running_peers(tmp_path) == {}
    with claim("attic", "ABC234", tmp_path), claim("the attic/2", "XYZ789", tmp_path):
        found = running_peers(tmp_path)
        assert set(found) == {"attic", "the attic/2"}
        assert found["attic"].process.pid == os.getpid()
        assert [found[name].room for name in sorted(found)] == ["ABC234", "XYZ789"]
        (tmp_path / "attic.running").write_text(json.dumps([os.getpid(), 1.0, "ABC234"]))
        (tmp_path / "half.running").write_text("[12")
        assert set(running_peers(tmp_path)) == {"the attic/2"}, "killed, and its number given to another process"


def test_one_can_wait_for_a_peer_to_end(tmp_path: Path) -> None:
    with claim("attic", "ABC234", tmp_path):
        assert not wait_ended("attic", 0.05, tmp_path)
    assert wait_ended("attic", 0.05, tmp_path)
