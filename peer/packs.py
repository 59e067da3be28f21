"""Keys and values of sessions that decode together, side by side, so that one product serves all of them.

Attention to pages is one product a session, and most of its time goes into calling it; to gather the pages for every
step costs as much again. So what was gathered once stays, and each step adds its position.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from peer.attention import Heads, SlotRun, Span, listed, widened

if TYPE_CHECKING:
    from peer.kv import KvLayout

_FEWEST = 4
"""Sessions from which on a pack beats a loop over them: 16 of them at 120 positions take 0.28 ms a layer instead of
0.69, at 500 positions 0.84 instead of 1.29 (SmolLM2's heads, float32, two threads)."""
_MOST_PADDING = 2
"""How many times their positions sessions may take up beside the longest of them."""
_ROUND_UP = 64
"""Positions: a pack is made for a multiple of so many, and made anew when its sessions have outgrown that."""

Pages = frozenset[int] | set[int]


@dataclass(slots=True)
class _Layer:
    """What a pack holds of one layer."""

    keys: torch.Tensor
    """[sessions, kv heads, positions, dim]; zero where nothing is held."""
    values: torch.Tensor
    step: int = 0
    """The last one whose positions are in it."""

    def seen(self, longest: int) -> Iterator[torch.Tensor]:
        """Keys and values of the first positions, [sessions * kv heads, longest, dim]."""
        for each in (self.keys, self.values):
            yield each.flatten(0, 1)[:, :longest]

    def mixed(self, chances: torch.Tensor, way: "_Way") -> torch.Tensor:
        """The values of each head by its `chances` [sessions * kv heads, heads of each, longest], in one row.

        As bags of weighted rows, since torch's batched product of so few heads reads values at a third of the speed: 15
        layers of 16 sessions at 400 positions take 3.2 ms instead of 9.7 (SmolLM2's heads, two threads).
        """
        rows = self.values.view(-1, self.values.shape[-1])
        weights = chances.view(-1)
        out: torch.Tensor = torch.embedding_bag(rows, way.rows, way.bags, False, 0, False, weights)[0]
        return out


class Pack:
    """Copies of what the pool has of some sessions, in the compute dtype."""

    def __init__(self, spans: Sequence[Span], capacity: int, size: int, page: int) -> None:
        self.capacity, self.bytes = capacity, size
        self.layers: dict[int, _Layer] = {}
        self.step = 0
        """Steps it has been used for. A layer that missed the last one, since a frame failed, is gathered anew."""
        self._page = page
        self._runs = [span.runs for span in spans]
        self.pages = {
            number
            for runs in self._runs
            for first, count in runs
            for number in range(first // page, (first + count - 1) // page + 1)
        }
        """Those of its sessions. Some may have been given back since; it does not hurt that they are here."""

    def continued_by(self, spans: Sequence[Span]) -> bool:
        """Whether these are the same sessions, and all before their last position is held."""
        return len(spans) == len(self._runs) and all(
            span.rows == 1 and _first(runs, span.length - 1) == _first(span.runs, span.length - 1)
            for runs, span in zip(self._runs, spans, strict=True)
        )

    def proceed(self, spans: Sequence[Span]) -> "PackStep":
        """The next step of its sessions."""
        self._runs = [span.runs for span in spans]
        self.pages.update(span.last_slot // self._page for span in spans)
        self.step += 1
        return PackStep(self, spans)


class PackStep:
    """One frame's way through a pack: attention of a single row of each session."""

    def __init__(self, pack: Pack, spans: Sequence[Span]) -> None:
        self._pack, self._spans = pack, spans
        self._lengths = torch.tensor([span.length for span in spans])
        self._longest = max(span.length for span in spans)
        self._latest = torch.tensor([span.last_slot for span in spans])
        self._index: torch.Tensor | None = None
        self._ways: dict[tuple[int, int], _Way] = {}

    def takes(self, heads: Heads) -> bool:
        """Whether a layer with such heads sees all that is packed, and nothing else is to be done to its logits."""
        return heads.plain and (heads.window is None or heads.window >= self._longest)

    def attend(
        self, layer: int, query: torch.Tensor, rows: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], heads: Heads
    ) -> torch.Tensor:
        """query [sessions, heads, dim] -> [sessions, heads, value dim].

        `rows` are this step's keys and values [sessions, kv heads, dim]. `kept` are the pool's of the layer, in which
        they are already, and perhaps the steps of what is int8: each [kv heads, slots, dim].
        """
        sessions, count, dim = query.shape
        shared = kept[0].shape[0]
        way = self._way(shared, count, query.dtype)
        held = self._held(layer, rows, kept, way)
        keys, values = held.seen(self._longest)
        grouped = query.reshape(sessions * shared, count // shared, dim)
        if query.dtype == torch.float32:
            logits = torch.baddbmm(way.bias, grouped, keys.transpose(1, 2), alpha=heads.scale)
            out = held.mixed(logits.softmax(-1), way)
        else:  # the fused kernel sums up in float32
            mask = way.bias.expand(-1, count // shared, -1)
            out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=heads.scale)
        return out.view(sessions, count, -1)

    def _held(self, layer: int, rows: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], way: "_Way") -> _Layer:
        """The layer with this step's positions in it."""
        pack, dtype = self._pack, rows[0].dtype
        held = pack.layers.get(layer)
        if held is None or held.step != pack.step - 1:
            held = pack.layers[layer] = self._gathered(kept, dtype)
        else:
            if kept[0].dtype != dtype:  # what later steps see of these rows has lost some bits
                rows = [each.transpose(0, 1) for each in _taken(kept, self._latest, dtype)]
            for into, given in zip((held.keys, held.values), rows, strict=True):
                dim = into.shape[-1]
                into.view(-1, dim).index_copy_(0, way.places, given.reshape(-1, dim))
        held.step = pack.step
        return held

    def _gathered(self, kept: Sequence[torch.Tensor], dtype: torch.dtype) -> _Layer:
        if self._index is None:
            self._index = torch.cat([_filled(span, self._longest) for span in self._spans])
        made = []
        for rows in _taken(kept, self._index, dtype):
            shared, _, dim = rows.shape
            into = rows.new_zeros(len(self._spans), shared, self._pack.capacity, dim)
            into[:, :, : self._longest] = rows.view(shared, -1, self._longest, dim).transpose(0, 1)
            made.append(into)
        keys, values = made
        return _Layer(keys, values)

    def _way(self, shared: int, count: int, dtype: torch.dtype) -> "_Way":
        way = self._ways.get((shared, count))
        if way is None:
            hidden = torch.arange(self._longest) >= self._lengths[:, None]
            bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
            firsts = torch.arange(len(self._spans) * shared, dtype=torch.int32) * self._pack.capacity
            places = firsts + (self._lengths - 1).repeat_interleave(shared)
            rows = firsts.repeat_interleave(count // shared)[:, None] + torch.arange(self._longest, dtype=torch.int32)
            bags = torch.arange(0, rows.numel(), self._longest, dtype=torch.int32)
            way = _Way(bias.repeat_interleave(shared, 0)[:, None], places, rows.view(-1), bags)
            self._ways[shared, count] = way
        return way


class _Way(NamedTuple):
    """What all layers with as many heads have in common in a step."""

    bias: torch.Tensor
    """[sessions * kv heads, 1, longest] 0, and -inf at what fills up."""
    places: torch.Tensor
    """[sessions * kv heads] where this step's rows go, of all positions of a layer in one row."""
    rows: torch.Tensor
    """[sessions * heads * longest] where the positions that each head sees are, counted the same way."""
    bags: torch.Tensor
    """[sessions * heads] where each head's begin in `rows`."""


class Packs:
    """The packs of one pool, those used last. Everything written to the pool is told here, so that none is outdated."""

    def __init__(self, layout: "KvLayout", dtype: torch.dtype, page: int, most: int) -> None:
        """dtype: that of computing; page: positions in a page; most: bytes that all packs may take, 0 for none."""
        self._position_bytes = dtype.itemsize * sum(shape.numbers for shape in layout.attention.values())
        self._page, self._most = page, most
        self._packs: list[Pack] = []

    @property
    def bytes(self) -> int:
        return sum(pack.bytes for pack in self._packs)

    def step(self, spans: Sequence[Span], written: Pages, copied: Pages) -> PackStep | None:
        """How single rows of these sessions are attended to; None: session by session.

        `written` are the pages that the frame's rows go to, `copied` those that are written over beforehand.
        """
        found = None
        for pack in list(self._packs):
            if pack.pages.isdisjoint(copied) and pack.continued_by(spans):
                found = pack
            if found is pack or not pack.pages.isdisjoint(written | copied):
                self._packs.remove(pack)
        longest = max(span.length for span in spans)
        if found is None or longest > found.capacity:
            found = self._made(spans, longest)
        if found is None:
            return None
        self._packs.append(found)
        while self.bytes > self._most:
            del self._packs[0]
        return found.proceed(spans)

    def _made(self, spans: Sequence[Span], longest: int) -> Pack | None:
        """A new one, if these sessions are better off with one and it may take the memory."""
        capacity = -(-longest // _ROUND_UP) * _ROUND_UP
        size = len(spans) * capacity * self._position_bytes
        if size > self._most or len(spans) < _FEWEST or any(span.rows > 1 for span in spans):
            return None
        if len(spans) * longest > _MOST_PADDING * sum(span.length for span in spans):
            return None
        return Pack(spans, capacity, size, self._page)


def _first(runs: Iterable[SlotRun], count: int) -> list[SlotRun]:
    """The runs of the first `count` positions."""
    found = []
    for first, length in runs:
        if count <= 0:
            break
        found.append((first, min(length, count)))
        count -= length
    return found


def _filled(span: Span, longest: int) -> torch.Tensor:
    """[longest] the span's slots, filled up with its first one, of which the pool has numbers."""
    slots = listed(span.runs)
    return torch.cat([slots, slots[:1].expand(longest - len(slots))])


def _taken(kept: Sequence[torch.Tensor], index: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [kv heads, len(index), dim] of some slots."""
    return widened([each.index_select(1, index) for each in kept], dtype)
