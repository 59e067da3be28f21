"""From a manifest's SHA-256 to a slice's weights on this disk.

What a slice needs is looked for in the cache and in the volunteer's own copies of the model, where it is used in place,
and what is missing is fetched. The library is then shown a directory as of a model: a config, an index, and links to
the files that hold the slice.
"""

import asyncio
import json
import logging
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.checkpoint import INDEX, link, tensors_in
from peer.copies import Copies
from peer.errors import CorruptModel, SourceFailed, WeightsMissing
from peer.fetch import fetch
from peer.loading import needed
from peer.progress import LoadReport
from peer.sources import Remote, Wanted, Way
from peer.store import Store
from protos.manifest import MOST_TEXT, InvalidManifest, Manifest, Piece, WeightFile, digest

log = logging.getLogger("pooled.peer")

_CONFIG = "config.json"
_LONGEST_NAME = 60


@dataclass(frozen=True)
class _View:
    """What the library is shown of a model."""

    manifest: Manifest
    folder: Path

    @property
    def source(self) -> str:
        return str(self.folder / self.manifest.weights[0].name if self.manifest.is_gguf else self.folder)


class Supply:
    """Outlives memberships; `way` leads to the room of the present one."""

    def __init__(self, store: Store, copies: Copies) -> None:
        self.store = store
        self.way: Way | None = None
        self.fetched: Counter[str] = Counter()
        """Bytes that came so far, by source."""
        self._copies = copies
        self._folder = tempfile.TemporaryDirectory(prefix="pooled-")
        self._views: dict[str, _View] = {}
        self._opening = asyncio.Lock()

    def close(self) -> None:
        self._folder.cleanup()

    async def opened(self, manifest: str) -> str:
        """Where a model can be opened, its weights not there yet. Raises PeerError."""
        async with self._opening:
            if manifest not in self._views:
                self._views[manifest] = await self._open(manifest)
        return self._views[manifest].source

    async def obtain(self, manifest: str, start: int, end: int, report: LoadReport) -> str:
        """Where layers [start, end) of a model can be loaded from. Raises PeerError."""
        source = await self.opened(manifest)
        view = self._views[manifest]
        names = [tensor.name for file in view.manifest.weights for tensor in file.tensors]
        wanted = await asyncio.to_thread(needed, source, start, end, names)
        regions = {
            file: [file.header, *(tensor for tensor in file.tensors if tensor.name in wanted)]
            for file in view.manifest.weights
            if wanted & {tensor.name for tensor in file.tensors}
        }
        pieces = {file: [piece for each in parts for piece in each.pieces()] for file, parts in regions.items()}
        await self._gather(view, pieces, report)
        await asyncio.to_thread(_check_headers, view, regions)
        report.loading(sum(region.size for parts in regions.values() for region in parts))
        return source

    async def _open(self, sha256: str) -> _View:
        try:
            manifest = await asyncio.to_thread(Manifest.parse, await self._small(sha256, MOST_TEXT))
        except InvalidManifest as error:
            raise CorruptModel(f"{error}; it came from the host of the room") from error
        # Messages about the model name this folder.
        name = re.sub(r"[^\w.-]+", "-", manifest.model.rpartition("/")[2])[:_LONGEST_NAME]
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder.name))
        view = _View(manifest, folder)
        if manifest.is_gguf:
            file = manifest.weights[0]
            await self._gather(view, {file: list(file.header.pieces())}, LoadReport())
            return view
        config = next((text for text in manifest.texts if text.name == _CONFIG), None)
        if config is None:
            raise CorruptModel(f"the manifest of {manifest.model} names no {_CONFIG}; the host has to make it anew")
        (folder / _CONFIG).write_bytes(await self._small(config.sha256, config.size))
        index = {tensor.name: file.name for file in manifest.weights for tensor in file.tensors}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
        return view

    # ------------------------------------------------------------ small contents

    async def _small(self, sha256: str, most: int) -> bytes:
        """A manifest or a text: from the cache, else from the room. Raises WeightsMissing."""
        content = await asyncio.to_thread(self.store.small, sha256)
        if content is None:
            assert self.way is not None
            async with self.way.room() as room:
                content = await _whole(room, sha256, most)
                self.fetched[room.name] += len(content)
            await asyncio.to_thread(self.store.keep_small, content)
        return content

    # ------------------------------------------------------------ weights

    async def _gather(self, view: _View, pieces: dict[WeightFile, list[Piece]], report: LoadReport) -> None:
        """Have the library find these pieces of the model's files."""
        copies = await asyncio.to_thread(self._copies.of, view.manifest)
        paths: dict[str, Path] = {}
        missing: dict[str, list[Wanted]] = defaultdict(list)
        for file, parts in pieces.items():
            paths[file.name], lacking = await asyncio.to_thread(self._look, file, parts, copies[file.name])
            for piece in lacking:
                missing[piece.sha256].append(Wanted(piece, file.name))
        if missing:
            await self._fetch(view.manifest, paths, missing, report)
        for name, path in paths.items():
            (view.folder / name).unlink(missing_ok=True)
            link(path, view.folder / name)

    def _look(self, file: WeightFile, pieces: list[Piece], copies: Iterable[Path]) -> tuple[Path, list[Piece]]:
        """Where a file's pieces are to be read from, and those that are not there yet."""
        cached = self.store.path(file)
        missing = set(pieces).difference(self.store.right(cached, pieces))
        found: dict[Path, list[Piece]] = {}
        for copy in copies if missing else ():
            with suppress(OSError):
                found[copy] = self.store.right(copy, pieces)
            if len(found.get(copy, ())) == len(pieces):
                return copy, []
        cached = self.store.prepare(file)
        for copy, right in found.items():
            self.store.copy(copy, cached, [piece for piece in right if piece in missing])
            missing.difference_update(right)
        return cached, [piece for piece in pieces if piece in missing]

    async def _fetch(
        self, manifest: Manifest, paths: dict[str, Path], missing: dict[str, list[Wanted]], report: LoadReport
    ) -> None:
        assert self.way is not None
        total = sum(places[0].piece.size for places in missing.values())
        await asyncio.to_thread(self.store.make_room, total)
        meter = report.fetching(total)

        def take(wanted: Wanted, data: bytes) -> bool:
            places = missing[wanted.piece.sha256]
            return all(self.store.put(paths[each.file], each.piece, data) for each in places)

        async with self.way.sources(manifest) as sources:
            fetched = await fetch([places[0] for places in missing.values()], sources, take, meter.add)
        self.fetched.update(fetched.by_source)
        log.info("weights fetched", extra={"bytes": fetched.by_source.total(), "sources": dict(fetched.by_source)})


async def _whole(room: Remote, sha256: str, most: int) -> bytes:
    """A content whose size is not known. Raises WeightsMissing."""
    content = b""
    try:
        async for _, data in room.read([Wanted(Piece(sha256, 0, most), "the manifest")]):
            content += data
            if len(content) > most:
                raise WeightsMissing(f"what the room tells of its model is larger than {most} bytes; ask the host")
    except SourceFailed as error:
        raise WeightsMissing(f"the room does not tell what its model is ({error}); try again") from error
    if digest(content) != sha256:
        raise WeightsMissing("the room tells something else of its model than it said; ask the host")
    return content


def _check_headers(view: _View, files: Iterable[WeightFile]) -> None:
    """The library goes by a file's header: it has to say what the manifest says, or holes would be read as weights."""
    for file in files:
        theirs = tensors_in(view.folder / file.name)
        ours = {tensor.name: (tensor.offset, tensor.size) for tensor in file.tensors}
        if theirs != ours:
            raise CorruptModel(
                f"the manifest of {view.manifest.model} does not fit the header of {file.name}; the host has to make "
                "it anew"
            )
