"""From a manifest to a slice: what is fetched, from where, and what is used in place."""

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from peer.errors import CorruptModel, WeightsMissing
from peer.progress import LoadReport
from peer.slice import Slice
from peer.supply import Supply
from protos.contents import Place
from protos.manifest import Manifest, digest
from tests.peer.sites import Pinned, Site, flip, supply
from tests.peer.test_gguf import save_gguf
from tests.tiny_model import save_tiny, save_tiny_tokenizer

pytestmark = pytest.mark.anyio

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["safetensors", "shards", "gguf"])
def pinned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pinned:
    """A tiny Llama whose embedding is tied."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protos.manifest.BLOCK", 10_000)
        patch.setattr("room.manifest.BLOCK", 10_000)
        if request.param == "gguf":
            save_gguf(folder / "tiny.gguf")
            made = Pinned.__new__(Pinned)
            return pinned_gguf(made, folder / "tiny.gguf")
        save_tiny("llama", folder, max_shard_size="100KB" if request.param == "shards" else "50GB")
        save_tiny_tokenizer(folder)
        return Pinned(folder, folder / "cache")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protos.manifest.BLOCK", 10_000)
    monkeypatch.setattr("room.manifest.BLOCK", 10_000)
    monkeypatch.setattr("peer.fetch.BLOCK", 10_000)


def pinned_gguf(made: Pinned, path: Path) -> Pinned:
    """The tiny GGUF has no tokenizer that a room could use, which peers do not need."""
    from room import manifest
    from room.model import Model
    from room.weights import Contents
    from tests.room.fakes import shape

    made.model = Model(str(path), None, shape(), path.parent, path.stem, (path.name,))
    made.manifest = manifest.make(made.model, lambda meter: None)
    made.name = digest(made.manifest.text())
    made.contents = Contents(made.model, made.manifest)
    return made


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def obtain(mine: Supply, pinned: Pinned, start: int, end: int) -> Slice:
    source = await mine.obtain(pinned.name, start, end, LoadReport())
    return Slice.load(source, start, end, dtype=torch.float32, device=CPU)


def equal(slice: Slice, pinned: Pinned, start: int, end: int) -> bool:
    whole = Slice.load(pinned.model.source, start, end, dtype=torch.float32, device=CPU)
    mine, other = dict(slice._model.named_parameters()), dict(whole._model.named_parameters())
    return mine.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in mine.items())


async def test_a_slice_comes_from_the_room_and_then_from_the_cache(
    pinned: Pinned, tmp_path: Path, opened: ExitStack
) -> None:
    async with pinned.room().open() as room:
        mine = opened.enter_context(closing(supply(tmp_path / "a", room)))
        slice = await obtain(mine, pinned, 1, 3)
        assert equal(slice, pinned, 1, 3)
        assert 0 < room.given < 0.75 * pinned.size
        assert mine.fetched.total() == room.given
        before = room.given
        again = opened.enter_context(closing(supply(tmp_path / "a", room)))
        assert equal(await obtain(again, pinned, 1, 3), pinned, 1, 3)
        assert room.given == before, "a second start fetches nothing"
        assert not again.fetched


async def test_with_the_cache_filled_nobody_has_to_be_there(pinned: Pinned, tmp_path: Path, opened: ExitStack) -> None:
    async with pinned.room().open() as room:
        await obtain(opened.enter_context(closing(supply(tmp_path, room))), pinned, 0, 2)
    assert equal(await obtain(opened.enter_context(closing(supply(tmp_path, room))), pinned, 0, 2), pinned, 0, 2)


async def test_three_slices_are_hardly_more_than_the_model(pinned: Pinned, tmp_path: Path, opened: ExitStack) -> None:
    async with pinned.room().open() as room:
        for start, end in ((0, 1), (1, 3), (3, 4)):
            mine = opened.enter_context(closing(supply(tmp_path / f"{start}", room)))
            assert equal(await obtain(mine, pinned, start, end), pinned, start, end)
    tensors = [tensor for file in pinned.manifest.weights for tensor in file.tensors]
    embedding = next(tensor.size for tensor in tensors if "embd" in tensor.name or "embed" in tensor.name)
    texts = sum(text.size for text in pinned.manifest.texts if text.name == "config.json")
    headers = sum(file.header.size for file in pinned.manifest.weights)
    overhead = (
        3 * (len(pinned.manifest.text()) + texts) + 2 * headers
    )  # which count for nothing in a model of real size
    assert room.given <= pinned.size + embedding + overhead


async def test_a_peer_that_has_it_is_asked_first(pinned: Pinned, tmp_path: Path, opened: ExitStack) -> None:
    async with pinned.room().open() as room:
        first = opened.enter_context(closing(supply(tmp_path / "a", room)))
        await obtain(first, pinned, 0, 2)
        async with Site(first.store.locate).open() as peer:
            room.holders = [peer]
            before = room.given
            second = opened.enter_context(closing(supply(tmp_path / "b", room)))
            assert equal(await obtain(second, pinned, 0, 2), pinned, 0, 2)
    small = len(pinned.manifest.text()) + sum(text.size for text in pinned.manifest.texts if text.name == "config.json")
    header = pinned.manifest.weights[0].header.size if pinned.manifest.is_gguf else 0
    assert room.given - before <= small + header
    assert second.fetched["attic"] == peer.given > 0


async def test_a_fetch_that_is_cut_off_half_way_goes_on_from_there(
    pinned: Pinned, tmp_path: Path, opened: ExitStack
) -> None:
    async with pinned.room().open() as room:
        first = opened.enter_context(closing(supply(tmp_path, room)))
        await first.opened(pinned.name)
        cutting = asyncio.create_task(first.obtain(pinned.name, 0, 4, LoadReport()))
        while room.given < 0.5 * pinned.size and not cutting.done():
            await room.gave.wait()
            room.gave.clear()
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
        second = opened.enter_context(closing(supply(tmp_path, room)))
        assert equal(await obtain(second, pinned, 0, 4), pinned, 0, 4)
    assert second.fetched.total() <= 0.6 * pinned.size


class Repository(BaseHTTPRequestHandler):
    """One repository of the hub, read in ranges."""

    folder: Path
    whole = False
    """Whether it ignores ranges."""

    def do_GET(self) -> None:
        content = (self.folder / self.path.rpartition("/")[2]).read_bytes()
        first, last = map(int, re.findall(r"\d+", self.headers["Range"]))
        body = content if self.whole else content[first : last + 1]
        self.send_response(200 if self.whole else 206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("whole", [False, True])
async def test_what_neither_peers_nor_the_room_have_comes_from_the_hub(
    whole: bool, pinned: Pinned, tmp_path: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = type("Handler", (Repository,), {"folder": pinned.model.text_dir, "whole": whole})
    server = opened.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
    opened.callback(server.shutdown)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setattr(
        "peer.sources.hf_hub_url",
        lambda repository, name, revision: f"http://127.0.0.1:{server.server_port}/{repository}/{revision}/{name}",
    )
    text = replace(pinned.manifest, repository="org/tiny", commit="c" * 40).text()
    known = {digest(text): text}
    texts = {each.sha256 for each in pinned.manifest.texts}

    def locate(sha256: str) -> Place | bytes | None:
        return known.get(sha256) or (pinned.contents.locate(sha256) if sha256 in texts else None)

    async with Site(locate).open() as room:
        mine = opened.enter_context(closing(supply(tmp_path / "cache", room)))
        if whole:
            with pytest.raises(WeightsMissing, match="the hub sends files only as a whole"):
                await mine.obtain(digest(text), 1, 4, LoadReport())
            return
        source = await mine.obtain(digest(text), 1, 4, LoadReport())
    slice = Slice.load(source, 1, 4, dtype=torch.float32, device=CPU)
    assert equal(slice, pinned, 1, 4)
    assert mine.fetched["the hub"] > 0.9 * mine.fetched.total() - len(text)


async def test_a_copy_is_used_in_place(pinned: Pinned, tmp_path: Path, opened: ExitStack) -> None:
    async with pinned.room().open() as room:
        mine = opened.enter_context(closing(supply(tmp_path / "cache", room, Path(pinned.model.source))))
        assert equal(await obtain(mine, pinned, 0, 4), pinned, 0, 4)
    assert not (tmp_path / "cache" / "weights").exists(), "nothing was copied"
    assert room.given < 20_000 + len(pinned.manifest.text())


async def test_a_copy_that_is_wrong_in_one_place_is_taken_but_for_that(
    pinned: Pinned, tmp_path: Path, opened: ExitStack
) -> None:
    copy = tmp_path / "models" / "deep" / "down"
    shutil.copytree(pinned.model.text_dir, copy)
    file = pinned.manifest.weights[0]
    path = copy / file.name
    content = bytearray(path.read_bytes())
    at = file.tensors[-1].offset
    content[at] ^= 1
    path.write_bytes(content)
    async with pinned.room().open() as room:
        mine = opened.enter_context(closing(supply(tmp_path / "cache", room, tmp_path / "models")))
        assert equal(await obtain(mine, pinned, 0, 4), pinned, 0, 4)
    texts = sum(text.size for text in pinned.manifest.texts if text.name == "config.json")
    assert room.given <= 10_000 + len(pinned.manifest.text()) + texts


async def test_progress_tells_of_fetching_and_then_of_loading(
    pinned: Pinned, tmp_path: Path, opened: ExitStack
) -> None:
    report = LoadReport()
    assert (report.done, report.seconds_left) == (0.0, None)
    async with pinned.room().open() as room:
        mine = opened.enter_context(closing(supply(tmp_path, room)))
        source = await mine.obtain(pinned.name, 0, 4, report)
    assert report.done == pytest.approx(0.7)
    Slice.load(source, 0, 4, dtype=torch.float32, device=CPU, progress=report.loaded)
    assert report.done == 1.0


class TestWhatIsWrong:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Pinned:
        save_tiny("llama", tmp_path / "model")
        save_tiny_tokenizer(tmp_path / "model")
        return Pinned(tmp_path / "model", tmp_path / "cache")

    async def test_a_room_that_lies_of_its_weights_is_named(
        self, model: Pinned, tmp_path: Path, opened: ExitStack
    ) -> None:
        async with model.room().open() as room:
            room.spoil = flip
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            with pytest.raises(WeightsMissing, match=r"the room sent wrong bytes of model\.safetensors"):
                await obtain(mine, model, 0, 4)

    async def test_a_room_that_lies_of_its_manifest_is_told(
        self, model: Pinned, tmp_path: Path, opened: ExitStack
    ) -> None:
        async with model.room().open() as room:
            room.spoil, room.sound = flip, set()
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            with pytest.raises(WeightsMissing, match="something else of its model than it said"):
                await mine.opened(model.name)

    async def test_a_manifest_that_is_none_is_refused(
        self, model: Pinned, tmp_path: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = b"[" * 3000
        async with Site({digest(text): text}.get).open() as room:
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            with pytest.raises(CorruptModel, match="damaged"):
                await mine.opened(digest(text))
            monkeypatch.setattr("peer.supply.MOST_TEXT", 2000)
            other = opened.enter_context(closing(supply(tmp_path / "other", room)))
            with pytest.raises(WeightsMissing):
                await other.opened(digest(text))

    async def test_a_manifest_that_does_not_fit_the_header_is_refused(
        self, model: Pinned, tmp_path: Path, opened: ExitStack
    ) -> None:
        """Else the library would read a hole as weights."""
        fields = json.loads(model.manifest.text())
        del fields["weights"][0]["tensors"][-2]  # of the last layer
        text = Manifest.parse(json.dumps(fields).encode()).text()
        contents = {digest(text): text}
        async with Site(lambda sha256: contents.get(sha256) or model.contents.locate(sha256)).open() as room:
            mine = opened.enter_context(closing(supply(tmp_path / "mine", room)))
            with pytest.raises(CorruptModel, match=r"does not fit the header of model\.safetensors"):
                await mine.obtain(digest(text), 1, 2, LoadReport())
