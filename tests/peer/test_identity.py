from pathlib import Path

from peer.identity import claim_id


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
