"""The cache of weights on this machine's disk: named by what is in it, checked when it is used, bounded in size.

    manifests/<SHA-256>           small contents, whole: manifests and configs
    weights/<key>.safetensors     a model's file with holes where other slices' bytes would be

A file of weights lies as its manifest describes it, so the library reads a slice from it in place. Which pieces are
there is written nowhere: a piece counts when its SHA-256 is right. So nothing has to be repaired after a crash, and
what had come before goes on to count.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from peer.errors import CacheFull, DiskFailed
from protos.contents import Place
from protos.manifest import InvalidManifest, Manifest, Piece, WeightFile, digest
from protos.progress import amount

try:
    import fcntl
except ImportError:  # Windows lets nobody delete a file that is open
    fcntl = None  # type: ignore[assignment]

_FULL = (errno.ENOSPC, errno.EDQUOT)

LIMIT = 100 * 10**9
"""Bytes that the cache takes at most where nothing else is said."""


def default_folder() -> Path:
    return Path.home() / ".cache" / "pooled" / "weights"


@dataclass(frozen=True)
class Kept:
    """A file in the cache."""

    path: Path
    size: int
    """Bytes that it takes on the disk."""
    used: float
    """When it was loaded from last, as time.time() tells it."""
    in_use: bool
    name: str
    """What it is, as far as a manifest tells."""


class Store:
    """One process's view of the cache. Blocks; for one thread at a time, except `put` and `locate`."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder = folder
        self._limit = limit
        self._sound: dict[str, Place] = {}  # what this process has checked, by SHA-256
        self._open: dict[Path, int] = {}  # descriptors that keep other processes from deleting a file

    def check(self) -> None:
        """Raise DiskFailed where nothing can be kept."""
        with _telling_of_the_disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._folder).close()

    # ------------------------------------------------------------ small contents

    def small(self, sha256: str) -> bytes | None:
        """A content that is kept whole, if it is there."""
        try:
            content = (self._folder / "manifests" / sha256).read_bytes()
        except FileNotFoundError:
            return None
        return content if digest(content) == sha256 else None

    def keep_small(self, content: bytes) -> None:
        _write(self._folder / "manifests" / digest(content), content)

    # ------------------------------------------------------------ weights

    def path(self, file: WeightFile) -> Path:
        return self._folder / "weights" / (file.key() + Path(file.name).suffix)

    def prepare(self, file: WeightFile) -> Path:
        """Its place in the cache, made if need be, and kept from being deleted as long as this process runs."""
        path = self.path(file)
        with _telling_of_the_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            while path not in self._open:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                if _is_file(descriptor, path):  # else another process deleted it before it was ours
                    self._open[path] = descriptor
            os.truncate(path, file.size)
            os.utime(path)
        return path

    def right(self, path: Path, pieces: Iterable[Piece]) -> list[Piece]:
        """Those of `pieces` that the file at `path` holds; they can be read and shared from now on."""
        places = {piece: Place(path, piece.offset, piece.size) for piece in pieces}
        if not path.is_file():
            return []
        with path.open("rb") as file, ThreadPoolExecutor() as pool:
            holes = _Holes(file.fileno(), path.stat().st_size)
            known = [self._sound.get(piece.sha256) == place for piece, place in places.items()]
            unknown = [piece for piece, sure in zip(places, known, strict=True) if not sure and not holes.cover(piece)]
            checked = dict(zip(unknown, pool.map(lambda piece: _holds(path, piece), unknown), strict=True))
        found = [piece for piece, sure in zip(places, known, strict=True) if sure or checked.get(piece)]
        for piece in found:
            self._sound[piece.sha256] = places[piece]
        return found

    def put(self, path: Path, piece: Piece, data: bytes) -> bool:
        """Write a piece's bytes to its place in a file of the cache, if they are what they should be."""
        if len(data) != piece.size or digest(data) != piece.sha256:
            return False
        with _telling_of_the_disk(path), path.open("r+b") as file:
            file.seek(piece.offset)
            file.write(data)
        self._sound[piece.sha256] = Place(path, piece.offset, piece.size)
        return True

    def copy(self, source: Path, path: Path, pieces: Iterable[Piece]) -> None:
        """Take pieces over from another file."""
        with source.open("rb") as file:
            for piece in pieces:
                file.seek(piece.offset)
                self.put(path, piece, file.read(piece.size))

    def locate(self, sha256: str) -> Place | None:
        """Where a content lies that this process has checked."""
        return self._sound.get(sha256)

    # ------------------------------------------------------------ its size

    def make_room(self, count: int) -> None:
        """Have `count` more bytes fit, deleting what was used longest ago. Raises CacheFull, DiskFailed."""
        kept = self.kept()
        over = sum(each.size for each in kept) + count - self._limit
        if over > 0 and self.prune(over) < over:
            raise CacheFull(
                f"{amount(count)} have to be fetched and the cache in {self._folder} may take "
                f"{amount(self._limit)}, part of which is in use; allow more with --cache-size"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if free < count and self.prune(count - free) < count - free:
            raise DiskFailed(
                f"{amount(count)} have to be fetched and {amount(free)} are free in {self._folder}; free "
                "some space, or name another folder with --cache"
            )

    def kept(self) -> list[Kept]:
        """What is in the cache, what was used longest ago first."""
        names = self._names()
        found = []
        for path in (self._folder / "weights").glob("*.*"):
            with suppress(FileNotFoundError):
                state = path.stat()
                size = getattr(state, "st_blocks", -(-state.st_size // 512)) * 512
                with _unused(path) as unused:
                    found.append(Kept(path, size, state.st_mtime, not unused, names.get(path.stem, "")))
        return sorted(found, key=lambda each: each.used)

    def prune(self, count: int) -> int:
        """Delete what was used longest ago until `count` bytes are free, and nothing in use; how many that were."""
        freed = 0
        for each in self.kept():
            if freed >= count:
                break
            with _unused(each.path) as unused:
                if unused:
                    each.path.unlink(missing_ok=True)
                    freed += each.size
        return freed

    def _names(self) -> dict[str, str]:
        """What files of weights are, by their key."""
        names: dict[str, str] = {}
        for path in (self._folder / "manifests").glob("*"):
            with suppress(InvalidManifest, OSError):
                manifest = Manifest.parse(path.read_bytes())
                names.update((file.key(), f"{manifest.model}: {file.name}") for file in manifest.weights)
        return names


class _Holes:
    """Tells which parts of a sparse file were never written, without reading them."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size

    def cover(self, piece: Piece) -> bool:
        if piece.offset + piece.size > self._size:
            return True
        if not hasattr(os, "SEEK_DATA"):
            return False
        try:
            return os.lseek(self._descriptor, piece.offset, os.SEEK_DATA) >= piece.offset + piece.size
        except OSError:  # no data from there on
            return True


def _holds(path: Path, piece: Piece) -> bool:
    with path.open("rb") as file:
        file.seek(piece.offset)
        return hashlib.sha256(file.read(piece.size)).hexdigest() == piece.sha256


@contextmanager
def _unused(path: Path) -> Iterator[bool]:
    """Whether no process has it prepared, and none can as long as the block lasts."""
    if fcntl is None:
        yield True
        return
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    making = path.with_name(f"{path.name}.{os.getpid()}.new")
    with _telling_of_the_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        making.write_bytes(content)
        making.replace(path)


@contextmanager
def _telling_of_the_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        way_out = "free some space, or " if error.errno in _FULL else ""
        raise DiskFailed(
            f"cannot write {path} ({error.strerror}); {way_out}name another folder with --cache"
        ) from error
