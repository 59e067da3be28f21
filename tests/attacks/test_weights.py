"""Who wants a peer or a room to load what the host did not mean, or to break as it reads: nobody succeeds.

`make soak` tries more of the mutated headers.
"""

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

from peer.checkpoint import tensors_in
from peer.errors import CorruptModel, PeerError, WeightsMissing
from peer.gguf_file import read_header
from peer.progress import LoadReport
from peer.slice import Slice
from protos.manifest import digest
from room.headers import read_gguf, read_safetensors
from room.model_errors import ModelError
from tests.peer.sites import Pinned, Site, flip, supply
from tests.peer.test_gguf import save_gguf

pytestmark = pytest.mark.anyio

MUTATIONS = 20_000 if "POOLED_SOAK" in os.environ else 300
CPU = torch.device("cpu")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def logits(source: str) -> torch.Tensor:
    """Of a few tokens."""
    from tests.peer.chains import Chain
    from tests.peer.test_slices import through

    return torch.cat(list(through(Chain.load(Path(source), (0, 4))).values()))


class TestAByteThatIsFlipped:
    async def test_by_one_peer_is_noticed_and_others_are_asked(
        self, model: Pinned, tmp_path: Path, opened: ExitStack, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with model.room().open() as room, Site(model.contents.locate).open() as liar:
            room.holders, liar.spoil = [liar], flip
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            source = await mine.obtain(model.name, 0, 4, LoadReport())
        assert mine.fetched["attic"] > 0, "it was believed at first"
        assert torch.equal(logits(source), logits(model.model.source))
        assert [record.source for record in caplog.records if record.message == "wrong bytes"] == ["attic"]

    async def test_by_the_room_is_noticed_where_peers_have_the_right_ones(
        self, model: Pinned, tmp_path: Path, opened: ExitStack
    ) -> None:
        async with model.room().open() as room, Site(model.contents.locate).open() as peer:
            room.holders, room.spoil = [peer], flip
            lacks = model.manifest.weights[0].tensors[3].blocks[0]
            peer.absent = {lacks}
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            with pytest.raises(WeightsMissing, match="the room sent wrong bytes"):
                await mine.obtain(model.name, 0, 4, LoadReport())
            peer.absent = set()
            source = await mine.obtain(model.name, 0, 4, LoadReport())
        assert torch.equal(logits(source), logits(model.model.source))

    async def test_by_all_is_refused_and_all_are_named(self, model: Pinned, tmp_path: Path, opened: ExitStack) -> None:
        async with model.room().open() as room, Site(model.contents.locate).open() as liar:
            room.holders, room.spoil, liar.spoil = [liar], flip, flip
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            with pytest.raises(WeightsMissing, match=r"attic sent wrong bytes.*the room sent wrong bytes"):
                await mine.obtain(model.name, 0, 4, LoadReport())

    @pytest.mark.parametrize("spoil", [lambda content: content + b"x", lambda content: content[:-1], lambda _: b""])
    async def test_neither_more_nor_less_is_taken(
        self, spoil: Callable[[bytes], bytes], model: Pinned, tmp_path: Path, opened: ExitStack
    ) -> None:
        async with model.room().open() as room, Site(model.contents.locate).open() as liar:
            room.holders, liar.spoil = [liar], spoil
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            source = await mine.obtain(model.name, 1, 3, LoadReport())
        assert Slice.load(source, 1, 3, dtype=torch.float32, device=CPU).weight_bytes > 0

    async def test_in_the_cache_is_noticed_at_the_next_start(
        self, model: Pinned, tmp_path: Path, opened: ExitStack
    ) -> None:
        async with model.room().open() as room:
            first = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            await first.obtain(model.name, 0, 4, LoadReport())
            (path,) = (tmp_path / "mine" / "weights").iterdir()
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
            second = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            source = await second.obtain(model.name, 0, 4, LoadReport())
        assert 0 < second.fetched.total() < 10_000
        assert torch.equal(logits(source), logits(model.model.source))


@pytest.mark.parametrize(
    "name", ["../../evil.safetensors", "/tmp/evil.safetensors", "..\\evil.safetensors", "a/../../evil.safetensors"]
)
@pytest.mark.parametrize("kind", ["weights", "texts"])
async def test_a_manifest_cannot_reach_out_of_the_cache(
    kind: str, name: str, model: Pinned, tmp_path: Path, opened: ExitStack
) -> None:
    fields = json.loads(model.manifest.text())
    fields[kind][0]["name"] = name
    text = json.dumps(fields).encode()
    contents = {digest(text): text}
    async with Site(lambda sha256: contents.get(sha256) or model.contents.locate(sha256)).open() as room:
        mine = opened.enter_context(closing(supply(tmp_path / "home" / "cache", room)))
        with pytest.raises(CorruptModel, match="outside the model"):
            await mine.obtain(digest(text), 0, 4, LoadReport())
    assert [file for _, _, files in os.walk(tmp_path) for file in files] == [digest(text)], "the manifest itself"


# ---------------------------------------------------------------- headers


def mutated(content: bytes, header: int, rng: random.Random) -> bytes:
    """A few bytes of the header changed, cut out, doubled, or replaced by what hurts most."""
    spoiled = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(header)
        kind = rng.randrange(5)
        if kind == 0:
            spoiled[at] = rng.randrange(256)
        elif kind == 1:
            spoiled[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**32, 2**60, 2**63, 2**64 - 1]))
        elif kind == 2:
            del spoiled[at : at + rng.randint(1, 20)]
        elif kind == 3:
            spoiled[at:at] = spoiled[at : at + rng.randint(1, 40)]
        else:
            spoiled[at : at + 4] = struct.pack("<I", rng.choice([0, 8, 9, 255, 2**31, 2**32 - 1]))
    return bytes(spoiled)


def ours(read: Callable[[Path], Any], path: Path, *errors: type[Exception]) -> Any:
    """What a reader makes of a file, None where it refuses it; whatever else it raises fails the test."""
    try:
        return read(path)
    except errors:
        return None


def test_mutated_headers_of_gguf_files_are_refused_or_sound(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "model.gguf")
    whole, header, rng = path.read_bytes(), read_header(path).data, random.Random(1)
    for _ in range(MUTATIONS):
        path.write_bytes(mutated(whole, header, rng))
        size = path.stat().st_size
        theirs, mine = ours(read_gguf, path, ModelError), ours(read_header, path, PeerError)
        for start, end in [] if mine is None else [(each.offset, each.offset + each.size) for each in mine.tensors]:
            assert 0 <= start <= end <= size - mine.data
        for info in [] if theirs is None else theirs.tensors.values():
            assert theirs.data + info.offset + info.size <= size


def test_mutated_headers_of_safetensors_are_refused_or_sound(model: Pinned, tmp_path: Path) -> None:
    path, rng = tmp_path / "model.safetensors", random.Random(2)
    whole, header = (Path(model.model.source) / path.name).read_bytes(), model.manifest.weights[0].header.size

    def library(path: Path) -> list[str]:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())

    for _ in range(MUTATIONS):
        path.write_bytes(mutated(whole, header, rng))
        size = path.stat().st_size
        found = ours(read_safetensors, path, ModelError)
        for info in [] if found is None else found.values():
            assert 0 <= info.offset <= info.offset + info.size <= size
        ours(tensors_in, path, PeerError)
        ours(library, path, SafetensorError)


GGUF = b"GGUF" + struct.pack("<I", 3)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def field(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ARCHITECTURE = field(b"general.architecture", 8, text(b"llama"))
NESTED = struct.pack("<IQ", 9, 1) * 100_000


def gguf(*fields: bytes, tensors: bytes = b"", count: int = 0) -> bytes:
    return GGUF + struct.pack("<QQ", count, len(fields)) + b"".join(fields) + tensors


def tensor(name: bytes, *dims: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", 0, 0)


HURTFUL = {
    "arrays nested deeply": gguf(ARCHITECTURE, field(b"a", 9, NESTED)),
    "no alignment": gguf(ARCHITECTURE, field(b"general.alignment", 4, struct.pack("<I", 0))),
    "a huge alignment": gguf(ARCHITECTURE, field(b"general.alignment", 4, struct.pack("<I", 2**31))),
    "strings without end": gguf(ARCHITECTURE, field(b"a", 9, struct.pack("<IQ", 8, 2**63) + bytes(100_000))),
    "numbers without end": gguf(ARCHITECTURE, field(b"a", 9, struct.pack("<IQ", 10, 2**62))),
    "no text": gguf(field(b"general.architecture", 8, text(b"\xff\xfe"))),
    "nothing": gguf(),
    "tensors without end": gguf(ARCHITECTURE, tensors=bytes(100_000), count=2**64 - 1),
    "huge dimensions": gguf(ARCHITECTURE, tensors=tensor(b"w", *[2**64 - 1] * 250_000), count=1),
    "a huge tensor": gguf(ARCHITECTURE, tensors=tensor(b"w", 2**60), count=1),
    "a name twice": gguf(ARCHITECTURE, tensors=tensor(b"w", 1) * 2 + bytes(64), count=2),
}


@pytest.mark.parametrize("content", HURTFUL.values(), ids=HURTFUL)
@pytest.mark.timeout(60)
def test_ggufs_made_to_hurt_are_refused_at_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert ours(read_header, path, PeerError) is None
    assert ours(lambda path: read_gguf(path).metadata["general.architecture"], path, ModelError, KeyError) is None
