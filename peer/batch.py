"""One frame on its way through the layers of one device: where each row's keys, values and states lie.

Everything is worked out once for a frame, so that layers do nothing but arithmetic.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peer.attention import Heads, SlotRun, Span, attend_spans, listed
from peer.errors import BadFrame
from peer.kv import PAGE, KvPool
from peer.recurrent import StateView
from peer.staging import to_device
from peer.varlen import Table, VarlenKernel
from protos import peer_pb2

if TYPE_CHECKING:
    from peer.slice import Slice


class Batch:
    """The rows of a frame's segments, packed into one. Raises BadFrame before anything is written."""

    def __init__(
        self, segments: Sequence[peer_pb2.Segment], slice: "Slice", pool: KvPool, kernel: VarlenKernel
    ) -> None:
        if not segments:
            raise BadFrame("the frame has no segments; send at least one")
        self._pool, self._kernel = pool, kernel
        placed = [_place(segment, slice, pool) for segment in segments]
        self._spans = [_span(one, pool.device) for one in placed]
        written = [
            slot
            for one, span in zip(placed, self._spans, strict=True)
            for first, count in span.runs_from(one.start)
            for slot in range(first, first + count)
        ]
        if len(set(written)) != len(written):
            raise BadFrame(
                "two tokens of the frame would be written to the same place; give each segment its own pages"
            )
        ids = [token for one in placed for token in one.ids]
        positions = [position for one in placed for position in range(one.start, one.length)]
        # One transfer to the device instead of three.
        packed = torch.from_numpy(np.array([ids, positions, written], dtype=np.int64))
        self.ids, self.positions, self.slots = to_device(packed, pool.device)
        self.table = Table.of(self._spans, pool.device) if kernel.usable else None
        self._groups = _groups(segments, pool) if pool.states else []
        self._copies = [segment.copy for segment in segments if segment.HasField("copy")]
        copied = {copy.target for copy in self._copies}
        self._packed = pool.packs.step(self._spans, {slot // PAGE for slot in written}, copied)

    def copy_pages(self) -> None:
        """What segments go on from and others keep. To be called before the first layer."""
        for copy in self._copies:
            self._pool.copy_page(copy.source, copy.target)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: Heads
    ) -> torch.Tensor:
        self._pool.write(layer, self.slots, key, value)
        kept = self._pool.by_head[layer]
        if self.table is not None:
            keys, values = self._pool.keys[layer], self._pool.values[layer]
            plainly = partial(attend_spans, self._spans, query, kept, heads)
            out = self._kernel.attend(self.table, query, keys, values, heads, plainly)
            if out is not None:
                return out
        if self._packed is not None and self._packed.takes(heads):
            return self._packed.attend(layer, query, (key, value), kept, heads)
        return attend_spans(self._spans, query, kept, heads)

    def recur(self, layer: int, forward: Any, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        pool = self._pool.states[layer]
        out = torch.empty_like(hidden)
        for group in self._groups:
            view = StateView({key: kept.index_select(0, group.reads) for key, kept in pool.items()})
            given = {**kwargs, "cache": view, "attention_mask": None}
            out[0, group.index] = forward(hidden[0, group.index], **given)
            for key, kept in pool.items():
                kept.index_copy_(0, group.writes, view.states[key])
        return out


@dataclass(frozen=True, slots=True)
class _Placed:
    """A segment that has been checked, with the slots of its pages."""

    ids: Sequence[int]
    start: int
    runs: tuple[SlotRun, ...]
    """The slots of positions 0 to length - 1."""

    @property
    def length(self) -> int:
        """Positions in the session's pages once the frame is through."""
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class _Group:
    """Segments that go through a recurrent layer together."""

    index: torch.Tensor
    """[segments, rows of each] the rows."""
    reads: torch.Tensor
    writes: torch.Tensor
    """[segments] state slots."""


def _place(segment: peer_pb2.Segment, slice: "Slice", pool: KvPool) -> _Placed:
    """Check a segment on its own and find its slots. Raises BadFrame."""
    name = f"the segment of session {segment.session}"
    ids = list(segment.ids)
    if not ids:
        raise BadFrame(f"{name} has no tokens; send at least one")
    if max(ids) >= slice.vocab_size:
        raise BadFrame(f"{name} holds token id {max(ids)} but the vocabulary ends at {slice.vocab_size - 1}")
    if segment.sampled > len(ids):
        raise BadFrame(f"{name} asks for {segment.sampled} samples from {len(ids)} positions")
    length = segment.start + len(ids)
    if slice.position_limit is not None and length > slice.position_limit:
        raise BadFrame(f"{name} ends at position {length} but this model's positions end at {slice.position_limit}")
    needed = -(-length // PAGE)
    # Before the runs are written out: many long ones would take more memory than there is.
    if len(segment.pages) > pool.pages or sum(run.count for run in segment.pages) > pool.pages:
        raise BadFrame(f"{name} names more pages than the pool's {pool.pages}")
    if any(run.first + run.count > pool.pages for run in segment.pages):
        raise BadFrame(f"{name} names a page beyond the pool's {pool.pages}")
    if segment.HasField("copy") and max(segment.copy.source, segment.copy.target) >= pool.pages:
        raise BadFrame(f"{name} copies a page beyond the pool's {pool.pages}")
    if sum(run.count for run in segment.pages) < needed:
        raise BadFrame(f"{name} ends at position {length}, which takes {needed} pages, but names fewer")
    return _Placed(ids, segment.start, _slot_runs(segment.pages, length))


def _slot_runs(pages: Iterable[peer_pb2.PageRun], length: int) -> tuple[SlotRun, ...]:
    """The slots of the first `length` positions, in as few runs as there are."""
    runs: list[SlotRun] = []
    for run in pages:
        first, count = run.first * PAGE, min(run.count * PAGE, length)
        if count <= 0:
            continue
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))
        length -= count
    return tuple(runs)


def _span(one: _Placed, device: torch.device) -> Span:
    if len(one.runs) == 1:
        return Span(len(one.ids), one.runs)
    return Span(len(one.ids), one.runs, to_device(listed(one.runs), device))


def _groups(segments: Sequence[peer_pb2.Segment], pool: KvPool) -> list[_Group]:
    """Segments of one token go through together; a chunk goes alone, since padding it would decay its state."""
    singles: list[tuple[int, int, int]] = []
    groups, row = [], 0
    slots = _state_slots(segments, pool)
    for segment, (read, write) in zip(segments, slots, strict=True):
        rows = len(segment.ids)
        if rows == 1:
            singles.append((row, read, write))
        else:
            index = torch.arange(row, row + rows, device=pool.device)[None]
            groups.append(_Group(index, *torch.tensor([[read], [write]], device=pool.device)))
        row += rows
    if singles:
        rows_, reads, writes = to_device(torch.tensor(singles).T.contiguous(), pool.device)
        groups.append(_Group(rows_[:, None], reads, writes))
    return groups


def _state_slots(segments: Sequence[peer_pb2.Segment], pool: KvPool) -> list[tuple[int, int]]:
    """(read, write) of each segment, in the pool's own numbers. Raises BadFrame."""
    discarded = pool.state_slots + 1
    slots = []
    for segment in segments:
        name, state = f"the segment of session {segment.session}", segment.state
        if not segment.HasField("state"):
            raise BadFrame(f"{name} names no state slots, which this model's recurrent layers need")
        if max(state.read, state.write) > pool.state_slots:
            raise BadFrame(f"{name} names a state slot beyond the pool's {pool.state_slots}")
        if segment.start and not state.read:
            raise BadFrame(f"{name} starts at position {segment.start} but with a fresh state; name the slot to read")
        slots.append((state.read, state.write or discarded))
    written = [write for _, write in slots if write != discarded]
    if len(set(written)) != len(written):
        raise BadFrame("two segments of the frame would write the same state slot; give each its own")
    return slots
