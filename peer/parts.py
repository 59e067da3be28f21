"""Packed segments on their way through a peer's layers, device by device."""

from collections.abc import Sequence
from typing import TypeAlias

import torch

from peer.batch import Batch
from peer.kv import KvPool
from peer.slice import Slice
from peer.spread import Layers
from peer.staging import to_device
from peer.varlen import VarlenKernel
from protos import peer_pb2

Packed: TypeAlias = Sequence[Batch]
"""The same segments as each part sees them."""


class Parts:
    """A peer's layers, and the pools that they remember in. Not for use by two threads at a time."""

    def __init__(self, layers: Layers, pools: Sequence[KvPool]) -> None:
        """pools: of each part, with as many pages."""
        self._parts: list[tuple[Slice, KvPool, VarlenKernel]] = [
            (part, pool, VarlenKernel(pool.device, pool.dtype)) for part, pool in zip(layers.parts, pools, strict=True)
        ]

    def pack(self, segments: Sequence[peer_pb2.Segment]) -> Packed:
        """Raises BadFrame before anything is written."""
        return [Batch(segments, *each) for each in self._parts]

    def copy_pages(self, packed: Packed) -> None:
        """What segments go on from and others keep. To be called before the first layer."""
        for batch in packed:
            batch.copy_pages()

    def forward(self, packed: Packed, hidden: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [rows, width], none for a model's first layers -> [rows, width], on the last part's device."""
        last = self._to_last(packed, hidden)
        return self._parts[-1][0].forward(packed[-1], packed[-1].ids, packed[-1].positions, last)

    def logits(self, packed: Packed, hidden: torch.Tensor | None, at: Sequence[int]) -> torch.Tensor:
        """Like `forward` of a model's last layers, and then the head on the rows `at` -> float32 [at, vocabulary]."""
        last, part = self._to_last(packed, hidden), self._parts[-1][0]
        rows = to_device(torch.tensor(at), part.device)
        return part.logits(packed[-1], packed[-1].ids, packed[-1].positions, last, rows)

    def _to_last(self, packed: Packed, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """What the last part takes."""
        for (part, *_), batch, (after, *_) in zip(self._parts, packed, self._parts[1:], strict=False):
            hidden = part.forward(batch, batch.ids, batch.positions, hidden).to(after.device, non_blocking=True)
        return hidden
