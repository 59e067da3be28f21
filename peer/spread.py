"""A slice on several devices of one machine: a smaller slice on each, one after the other.

Every part is loaded and computes as any slice does, so what knows devices at all knows one. Between two of them hidden
states are moved by hand. accelerate, through the library's loader, puts each part's weights straight on its device and
tells how large layers are; its own division of layers is not used, which counts no KV and keeps room for moving layers
in and out, nor are its hooks, past which rebuilt layers are called.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import TypeAlias

import torch
from accelerate.utils import compute_module_sizes

from peer.checkpoint import open_checkpoint
from peer.library import Rising
from peer.linear import INT4, INT8, NONE, Quant
from peer.memory import Share, named
from peer.model import Anatomy, architecture
from peer.slice import Slice

_PACKED = {INT8: 1.0, INT4: 0.625}
"""Bytes of a weight that is kept in few bits, steps included."""


class Spread:
    """Consecutive layers in parts, each a slice on a device of its own. Not for use by two threads at a time."""

    def __init__(self, parts: Sequence[Slice]) -> None:
        """`parts` follow each other and are cut from one model, for one dtype."""
        self.parts = tuple(parts)
        head, tail = self.parts[0], self.parts[-1]
        self.start, self.end, self.count = head.start, tail.end, head.count
        self.first, self.last = head.first, tail.last
        self.dtype, self.device = head.dtype, head.device
        """The device: where hidden states come in."""
        self.hidden_size, self.vocab_size = head.hidden_size, head.vocab_size
        limits = [part.position_limit for part in self.parts if part.position_limit is not None]
        self.position_limit = min(limits, default=None)

    @property
    def devices(self) -> str:
        """For people."""
        return named([part.device for part in self.parts])

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part in self.parts)

    def __repr__(self) -> str:
        layers = f"layers {self.start}-{self.end - 1} of {self.count}"
        name = architecture(self.parts[0].config)
        return f"<Spread {name} {layers} over {self.devices}, {self.weight_bytes / 1e6:.0f} MB>"

    def layer_seconds(self) -> float:
        """As a slice's, without what it takes from device to device."""
        seconds = sum(part.layer_seconds() * (part.end - part.start) for part in self.parts)
        return seconds / (self.end - self.start)


Layers: TypeAlias = Slice | Spread
"""What a peer computes with."""


def load(
    source: str,
    start: int,
    end: int,
    shares: Sequence[Share],
    *,
    dtype: torch.dtype,
    quant: Quant = NONE,
    progress: Callable[[float], None] | None = None,
) -> Layers:
    """Load layers [start, end) of `source` over all devices that `shares` lend, or as many as there are layers.

    `progress` and errors as of `Slice.load`.
    """
    most = sorted(shares, key=lambda share: -share.bytes)[: end - start]
    used = [share for share in shares if share in most][: end - start]
    if len(used) == 1:
        return Slice.load(source, start, end, dtype=dtype, device=used[0].device, quant=quant, progress=progress)
    cuts = Weights.of(source, dtype, quant).cuts(start, end, [share.bytes for share in used])
    report, count = Rising(progress), end - start
    parts = []
    for share, (low, high) in zip(used, pairwise(cuts), strict=True):
        done = report.part((low - start) / count, (high - start) / count)
        parts.append(Slice.load(source, low, high, dtype=dtype, device=share.device, quant=quant, progress=done))
    return Spread(parts)


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights, by where they are needed."""

    layers: tuple[float, ...]
    front: float
    """What feeds layer 0."""
    tail: float
    """What takes the last layer's output, the head included."""

    @classmethod
    def of(cls, source: str, dtype: torch.dtype, quant: Quant = NONE) -> "Weights":
        """As they lie in memory. Reads no weights."""
        checkpoint = open_checkpoint(source)
        with torch.device("meta"):
            model = checkpoint.model_class(copy.deepcopy(checkpoint.config))
        anatomy, sizes = Anatomy.of(model), compute_module_sizes(model, dtype=torch.int8)  # so, how many weights
        inside = f"{anatomy.decoder}." if anatomy.decoder else ""
        plain, packed = dtype.itemsize, _PACKED.get(quant, dtype.itemsize)
        # A head that shares the embedding's weights has none of its own, but needs a copy of them.
        heads = sum(sizes[name] for name in anatomy.heads) or sizes[inside + anatomy.embedding]
        return cls(
            tuple(packed * sizes[f"{inside}{anatomy.layers}.{index}"] for index in range(anatomy.count)),
            plain * sum(sizes[inside + name] for name in anatomy.front),
            plain * sum(sizes[inside + name] for name in anatomy.tail) + max(packed, 1.0) * heads,
        )

    def cuts(self, start: int, end: int, lent: Sequence[int]) -> list[int]:
        """Where to cut layers [start, end) so that the device filled furthest, of those that lend so many bytes, is
        filled least: what is left of each holds the KV of its layers. Each gets one layer or more."""

        upto = [0.0, *accumulate(self.layers)]

        def filled(device: int, low: int, high: int) -> float:
            front = self.front if low == 0 else 0.0
            tail = self.tail if high == len(self.layers) else 0.0
            return (upto[high] - upto[low] + front + tail) / max(lent[device], 1)

        @cache
        def best(device: int, low: int) -> tuple[float, tuple[int, ...]]:
            """How far the fullest of the devices from this one on is filled by layers [low, end), and the cuts."""
            others = len(lent) - device - 1
            if not others:
                return filled(device, low, end), (end,)
            tried = ((high, *best(device + 1, high)) for high in range(low + 1, end - others + 1))
            return min((max(filled(device, low, high), worst), (high, *cuts)) for high, worst, cuts in tried)

        return [start, *best(0, start)[1]]
