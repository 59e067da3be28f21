"""What a peer holds, and what it says when that cannot be loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from peer.errors import DiskFailed
from peer.holder import Holder
from peer.identity import Identity
from peer.membership import Lent
from protos import room_pb2

pytestmark = pytest.mark.anyio


@pytest.fixture
def holder() -> Iterator[Holder]:
    cpu, own = torch.device("cpu"), Identity.made()
    made = Holder(Lent(room_pb2.Hello(), cpu, torch.float32, reason="", version="1", identity=own))
    yield made
    made.stop()


def wanted(source: Path, start: int) -> room_pb2.Prepare:
    return room_pb2.Prepare(source=str(source), start=start, end=start + 2, layers=4)


def nothing(done: float) -> None: ...


async def test_a_disk_that_fails_is_told_in_one_sentence_and_leaves_the_peer_able_to_load(
    holder: Holder, tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = await holder.prepare(wanted(tiny("llama"), 2), nothing)
    assert prepared.layer_seconds > 0
    (tmp_path / "full").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    with pytest.raises(DiskFailed, match=f"layers 0 to 1 .*Not a directory.* space in {tmp_path}/full"):
        await holder.prepare(wanted(tiny("llama"), 0), nothing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await holder.prepare(wanted(tiny("llama"), 0), nothing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    assignment = room_pb2.Assignment(source=str(tiny("llama")), end=2, layers=4, pages=2, epoch=1)
    assert (await holder.load(assignment, nothing)).weight_bytes > 0, "what is held already needs no disk"


async def test_a_model_is_tried_out_once_however_many_slices_of_it_are_loaded(
    holder: Holder, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr("peer.selfcheck.self_check", lambda source, revision: checked.append(source))
    for start in (0, 2, 1):
        await holder.prepare(wanted(tiny("llama"), start), nothing)
    await holder.prepare(wanted(tiny("qwen3"), 0), nothing)
    assert checked == [str(tiny("llama")), str(tiny("qwen3"))]
