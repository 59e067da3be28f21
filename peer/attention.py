"""The attention function the library calls in every layer, and the arithmetic behind it.

The library is given a function and no mask function, so it builds no masks: what a row may see follows from its
segment. The function hands each layer's queries, keys and values to whatever is being run, a `Run`.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from peer.errors import UnsupportedArchitecture

log = logging.getLogger("pooled.peer")

NAME = "pooled"
"""Under this name the library knows the function; a config's `_attn_implementation` is set to it."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What a layer wants of its attention beside queries, keys and values."""

    scale: float
    window: int | None = None
    """How many positions a row sees, its own included; None: all before it."""
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """[heads] logits that take part in the softmax and carry no value."""

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.sinks is None


class Run(Protocol):
    """What goes through a slice's layers at the moment. Layers are absolute indices."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: Heads
    ) -> torch.Tensor:
        """query [rows, heads, dim], key and value [rows, kv heads, dim] -> [rows, heads, value dim]."""
        ...

    def recur(self, layer: int, forward: Any, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """A recurrent layer: hidden [1, rows, width] -> [1, rows, width]; `forward` is the library's own."""
        ...


class Rope(NamedTuple):
    """A rotary embedding of some rows, made ready for use in many layers."""

    cos: torch.Tensor
    """[rows, 1, dim]"""
    sin: torch.Tensor
    """[rows, 1, dim]; negative in the first half, so that a roll does for what else are two halves put together."""

    @classmethod
    def of(cls, embedding: tuple[torch.Tensor, torch.Tensor]) -> "Rope":
        """From the library's cosines and sines, each [1, rows, dim]."""
        cos, sin = (each[0].unsqueeze(1) for each in embedding)
        low, high = sin.chunk(2, -1)
        return cls(cos, torch.cat([-low, high], -1))

    def turn(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, heads, dim], queries and keys alike."""
        return torch.addcmul(rows * self.cos, rows.roll(self.cos.shape[-1] // 2, -1), self.sin)


class Current:
    """Shared by a slice and its layers, which know it as `pooled`: what is being run at the moment."""

    run: Run | None = None
    rope: Rope | None = None
    """Of the layer that is being computed."""
    _ropes: tuple[tuple[Any, Rope], ...] = ()

    def turn_by(self, embedding: tuple[torch.Tensor, torch.Tensor]) -> None:
        """The next layer turns by this. Layers share a few embeddings, so each is made ready once."""
        for known, rope in self._ropes:
            if known is embedding:
                self.rope = rope
                return
        self.rope = Rope.of(embedding)
        self._ropes = (*self._ropes, (embedding, self.rope))

    def clear(self) -> None:
        """Nothing is being run any more."""
        self.run = self.rope = None
        self._ropes = ()


def pooled_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    if attention_mask is not None:
        raise UnsupportedArchitecture(f"{type(module).__name__} needs an attention mask of its own")
    heads = Heads(scaling or query.shape[-1] ** -0.5, sliding_window, softcap, s_aux)
    rows = (each[0].transpose(0, 1) for each in (query, key, value))
    return module.pooled.run.attend(module.layer_idx, *rows, heads)[None], None


AttentionInterface.register(NAME, pooled_attention)


SlotRun = tuple[int, int]
"""Consecutive slots of a pool: (first, count)."""


@dataclass(frozen=True, slots=True)
class Span:
    """One segment's rows in the packed row, and where its keys and values lie in the pool."""

    rows: int
    runs: tuple[SlotRun, ...]
    """The slots of every position the last of its rows sees, up to and including itself, in order of position."""
    index: torch.Tensor | None = None
    """[positions] the same one by one, if there are several runs."""
    biases: dict[int | None, torch.Tensor] = field(default_factory=dict)
    """By window; made once for all layers of a frame."""

    @property
    def length(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def last_slot(self) -> int:
        first, count = self.runs[-1]
        return first + count - 1

    def runs_from(self, low: int) -> list[SlotRun]:
        """The runs without their first `low` positions."""
        left = []
        for first, count in self.runs:
            if low < count:
                left.append((first + low, count - low))
            low = max(0, low - count)
        return left


def listed(runs: Iterable[SlotRun]) -> torch.Tensor:
    """The slots of some runs one by one."""
    return torch.cat([torch.arange(first, first + count) for first, count in runs])


_FEW_ROWS = 16
_FEW_RUNS = 8
"""Up to so many rows over so many runs of slots it is cheaper to visit each run than to gather them."""


def attend_spans(
    spans: Sequence[Span], query: torch.Tensor, kept: Sequence[torch.Tensor], heads: Heads
) -> torch.Tensor:
    """Attention span by span: query [rows, heads, dim] -> [rows, heads, value dim].

    `kept` are the pool's keys and values, and their steps if they are int8, each [kv heads, slots, dim]. A loop beats
    padding to a batch, and views beat gathers: the loop moves no keys at all where a session's pages follow each other
    or make a few runs.
    """
    parts = [
        _attend(span, part, kept, heads)
        for span, part in zip(spans, torch.split(query, [span.rows for span in spans]), strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(span: Span, query: torch.Tensor, kept: Sequence[torch.Tensor], heads: Heads) -> torch.Tensor:
    """One span: query [rows, heads, dim] -> [rows, heads, value dim]. `kept` are the pool's keys, values and perhaps
    their steps, each [kv heads, slots, dim]."""
    rows, count, dim = query.shape
    # A row alone sees just the last `window` positions; of several, the first one sees the furthest back.
    low = max(0, span.length - rows + 1 - heads.window) if heads.window else 0
    runs = span.runs_from(low) if low else span.runs
    if span.index is not None and len(runs) > 1 and (rows > _FEW_ROWS or len(runs) > _FEW_RUNS):
        kept = [each.index_select(1, span.index[low:]) for each in kept]
        runs = [(0, kept[0].shape[1])]
    seen = [widened([each.narrow(1, *run) for each in kept], query.dtype) for run in runs]
    bias = _bias(span, heads.window, low, query) if rows > 1 else None
    if not heads.plain or len(seen) > 1:
        return _eager(query, seen, bias, heads)
    (key, value), shared = seen[0], kept[0].shape[0]
    if rows == 1:
        # Query heads that share a key head become rows of one matrix: its keys are read once for all of them.
        out = scaled_dot_product_attention(
            query.reshape(1, shared, count // shared, dim), key[None], value[None], scale=heads.scale
        )
        return out.reshape(1, count, -1)
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None], key[None], value[None], attn_mask=bias, scale=heads.scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def widened(kept: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A run's keys and values as numbers to compute with; views where they are kept as such."""
    key, value, *steps = kept
    if steps:
        # Two passes are four times as quick as one that multiplies int8 with floats.
        return key.to(dtype).mul_(steps[0].to(dtype)), value.to(dtype).mul_(steps[1].to(dtype))
    return key.to(dtype), value.to(dtype)


def _bias(span: Span, window: int | None, low: int, like: torch.Tensor) -> torch.Tensor:
    """[rows, positions seen] zeros, and -inf where a row must not look: at later rows, and beyond its window."""
    bias = span.biases.get(window)
    if bias is None:
        of_row = torch.arange(span.length - span.rows, span.length, device=like.device)[:, None]
        seen = torch.arange(low, span.length, device=like.device)[None]
        hidden = seen > of_row
        if window:
            hidden |= seen <= of_row - window
        bias = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -math.inf)
        span.biases[window] = bias
    return bias


def _eager(
    query: torch.Tensor,
    seen: Sequence[tuple[torch.Tensor, torch.Tensor]],
    bias: torch.Tensor | None,
    heads: Heads,
) -> torch.Tensor:
    """Attention step by step, for what fused kernels do not know: several runs of slots, capped logits, sinks.

    query [rows, heads, dim]; keys and values of each run [kv heads, positions, dim] -> [rows, heads, value dim].
    """
    rows, count, dim = query.shape
    shared = seen[0][0].shape[0]
    # Query heads that share a key head become more rows of it, so that nothing is repeated.
    grouped = query.transpose(0, 1).reshape(shared, -1, dim) * heads.scale
    logits = _joined([grouped @ key.transpose(1, 2) for key, _ in seen])
    if heads.softcap is not None:
        logits = torch.tanh(logits / heads.softcap) * heads.softcap
    if bias is not None:
        logits = (logits.view(count, rows, -1) + bias).view_as(logits)
    if heads.sinks is not None:
        sinks = heads.sinks.to(logits.dtype).repeat_interleave(rows).view(shared, -1, 1)
        logits = torch.cat([logits, sinks], -1)
    chances = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
    at, out = 0, None
    for key, value in seen:
        part = chances[..., at : at + key.shape[1]] @ value
        out = part if out is None else out.add_(part)
        at += key.shape[1]
    assert out is not None
    return out.view(count, rows, -1).transpose(0, 1)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
