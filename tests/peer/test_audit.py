"""A peer that computes what another holder of its layers did."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from peer import spread
from peer.audit import difference
from peer.kv import KvPool
from peer.memory import Share
from peer.slice import Slice
from peer.spread import Layers
from peer.step import Engine
from protos import peer_pb2, tensor_pb2

CPU = torch.device("cpu")
IDS = [8, 9, 10, 11] * 8


def given(slices: Sequence[Layers], ids: list[int]) -> list[tensor_pb2.Tensor]:
    """What each slice gives for a session's first tokens, in a frame that is audited."""
    state = peer_pb2.StateSlots(write=1)
    segment = peer_pb2.Segment(ids=ids, pages=[peer_pb2.PageRun(count=2)], state=state)
    frame = peer_pb2.Frame(epoch=1, step=1, lane=peer_pb2.LANE_PREFILL, audit=True, segments=[segment])
    gave: list[tensor_pb2.Tensor] = []
    for slice in slices:
        out = Engine(slice, *(KvPool(part, 2, 1) for part in slice.parts)).run(frame, None, {})
        gave.append(out.hidden)
        if isinstance(out, peer_pb2.Frame):
            frame = out
    return gave


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_what_a_sound_peer_gives_is_the_same_and_what_another_gives_is_not(
    tiny: Callable[[str], Path], kind: str
) -> None:
    source = str(tiny(kind))
    slices = [Slice.load(source, start, start + 2, dtype=torch.float32, device=CPU) for start in (0, 2)]
    gave, other = given(slices, IDS), given(slices, IDS[::-1])
    came = [tensor_pb2.Tensor(), gave[0]]
    for slice, before, right, wrong in zip(slices, came, gave, other, strict=True):
        assert difference(slice, IDS, before, right) < 1e-5
        assert difference(slice, IDS, before, wrong) > 1e-2
    short = given(slices, IDS[:16])
    assert difference(slices[0], IDS, came[0], short[0]) == float("inf")


def test_layers_over_several_devices_give_what_those_on_one_do(tiny: Callable[[str], Path]) -> None:
    source = str(tiny("llama"))
    one = Slice.load(source, 0, 4, dtype=torch.float32, device=CPU)
    several = spread.load(source, 0, 4, [Share(CPU, 1 << 30)] * 3, dtype=torch.float32)
    (right,), (wrong,) = given([one], IDS), given([one], IDS[::-1])
    assert difference(several, IDS, tensor_pb2.Tensor(), right) < 1e-5
    assert difference(several, IDS, tensor_pb2.Tensor(), wrong) > 1e-2
