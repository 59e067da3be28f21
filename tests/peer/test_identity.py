import json
import os
from pathlib import Path

from peer.identity import claim_id, running_peers, wait_ended


def test_a_restarted_peer_has_its_id_again(tmp_path: Path) -> None:
    with claim_id("attic", tmp_path) as first:
        assert len(first) == 16
    with claim_id("attic", tmp_path) as again:
        assert again == first


def test_two_peers_side_by_side_have_two_ids(tmp_path: Path) -> None:
    with claim_id("attic", tmp_path) as first, claim_id("attic", tmp_path) as second:
        assert first != second
    with claim_id("attic", tmp_path) as first_again, claim_id("attic", tmp_path) as second_again:
        assert (first_again, second_again) == (first, second)


def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    with claim_id("../../etc/x", tmp_path / "ids") as made:
        assert made
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "ids"] * 2


def test_peers_that_run_are_found_by_name_and_no_others(tmp_path: Path) -> None:
    assert running_peers(tmp_path) == {}
    with claim_id("attic", tmp_path), claim_id("the attic/2", tmp_path):
        found = running_peers(tmp_path)
        assert set(found) == {"attic", "the attic/2"}
        assert found["attic"].pid == os.getpid()
        (tmp_path / "attic.running").write_text(json.dumps([os.getpid(), 1.0]))
        (tmp_path / "half.running").write_text("[12")
        assert set(running_peers(tmp_path)) == {"the attic/2"}, "killed, and its number given to another process"


def test_one_can_wait_for_a_peer_to_end(tmp_path: Path) -> None:
    with claim_id("attic", tmp_path):
        assert not wait_ended("attic", 0.05, tmp_path)
    assert wait_ended("attic", 0.05, tmp_path)
