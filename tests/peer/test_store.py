"""The cache on disk: what counts as being there, and what makes way."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.errors import CacheFull, DiskFailed
from peer.store import Store
from protos.manifest import Manifest, Piece, Region, Tensor, WeightFile, digest

HOLD = """
import sys
from pathlib import Path
from peer.store import Store
from tests.peer.test_store import weights
Store(Path(sys.argv[1])).prepare(weights(1))
print("held", flush=True)
sys.stdin.read()
"""


def part(number: int) -> bytes:
    return bytes([number % 251]) * 40_000


def weights(first: int = 1, name: str = "model.safetensors") -> WeightFile:
    """A header and three tensors of one piece each."""
    header = Region(0, 40_000, (digest(part(first)),))
    tensors = [
        Tensor(40_000 * at, 40_000, (digest(part(first + at)),), name=f"t{at}", dtype="U8", shape=(40_000,))
        for at in (1, 2, 3)
    ]
    return WeightFile(name, 160_000, header, tuple(tensors))


def pieces(file: WeightFile) -> list[Piece]:
    return [piece for region in (file.header, *file.tensors) for piece in region.pieces()]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def fill(store: Store, file: WeightFile, first: int, *places: int) -> Path:
    path = store.prepare(file)
    for place in places:
        assert store.put(path, pieces(file)[place], part(first + place))
    return path


def test_what_was_put_is_right_for_another_process_too(store: Store, tmp_path: Path) -> None:
    file = weights()
    path = fill(store, file, 1, 0, 2)
    assert store.right(path, pieces(file)) == [pieces(file)[0], pieces(file)[2]]
    assert Store(tmp_path / "cache").right(path, pieces(file)) == [pieces(file)[0], pieces(file)[2]]
    assert path.stat().st_size == file.size


def test_wrong_bytes_are_not_taken(store: Store) -> None:
    file = weights()
    path = store.prepare(file)
    piece = pieces(file)[1]
    for wrong in (part(7), part(2)[:-1], part(2) + b"x", b""):
        assert not store.put(path, piece, wrong)
    assert store.right(path, pieces(file)) == []
    assert store.locate(piece.sha256) is None


def test_a_byte_that_changed_on_the_disk_is_noticed(store: Store, tmp_path: Path) -> None:
    file = weights()
    path = fill(store, file, 1, 0, 1, 2, 3)
    with path.open("r+b") as out:
        out.seek(50_000)
        out.write(b"\xff")
    assert Store(tmp_path / "cache").right(path, pieces(file)) == [pieces(file)[at] for at in (0, 2, 3)]


def test_what_is_right_can_be_located_and_what_is_not_known_cannot(store: Store) -> None:
    file = weights()
    path = fill(store, file, 1, 1)
    place = store.locate(pieces(file)[1].sha256)
    assert place is not None
    assert (place.path, place.offset, place.size) == (path, 40_000, 40_000)
    assert store.locate(pieces(file)[2].sha256) is None


def test_files_of_equal_contents_are_one_whatever_they_are_called(store: Store) -> None:
    assert store.path(weights()) == store.path(weights(name="other.safetensors"))
    assert store.path(weights()) != store.path(weights(2))


def test_pieces_are_taken_over_from_a_copy(store: Store, tmp_path: Path) -> None:
    file, copy = weights(), tmp_path / "copy.safetensors"
    copy.write_bytes(part(1) + part(2) + part(99) + part(4))
    right = store.right(copy, pieces(file))
    assert right == [pieces(file)[at] for at in (0, 1, 3)]
    path = store.prepare(file)
    store.copy(copy, path, right)
    assert store.right(path, pieces(file)) == right


def test_small_contents_are_checked_when_they_are_read(store: Store, tmp_path: Path) -> None:
    assert store.small(digest(b"text")) is None
    store.keep_small(b"text")
    assert store.small(digest(b"text")) == b"text"
    next((tmp_path / "cache" / "manifests").iterdir()).write_bytes(b"TEXT")
    assert store.small(digest(b"text")) is None


class TestSize:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Holds three files, none of them in use, of 160 KB each; the first was used longest ago."""
        folder = tmp_path / "cache"
        for number, first in enumerate((1, 11, 21)):
            store = Store(folder)
            path = fill(store, weights(first), first, 0, 1, 2, 3)
            for descriptor in store._open.values():
                os.close(descriptor)
            os.utime(path, (number, number))
        return folder

    def test_what_was_used_longest_ago_makes_way(self, folder: Path) -> None:
        store = Store(folder, limit=500_000)
        store.make_room(100_000)
        assert store.path(weights(1)).exists() is False
        assert store.path(weights(11)).exists()
        store.make_room(100_000)
        assert store.path(weights(11)).exists(), "there was room enough"

    def test_what_is_in_use_stays_and_is_told(self, folder: Path) -> None:
        program = [sys.executable, "-c", HOLD, str(folder)]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            store = Store(folder, limit=200_000)
            with pytest.raises(CacheFull, match=r"part of which is in use; allow more with --cache-size"):
                store.make_room(100_000)
            assert [each.in_use for each in store.kept()] == [True]
            other.communicate("")
        store.make_room(100_000)
        assert store.kept() == []

    def test_a_disk_without_space_is_told_before_anything_is_fetched(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(DiskFailed, match="free some space, or name another folder with --cache"):
            Store(folder).make_room(10**9)

    def test_files_are_told_by_the_names_of_their_models(self, folder: Path) -> None:
        store = Store(folder)
        store.keep_small(Manifest("Tiny", None, None, (), (weights(11),)).text())
        assert {each.name for each in store.kept()} == {"", "Tiny: model.safetensors"}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    refused: list[Callable[[], object]] = [lambda: store.prepare(weights()), lambda: store.keep_small(b"x")]
    for work in refused:
        with pytest.raises(DiskFailed, match="name another folder with --cache"):
            work()


def test_a_folder_that_cannot_be_written_is_told_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailed, match=r"Not a directory\); name another folder with --cache"):
        Store(tmp_path / "file" / "cache").check()
    Store(tmp_path / "new" / "cache").check()
    assert list((tmp_path / "new" / "cache").iterdir()) == []
