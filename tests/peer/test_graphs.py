"""Recorded steps: which are recorded, what they give, and when they are given up.

Here a step is repeated by computing it again on the buffers it was recorded with, which shows whether all that differs
from step to step lies in them. What CUDA makes of it needs a GPU.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from peer.graphs import SIZES, Compute, Graphs
from peer.kv import KvPool
from peer.parts import Parts
from peer.slice import Slice
from peer.varlen import VarlenKernel
from protos import peer_pb2
from tests.peer import kernels
from tests.peer.chains import Session

CPU = torch.device("cpu")
PAGES = 40


class Again:
    """A recorder that notes how often it recorded, and how often that was repeated."""

    def __init__(self) -> None:
        self.recorded = self.repeated = 0

    def __call__(self, compute: Compute) -> Compute:
        self.recorded += 1

        def again() -> torch.Tensor:
            out = compute()
            self.repeated += 1
            return out

        return again


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Again:
    kernels.use_on_cpu(monkeypatch)
    recorder = Again()
    monkeypatch.setattr("peer.parts.recorder_for", lambda device: recorder)
    return recorder


def load(directory: Path, start: int = 0, end: int = 4) -> Slice:
    return Slice.load(str(directory), start, end, dtype=torch.float32, device=CPU)


def plain(slice: Slice) -> Parts:
    """Parts that record nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peer.parts.recorder_for", lambda device: None)
        return Parts(slice, [KvPool(slice, PAGES)])


class Room:
    """Sends the same frames through two ways of computing, and compares what comes out."""

    def __init__(self, slice: Slice, *, scattered: bool = False) -> None:
        self.ways = plain(slice), Parts(slice, [KvPool(slice, PAGES)])
        self.slice = slice
        self.sessions = [
            Session(at, [(2 * at + 1, 1), (2 * at, 1)] if scattered else [(2 * at, 2)]) for at in range(20)
        ]
        self._generator = torch.Generator().manual_seed(5)

    def send(self, rows: dict[int, int]) -> None:
        """So many tokens of each of these sessions, by number."""
        segments = [self.sessions[number].segment(self._ids(count), sampled=1) for number, count in rows.items()]
        total = sum(rows.values())
        hidden = None if self.slice.first else torch.randn(total, 64, generator=self._generator)
        expected, found = (self._out(parts, segments, hidden) for parts in self.ways)
        assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))

    def _ids(self, count: int) -> list[int]:
        return torch.randint(5, 256, (count,), generator=self._generator).tolist()

    @torch.inference_mode()
    def _out(self, parts: Parts, segments: Sequence[peer_pb2.Segment], hidden: torch.Tensor | None) -> torch.Tensor:
        packed = parts.pack(segments)
        if not self.slice.last:
            return parts.forward(packed, hidden).clone()
        ends = torch.tensor([len(segment.ids) for segment in segments]).cumsum(0) - 1
        return parts.logits(packed, hidden, ends.tolist()).clone()


@pytest.mark.parametrize(
    ("name", "start", "end"), [("llama", 0, 4), ("llama", 1, 3), ("gemma3", 0, 2), ("qwen3_moe", 2, 4)]
)
def test_repeated_steps_give_what_steps_give(
    name: str, start: int, end: int, again: Again, tiny: Callable[[str], Path]
) -> None:
    room = Room(load(tiny(name), start, end))
    room.send({0: 7, 1: 12, 2: 3, 3: 9, 4: 1})
    assert again.recorded == 0, "a prompt is not a step"
    for sessions in ([0, 1, 2], [2, 1, 0], [4], [0, 1, 2, 3, 4], [1, 3], [3, 0, 4], [0, 1, 2, 3], [2], [4, 3, 1, 0, 2]):
        room.send(dict.fromkeys(sessions, 1))
        room.send({1: 2, 4: 1}) if sessions == [1, 3] else None  # a frame in between that is none
    assert again.recorded == 4, "once for 1, 2, 4 and 8 rows"
    assert again.repeated == 9, "four of which were for comparison"


def test_each_size_is_recorded_as_it_comes_up_and_the_largest_is_the_limit(
    again: Again, tiny: Callable[[str], Path]
) -> None:
    slice = load(tiny("llama"), 0, 2)
    pool = KvPool(slice, 80)
    parts, graphs = Parts(slice, [pool]), Graphs(slice, pool, again)

    def size(rows: int) -> int | None:
        sessions = [Session(at, [(at, 1)]) for at in range(rows)]
        (batch,) = parts.pack([session.segment([9]) for session in sessions])
        return graphs.size_for(batch)

    assert [size(rows) for rows in (1, 2, 3, 5, 17, 64)] == [1, 2, 4, 8, 32, 64]
    assert size(SIZES[-1] + 1) is None


def test_scattered_pages_go_operation_by_operation(again: Again, tiny: Callable[[str], Path]) -> None:
    room = Room(load(tiny("llama")), scattered=True)
    room.send({0: 20, 1: 3})
    room.send({0: 1, 1: 1})
    assert again.recorded == 0, "session 0 has reached its second page, which lies before its first"
    room.send({1: 1})
    assert again.recorded == 1


@pytest.mark.parametrize("name", ["qwen3_5", "gemma2", "gpt_oss"])
def test_layers_that_cannot_be_repeated_are_computed_as_ever(
    name: str, again: Again, tiny: Callable[[str], Path]
) -> None:
    """Recurrent states, capped logits, sinks."""
    slice = load(tiny(name))
    parts = [Parts(slice, [KvPool(slice, 4, 2)]), plain(slice) if not slice.layout.recurrent else None]
    session = Session(0, [(0, 2)])
    for ids in ([8, 9, 10], [11], [12]):
        segment = session.segment(ids, sampled=1)
        with torch.inference_mode():
            found, *others = (
                each.logits(each.pack([segment]), None, [len(ids) - 1]) for each in parts if each is not None
            )
        assert all(torch.allclose(found, other, atol=1e-4) for other in others)
    assert again.repeated == 0


@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_a_step_that_cannot_be_trusted_is_never_repeated(
    fault: str, again: Again, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def faulty(compute: Compute) -> Compute:
        calls.append(fault)
        if fault == "refused":
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: compute() * 1.01

    monkeypatch.setattr("peer.parts.recorder_for", lambda device: faulty)
    room = Room(load(tiny("llama")))
    room.send({0: 7, 1: 12})
    for _ in range(3):
        room.send({0: 1, 1: 1})
    assert calls == [fault], "it was tried once"


def test_where_the_kernel_is_given_up_nothing_is_recorded(
    again: Again, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", broken)
    room = Room(load(tiny("llama")))
    for _ in range(3):
        room.send({0: 1, 1: 1})
    assert again.repeated == 0


def test_a_cpu_records_nothing() -> None:
    from peer.graphs import recorder_for

    assert recorder_for(CPU) is None
    assert not VarlenKernel(CPU, torch.float32).usable
