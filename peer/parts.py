"""Packed segments on their way through a peer's layers, device by device."""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import torch

from peer.batch import Batch
from peer.graphs import Graphs, recorder_for
from peer.kv import KvPool
from peer.slice import Slice
from peer.spread import Layers
from peer.staging import to_device
from peer.varlen import VarlenKernel
from protos import peer_pb2

Packed: TypeAlias = Sequence[Batch]
"""The same segments as each part sees them."""


class Parts:
    """A peer's layers, and the pools that they remember in. Not for use by two threads at a time.

    What a call gives may be overwritten by the next one.
    """

    def __init__(self, layers: Layers, pools: Sequence[KvPool]) -> None:
        """pools: of each part, with as many pages."""
        self._parts = [_Part(part, pool) for part, pool in zip(layers.parts, pools, strict=True)]

    def pack(self, segments: Sequence[peer_pb2.Segment]) -> Packed:
        """Raises BadFrame before anything is written."""
        return [part.pack(segments) for part in self._parts]

    def copy_pages(self, packed: Packed) -> None:
        """What segments go on from and others keep. To be called before the first layer."""
        for batch in packed:
            batch.copy_pages()

    def forward(self, packed: Packed, hidden: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [rows, width], none for a model's first layers -> [rows, width], on the last part's device."""
        return self._parts[-1].forward(packed[-1], self._to_last(packed, hidden))

    def logits(self, packed: Packed, hidden: torch.Tensor | None, at: Sequence[int]) -> torch.Tensor:
        """Like `forward` of a model's last layers, and then the head on the rows `at` -> float32 [at, vocabulary]."""
        return self._parts[-1].logits(packed[-1], self._to_last(packed, hidden), at)

    def _to_last(self, packed: Packed, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """What the last part takes."""
        for part, batch, after in zip(self._parts, packed, self._parts[1:], strict=False):
            hidden = part.forward(batch, hidden).to(after.device, non_blocking=True)
        return hidden


class _Part:
    """A slice and its pool, and how their device computes."""

    def __init__(self, slice: Slice, pool: KvPool) -> None:
        self.device = slice.device
        self._slice, self._pool = slice, pool
        self._kernel = VarlenKernel(slice.device, pool.dtype)
        record = recorder_for(slice.device) if self._kernel.usable else None
        self._graphs = Graphs(slice, pool, record) if record is not None else None

    def pack(self, segments: Sequence[peer_pb2.Segment]) -> Batch:
        return Batch(segments, self._slice, self._pool, self._kernel)

    def forward(self, batch: Batch, hidden: torch.Tensor | None) -> torch.Tensor:
        plainly = partial(self._slice.forward, batch, batch.ids, batch.positions, hidden)
        return plainly() if self._graphs is None else self._graphs.run(batch, hidden, plainly)

    def logits(self, batch: Batch, hidden: torch.Tensor | None, at: Sequence[int]) -> torch.Tensor:
        rows = to_device(torch.tensor(at), self.device)
        plainly = partial(self._slice.logits, batch, batch.ids, batch.positions, hidden, rows)
        if self._graphs is None or len(at) < len(batch.ids):
            return plainly()
        return self._graphs.run(batch, hidden, plainly, head=True)
