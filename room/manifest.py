"""Making a model's manifest: every byte of its weights is read once, and none of them is kept.

manifest = make(model, progress)             # or `made`, which keeps what it made of a model on this machine
check(manifest, model)                       # raises WrongManifest where it is of another model
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protos.manifest import BLOCK, InvalidManifest, Manifest, Region, Tensor, TextFile, WeightFile, digest
from protos.progress import Meter
from room import hub
from room.headers import SupportsRead, Tensors, parse_safetensors, read_gguf
from room.model import Model
from room.model_errors import DamagedFile, WrongManifest

Report = Callable[[Meter], None]

_TEXTS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_NO_TEXTS = "model.safetensors.index.json"
"""Tells which file holds which tensor, as the manifest does itself."""


def made(model: Model, cache: Path, report: Report) -> Manifest:
    """The manifest of `model`, made where `cache` holds none of these files as they are now. Blocks.

    Raises ModelError.
    """
    kept = cache / "manifests" / f"{_state(model)}.json"
    try:
        return Manifest.parse(kept.read_bytes())
    except (FileNotFoundError, InvalidManifest):
        manifest = make(model, report)
    kept.parent.mkdir(parents=True, exist_ok=True)
    making = kept.with_suffix(".new")
    making.write_bytes(manifest.text())
    making.replace(kept)
    return manifest


def make(model: Model, report: Report) -> Manifest:
    """Read all of `model`'s weights, from this machine or else from the hub. `report` hears how far it is.

    Blocks for as long as that takes. Raises ModelError.
    """
    sizes = {name: _size(model, name) for name in sorted(model.weights)}
    meter = Meter(sum(sizes.values()))

    def count(read: int) -> None:
        if meter.add(read):
            report(meter)

    weights = tuple(_weight_file(model, name, size, count) for name, size in sizes.items())
    repository = model.source if model.revision else None
    manifest = Manifest(model.name, repository, model.revision, tuple(_texts(model)), weights)
    try:
        return Manifest.parse(manifest.text())
    except InvalidManifest as error:
        raise DamagedFile(model.source, f"cannot be used ({error})") from error


def read(file: Path, model: Model) -> Manifest:
    """The manifest in `file`, which has to be of `model`. Raises WrongManifest."""
    try:
        manifest = Manifest.parse(file.read_bytes())
    except OSError as error:
        raise WrongManifest(
            f"cannot read {file}: {error.strerror}; 'pooled manifest MODEL -o FILE' makes one"
        ) from error
    except InvalidManifest as error:
        raise WrongManifest(f"{file}: {error}") from error
    mine = tuple(_texts(model))
    if mine != manifest.texts:
        differs = sorted({text.name for text in {*mine} ^ {*manifest.texts}})
        raise WrongManifest(f"{model.source} is not what {file} says: {', '.join(differs)} differ; get the model anew")
    sizes = {name: _size(model, name) for name in model.weights}
    if sizes != {weight.name: weight.size for weight in manifest.weights}:
        raise WrongManifest(f"{model.source} is not what {file} says: its weights have other names or sizes")
    return manifest


def _texts(model: Model) -> Iterator[TextFile]:
    """A GGUF holds its texts itself, and what is extracted from it depends on the libraries."""
    if model.is_gguf:
        return
    names = {path.name for pattern in _TEXTS for path in model.text_dir.glob(pattern) if path.is_file()}
    for name in sorted(names - {_NO_TEXTS}):
        content = (model.text_dir / name).read_bytes()
        yield TextFile(name, len(content), digest(content))


def _state(model: Model) -> str:
    """Changes with whatever changes of the model's files."""
    if model.revision:
        return digest(json.dumps([model.source, model.revision]).encode())
    files = [*(model.file(name) for name in model.weights), *(model.text_dir / text.name for text in _texts(model))]
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return digest(json.dumps(states).encode())


# ---------------------------------------------------------------- weights


def _size(model: Model, name: str) -> int:
    with _opened(model, name) as (_, size):
        return size


@contextmanager
def _opened(model: Model, name: str) -> Iterator[tuple[SupportsRead, int]]:
    """One of its files of weights from the start, and how many bytes it has."""
    path = model.file(name)
    if path.is_file() or not model.revision:
        with path.open("rb") as file:
            yield file, path.stat().st_size
    else:
        with hub.open_stream(model.source, model.revision, name) as stream:
            yield stream, stream.size


def _weight_file(model: Model, name: str, size: int, count: Callable[[int], None]) -> WeightFile:
    if model.is_gguf:
        found = read_gguf(model.file(name))
        tensors, data = found.tensors, found.data
    else:
        with _opened(model, name) as (file, _):
            tensors, data = parse_safetensors(file, size, name)
    with _opened(model, name) as (file, _):
        return _hashed(file, name, size, tensors, data, count)


def _hashed(
    file: SupportsRead, name: str, size: int, tensors: Tensors, data: int, count: Callable[[int], None]
) -> WeightFile:
    """Read a file from its start and take the SHA-256 of all its pieces, tensor by tensor as they stand in it."""
    at = 0

    def region(offset: int, length: int) -> Region:
        nonlocal at
        if offset < at:
            raise DamagedFile(name, "has tensors that overlap")
        while at < offset:  # what lies between two tensors is of no use
            at += len(take(min(offset - at, BLOCK)))
        blocks = [hashlib.sha256(take(min(BLOCK, length - start))).hexdigest() for start in range(0, length, BLOCK)]
        at += length
        return Region(offset, length, tuple(blocks))

    def take(length: int) -> bytes:
        read = file.read(length)
        if len(read) < length:
            raise DamagedFile(name, "became shorter while it was read")
        count(length)
        return read

    header = region(0, data)
    placed = []
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size)):
        found = region(data + info.offset, info.size)
        placed.append(Tensor(found.offset, found.size, found.blocks, key, info.dtype, info.shape))
    return WeightFile(name, size, header, tuple(placed))
