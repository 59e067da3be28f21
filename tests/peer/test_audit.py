"""A peer that computes what another holder of its layers did."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peer.audit import difference
from peer.kv import KvPool
from peer.slice import Slice
from peer.step import Engine
from protos import peer_pb2, tensor_pb2

CPU = torch.device("cpu")
IDS = [8, 9, 10, 11] * 8


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_what_a_sound_peer_gives_is_the_same_and_what_another_gives_is_not(
    tiny: Callable[[str], Path], kind: str
) -> None:
    source = str(tiny(kind))
    slices = [Slice.load(source, start, start + 2, dtype=torch.float32, device=CPU) for start in (0, 2)]
    frame = peer_pb2.Frame(epoch=1, step=1, lane=peer_pb2.LANE_PREFILL, audit=True)
    frame.segments.add(ids=IDS, pages=[peer_pb2.PageRun(count=2)], state=peer_pb2.StateSlots(write=1))
    gave: list[tensor_pb2.Tensor] = []
    for slice in slices:
        frame = Engine(slice, KvPool(slice, 2, 1)).run(frame, None, {})
        gave.append(frame.hidden)
    assert isinstance(frame, peer_pb2.FrameResult)
    came = [tensor_pb2.Tensor(), gave[0]]
    for slice, before, after in zip(slices, came, gave, strict=True):
        assert difference(slice, IDS, before, after) < 1e-5
        assert difference(slice, [*IDS[:-1], 12], before, after) > 1e-3
    assert difference(slices[0], IDS[:16], came[0], gave[0]) == float("inf")
