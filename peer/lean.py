"""Decoder layers with fewer and larger operations than the library's: what `peer.fuse` builds out of a layer's parts.

Inside a layer the hidden states are a matrix [rows, width]; every matmul is a map of `peer.linear.PLAIN`.

These modules are called straight away, without the hooks a module may have: at one row a call costs as much as a small
operation, and a layer makes a dozen.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm

from peer.attention import Current, Heads
from peer.linear import Int8Linear, Map, PackedLinear
from peer.model import StandIn

_SKINNY = 6
"""Rows up to which a wide map is quicker the other way round: at 2 rows the library's product took 1.7 ms and this one
0.45 ms where a single row takes 0.7 (3072 x 576, float32, MKL). Narrow maps gain at 2 rows only."""


class Linear(nn.Linear):
    _on_cpu = False

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.numel() // self.in_features
        if rows == 1 or rows > (_SKINNY if self.out_features > self.in_features else 2) or not self._on_cpu:
            return linear(hidden, self.weight, self.bias)
        out = torch.mm(self.weight, hidden.reshape(rows, -1).t()).t().contiguous()
        out = out if self.bias is None else out.add_(self.bias)
        return out.view(*hidden.shape[:-1], -1)

    __call__ = forward

    @classmethod
    def of(cls, weight: nn.Parameter, bias: nn.Parameter | None) -> "Linear":
        """A map with these weights [out, in]."""
        made = cls(weight.shape[1], weight.shape[0], bias=False, device="meta")
        made.weight = weight
        if bias is not None:
            made.bias = bias
        made._on_cpu = weight.is_cpu and weight.dtype == torch.float32
        return made


class Int8(Int8Linear):
    __call__ = PackedLinear.forward


class SideBySide(nn.Module):
    """Maps of the same input whose weights cannot be put together."""

    def __init__(self, maps: Sequence[Map]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([each(hidden) for each in self.maps], -1)

    __call__ = forward


class Norm(nn.Module):
    """RMS norm: `weight` is what the normalised rows are multiplied with."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self.weight.shape, self.weight, self.eps)

    __call__ = forward


class HeadNorm(nn.Module):
    """RMS norm of each head; `weight` is [heads, dim], since queries and keys have weights of their own."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, self.weight.shape[-1:], None, self.eps) * self.weight

    __call__ = forward


class GatedMlp(nn.Module):
    def __init__(self, gate: Map, up: Map, down: Map, act: nn.Module) -> None:
        super().__init__()
        # Apart: side by side in one product they take 15% longer at several rows, and no less at one.
        self.gate, self.up = joined(gate), joined(up)
        self.down = joined(down)
        self.act = act

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.act(self.gate(hidden)) * self.up(hidden))
        return out

    __call__ = forward


class Attention(nn.Module):
    """Attention of one layer; keys, values and what a row may see are the current run's business."""

    def __init__(
        self,
        layer: int,
        linears: Sequence[Map],
        norm: HeadNorm | None,
        heads: Heads,
        shape: tuple[int, int, int],
        current: Current,
    ) -> None:
        """linears: of query, key, value and output; shape: heads, kv heads, dim of queries and keys."""
        super().__init__()
        query, key, value, out = linears
        self.qkv = joined(query, key, value)
        self.out = joined(out)
        self.norm = norm
        self.sinks = heads.sinks  # a parameter, so that it counts as a weight
        self._layer, self._heads, self._current = layer, heads, current
        self._counts = [*shape[:2]]
        self._split = query.out_features + key.out_features
        self._turned = (-1, sum(self._counts), shape[2])
        self._valued = (-1, shape[1], value.out_features // shape[1])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        run, rope = self._current.run, self._current.rope
        assert run is not None
        assert rope is not None
        rows = self.qkv(hidden)
        turned, value = rows[:, : self._split].view(self._turned), rows[:, self._split :].view(self._valued)
        if self.norm is not None:
            turned = self.norm(turned)
        query, key = torch.split(rope.turn(turned), self._counts, 1)
        attended = run.attend(self._layer, query, key, value, self._heads)
        return self.out(attended.reshape(len(rows), -1))

    __call__ = forward


class Whole(nn.Module):
    """A part of a layer that is used as the library has it."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = self.part(hidden[None])
        found: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return found[0]

    __call__ = forward


Part = Norm | GatedMlp | Attention | Whole


class Branch(nn.Module):
    """Parts one after the other, the outcome of which is added to what went in."""

    def __init__(self, parts: Sequence[Part], scale: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._scale = scale

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = hidden
        for part in self.parts:
            out = part(out)
        return torch.add(hidden, out, alpha=self._scale)

    __call__ = forward


class LeanLayer(StandIn):
    """A decoder layer as a chain of branches. Called like the library's own."""

    def __init__(self, replaced: nn.Module, branches: Sequence[Branch], current: Current) -> None:
        super().__init__(replaced)
        self.branches = nn.ModuleList(branches)
        self._current = current

    def forward(self, hidden_states: torch.Tensor, *_: Any, position_embeddings: Any, **__: Any) -> torch.Tensor:
        self._current.turn_by(position_embeddings)
        return self.compute(hidden_states[0])[None]

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, width]; the rotary embedding is the current one."""
        for branch in self.branches:
            hidden = branch(hidden)
        return hidden

    __call__ = forward


def joined(*maps: Map) -> Map | SideBySide:
    """One layer that gives the outputs of several side by side; of a single one it shares the weights."""
    kinds = {type(each) for each in maps}
    if kinds not in ({nn.Linear}, {Int8Linear}):
        return SideBySide(maps) if len(maps) > 1 else maps[0]
    bias = _joined_bias(maps)
    if kinds == {Int8Linear}:
        packed = cast(Sequence[Int8Linear], maps)
        return Int8(_cat([each.levels for each in packed]), _cat([each.steps for each in packed]), bias)
    plain = cast(Sequence[nn.Linear], maps)
    if len(plain) == 1:
        return Linear.of(cast(nn.Parameter, plain[0].weight), plain[0].bias)
    weight = _parameter(_cat([each.weight.data for each in plain]))
    return Linear.of(weight, None if bias is None else _parameter(bias))


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _joined_bias(maps: Sequence[Map]) -> torch.Tensor | None:
    like = next((each.bias.data for each in maps if each.bias is not None), None)
    if like is None:
        return None
    return _cat([like.new_zeros(each.out_features) if each.bias is None else each.bias.data for each in maps])


def _cat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
