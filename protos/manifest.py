"""A manifest: what a model is, down to the SHA-256 of every piece of its weights.

The room that serves a model makes it, or is given it; peers load by it and check every byte against it. It names the
model's text files, and for each file of weights its header and where each tensor is. Contents are read in pieces of
BLOCK bytes, each with a SHA-256 of its own, so that they can come from anywhere, in any order. A manifest is itself
named by the SHA-256 of its JSON text.

    manifest = Manifest.parse(text)           # raises InvalidManifest
    digest(manifest.text()) names it
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NoReturn

BLOCK = 8 << 20
"""Bytes of a piece; the last one of a region may have fewer."""

MOST_TEXT = 60 << 20
"""Bytes of a manifest's JSON at most: enough for terabytes of weights."""

MOST_BYTES = 1 << 50
"""Of one file."""

_VERSION = 1
_MOST_DIMS = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_KINDS = (".safetensors", ".gguf")
_RESERVED = set('/\\:*?"<>|')


class InvalidManifest(ValueError):
    """The text is no manifest that can be used; the message says why."""


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Piece:
    """Some bytes of a file."""

    sha256: str
    offset: int
    size: int


@dataclass(frozen=True)
class TextFile:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Region:
    """Consecutive bytes of a file, in pieces."""

    offset: int
    """From the start of the file."""
    size: int
    blocks: tuple[str, ...]
    """SHA-256 of each BLOCK bytes."""

    def pieces(self) -> Iterator[Piece]:
        for number, sha256 in enumerate(self.blocks):
            start = number * BLOCK
            yield Piece(sha256, self.offset + start, min(BLOCK, self.size - start))


@dataclass(frozen=True)
class Tensor(Region):
    name: str
    dtype: str
    """As the file's format names it."""
    shape: tuple[int, ...]
    """Slowest dimension first."""


@dataclass(frozen=True)
class WeightFile:
    name: str
    size: int
    header: Region
    """All before the first tensor."""
    tensors: tuple[Tensor, ...]

    def key(self) -> str:
        """Equal for files of equal contents, whatever they are called."""
        parts = [[part.offset, part.size, *part.blocks] for part in (self.header, *self.tensors)]
        return digest(json.dumps([self.size, parts]).encode())


@dataclass(frozen=True)
class Manifest:
    model: str
    """What people call it."""
    repository: str | None
    """Where its files are on the hub, and of which commit; None: nowhere."""
    commit: str | None
    texts: tuple[TextFile, ...]
    """Config, tokenizer and template. A GGUF's are in its header."""
    weights: tuple[WeightFile, ...]

    @property
    def is_gguf(self) -> bool:
        return self.weights[0].name.endswith(".gguf")

    @property
    def size(self) -> int:
        """Bytes of the weights' files."""
        return sum(file.size for file in self.weights)

    def text(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, text: bytes) -> "Manifest":
        """Read and check a manifest, whoever wrote it. Raises InvalidManifest."""
        if len(text) > MOST_TEXT:
            _refuse(f"has {len(text)} bytes, more than {MOST_TEXT}")
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                _refuse(f"is of version {found['version']!r}; make it anew with 'pooled manifest'")
            manifest = _manifest(found)
        except InvalidManifest:
            raise
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise InvalidManifest("the manifest is damaged; make it anew with 'pooled manifest'") from error
        _check_names([file.name for file in manifest.texts] + [file.name for file in manifest.weights])
        return manifest


def _refuse(why: str) -> NoReturn:
    raise InvalidManifest(f"the manifest {why}")


def _manifest(found: dict[str, Any]) -> Manifest:
    repository, commit = found["repository"], found["commit"]
    if (repository is None) != (commit is None):
        _refuse("names a repository or a commit without the other")
    if repository is not None and not (_REPOSITORY.fullmatch(repository) and _COMMIT.fullmatch(commit)):
        _refuse("names no repository of the hub and commit of it")
    weights = tuple(map(_weight_file, found["weights"]))
    kinds = {kind for file in weights for kind in _KINDS if file.name.endswith(kind)}
    if len(kinds) != 1 or not all(file.name.endswith(_KINDS) for file in weights):
        _refuse("names weights that are neither safetensors nor GGUF; nothing else is loaded")
    if kinds == {".gguf"} and len(weights) > 1:
        _refuse("names several GGUF files; join them with llama-gguf-split --merge")
    return Manifest(_text(found["model"]), repository, commit, tuple(map(_text_file, found["texts"])), weights)


def _check_names(names: Iterable[str]) -> None:
    """Names are of files side by side, on any system."""
    seen: set[str] = set()
    for name in names:
        plain = name not in (".", "..") and name.isprintable() and not _RESERVED & set(name) and 0 < len(name) < 200
        if not plain:
            _refuse(f"names a file outside the model: {name[:80]!r}")
        if name.casefold() in seen:
            _refuse(f"names {name} twice")
        seen.add(name.casefold())


def _text_file(found: dict[str, Any]) -> TextFile:
    return TextFile(_text(found["name"]), _count(found["size"]), _sha256(found["sha256"]))


def _weight_file(found: dict[str, Any]) -> WeightFile:
    name, size = _text(found["name"]), _count(found["size"])
    header = Region(**_region(found["header"]))
    tensors = tuple(map(_tensor, found["tensors"]))
    regions = sorted((header, *tensors), key=lambda region: (region.offset, region.size))
    if regions[0] is not header or any(a.offset + a.size > b.offset for a, b in pairwise(regions)):
        _refuse(f"has tensors of {name[:80]!r} that overlap")
    if regions[-1].offset + regions[-1].size > size:
        _refuse(f"has tensors of {name[:80]!r} beyond its end")
    if len({tensor.name for tensor in tensors}) < len(tensors):
        _refuse(f"names a tensor of {name[:80]!r} twice")
    return WeightFile(name, size, header, tensors)


def _tensor(found: dict[str, Any]) -> Tensor:
    shape = tuple(map(_count, found["shape"]))
    if len(shape) > _MOST_DIMS:
        _refuse(f"has a tensor of {len(shape)} dimensions")
    return Tensor(**_region(found), name=_text(found["name"]), dtype=_text(found["dtype"]), shape=shape)


def _region(found: dict[str, Any]) -> dict[str, Any]:
    offset, size = _count(found["offset"]), _count(found["size"])
    blocks = tuple(map(_sha256, found["blocks"]))
    if len(blocks) != -(-size // BLOCK):
        _refuse("has a block too few or too many")
    return {"offset": offset, "size": size, "blocks": blocks}


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(found)
    return found


def _count(found: object) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MOST_BYTES:
        raise ValueError(found)
    return found


def _sha256(found: object) -> str:
    if not isinstance(found, str) or not _SHA256.fullmatch(found):
        raise ValueError("not a SHA-256")
    return found
