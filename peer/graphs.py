"""Steps of single rows, recorded once for each of some sizes and then repeated: CUDA graphs. Untested on hardware.

One token's step is a thousand small operations, and on a GPU to start them takes longer than to do them. A recorded
step is started as a whole; it reads its rows from buffers that stay where they are. What it gives is compared with what
the step gave operation by operation, and where it differs, or cannot be recorded, steps go on that way.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from peer import varlen
from peer.attention import Heads
from peer.batch import Batch
from peer.errors import PeerError
from peer.fuse import close
from peer.kv import PAGE, KvPool
from peer.slice import Slice
from peer.varlen import Table

log = logging.getLogger("pooled.peer")

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows that steps are recorded for. One of fewer is filled up."""

Compute = Callable[[], torch.Tensor]


class Unrepeatable(PeerError):
    """A step that has to go operation by operation."""


class Recorder(Protocol):
    def __call__(self, compute: Compute) -> Compute:
        """What does again what `compute` does, on the same memory. Its outcome lies where the last one did."""
        ...


class CudaRecorder:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()
        """All recordings may use the same, since none runs beside another."""

    def __call__(self, compute: Compute) -> Compute:
        with torch.cuda.device(self._device):
            before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            try:
                self._stream.wait_stream(before)
                with torch.cuda.stream(self._stream):
                    compute()  # what libraries make ready at their first call cannot be recorded
                before.wait_stream(self._stream)
                # Other threads may go on using the device meanwhile.
                with torch.cuda.graph(graph, self._memory, self._stream, capture_error_mode="thread_local"):
                    out = compute()
            finally:
                torch.cuda.set_stream(before)  # a recording that fails leaves its own behind

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def recorder_for(device: torch.device) -> Recorder | None:
    return CudaRecorder(device) if device.type == "cuda" else None


class Graphs:
    """The recorded steps of one slice and its pool. Not for use by two threads at a time."""

    def __init__(self, slice: Slice, pool: KvPool, record: Recorder) -> None:
        self.usable = not slice.layout.recurrent
        self._slice, self._pool, self._record = slice, pool, record
        self._known: dict[tuple[int, bool], tuple[_Buffers, Compute]] = {}

    def run(self, batch: Batch, hidden: torch.Tensor | None, plainly: Compute, *, head: bool = False) -> torch.Tensor:
        """What `plainly` gives for the batch: logits of all its rows with `head`, else hidden states.

        It is overwritten by the next run.
        """
        size = self.size_for(batch)
        if size is None:
            return plainly()
        if (size, head) not in self._known:
            out = plainly()
            self._learn(size, head, batch, hidden, out)
            return out
        buffers, replay = self._known[size, head]
        buffers.fill(batch, hidden)
        return replay()[: len(batch.ids)]

    def size_for(self, batch: Batch) -> int | None:
        """The smallest recording that the batch fits into; None: it is to go operation by operation."""
        if not (self.usable and batch.table is not None and batch.table.repeatable):
            return None
        return next((size for size in SIZES if size >= len(batch.ids)), None)

    def _learn(self, size: int, head: bool, batch: Batch, hidden: torch.Tensor | None, expected: torch.Tensor) -> None:
        try:
            buffers = _Buffers(size, self._slice, self._pool)
            buffers.fill(batch, hidden)
            replay = self._record(lambda: self._compute(buffers, head))
            if not close(replay()[: len(batch.ids)], expected, self._slice.dtype):
                raise Unrepeatable("repeated, it gives other numbers")
        except (RuntimeError, Unrepeatable) as error:
            self.usable = False
            self._known.clear()
            log.info("steps are not recorded on this device: %s", str(error).partition("\n")[0])
        else:
            self._known[size, head] = (buffers, replay)

    def _compute(self, buffers: "_Buffers", head: bool) -> torch.Tensor:
        given = (buffers, buffers.ids, buffers.positions, buffers.hidden)
        return self._slice.logits(*given, buffers.rows) if head else self._slice.forward(*given)


class _Buffers:
    """Where a recorded step finds what differs from step to step. The run that its layers are given."""

    def __init__(self, size: int, slice: Slice, pool: KvPool) -> None:
        self._pool = pool
        device = slice.device
        self.rows = torch.arange(size, device=device)
        self.ids, self.positions, self._slots = torch.zeros(3, size, dtype=torch.long, device=device)
        self.hidden = None
        if not slice.first:
            self.hidden = torch.zeros(size, slice.hidden_size, dtype=slice.dtype, device=device)
        self._table = Table(
            starts=torch.arange(size + 1, dtype=torch.int32, device=device),
            firsts=torch.zeros(size + 1, dtype=torch.int32, device=device),
            lengths=torch.ones(size, dtype=torch.int32, device=device),
            index=None,
            most_rows=1,
            most_positions=pool.pages * PAGE,  # recorded as a number, so it has to hold for every step
        )

    def fill(self, batch: Batch, hidden: torch.Tensor | None) -> None:
        assert batch.table is not None
        count = len(batch.ids)
        _fill(self.ids, batch.ids)
        _fill(self.positions, batch.positions)
        _fill(self._slots, batch.slots)
        _fill(self._table.firsts[:-1], batch.table.firsts[:count])
        _fill(self._table.lengths, batch.table.lengths)
        if self.hidden is not None and hidden is not None:
            _fill(self.hidden, hidden)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: Heads
    ) -> torch.Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        if not varlen.takes(keys, values, heads):
            raise Unrepeatable(f"layer {layer} has attention that the kernel does not know")
        self._pool.write(layer, self._slots, key, value)
        return varlen.attend(self._table, query, keys, values, heads)

    def recur(self, layer: int, forward: Any, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        raise Unrepeatable(f"layer {layer} is recurrent")


def _fill(buffer: torch.Tensor, rows: torch.Tensor) -> None:
    """What is left over repeats the first row, down to the slot it writes: done twice, it comes to the same."""
    buffer[: len(rows)].copy_(rows)
    buffer[len(rows) :].copy_(rows[:1].expand_as(buffer[len(rows) :]))
