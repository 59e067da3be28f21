"""What a peer holds, and what it says when that cannot be loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch

from peer.errors import DiskFailed
from peer.holder import Holder
from peer.identity import Identity
from peer.membership import Lent
from peer.memory import Share
from peer.progress import LoadReport
from peer.supply import Supply
from protos import room_pb2

pytestmark = pytest.mark.anyio


@pytest.fixture
def holder(request: pytest.FixtureRequest) -> Iterator[Holder]:
    cpu, own = torch.device("cpu"), Identity.made()
    shares = (Share(cpu, 1 << 30),) * getattr(request, "param", 1)
    lent = Lent(room_pb2.Hello(memory=1 << 30), shares, torch.float32, offer="", version="1", identity=own)
    made = Holder(lent, cast(Supply, AllHere()))
    yield made
    made.stop()


class AllHere:
    """A supply of models whose manifests are named by where they lie."""

    async def opened(self, manifest: str) -> str:
        return bytes.fromhex(manifest).decode()

    async def obtain(self, manifest: str, start: int, end: int, report: LoadReport) -> str:
        return await self.opened(manifest)


def wanted(source: Path, start: int) -> room_pb2.Prepare:
    return room_pb2.Prepare(manifest=bytes(source), start=start, end=start + 2, layers=4)


async def test_a_disk_that_fails_is_told_in_one_sentence_and_leaves_the_peer_able_to_load(
    holder: Holder, tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = await holder.prepare(wanted(tiny("llama"), 2), LoadReport())
    assert prepared.layer_seconds > 0
    (tmp_path / "full").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    with pytest.raises(DiskFailed, match=f"layers 0 to 1 .*Not a directory.* space in {tmp_path}/full"):
        await holder.prepare(wanted(tiny("llama"), 0), LoadReport())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await holder.prepare(wanted(tiny("llama"), 0), LoadReport())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    assignment = room_pb2.Assignment(manifest=bytes(tiny("llama")), end=2, layers=4, pages=2, epoch=1)
    assert (await holder.load(assignment, LoadReport())).weight_bytes > 0, "what is held already needs no disk"


async def test_a_model_is_tried_out_once_however_many_slices_of_it_are_loaded(
    holder: Holder, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr("peer.selfcheck.self_check", checked.append)
    for start in (0, 2, 1):
        await holder.prepare(wanted(tiny("llama"), start), LoadReport())
    await holder.prepare(wanted(tiny("qwen3"), 0), LoadReport())
    assert checked == [str(tiny("llama")), str(tiny("qwen3"))]


@pytest.mark.parametrize("holder", [1, 2], ids=["one device", "two devices"], indirect=True)
async def test_pages_are_kept_for_the_next_deal_where_that_is_wanted_and_possible(
    holder: Holder, tiny: Callable[[str], Path]
) -> None:
    async def load(epoch: int, keeps: int, end: int = 2) -> bool:
        manifest = bytes(tiny("llama"))
        assignment = room_pb2.Assignment(manifest=manifest, end=end, layers=4, pages=2, epoch=epoch, keeps=keeps)
        ready = await holder.load(assignment, LoadReport())
        assert ready.pages == 2
        return ready.kept

    assert not await load(1, 0)
    assert await load(2, 1)
    assert not await load(3, 1), "these pages are another deal's by now"
    assert not await load(4, 3, end=3), "these layers had no pages"
    await holder.release()
    assert not await load(5, 4, end=3)
