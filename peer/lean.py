"""Decoder layers with fewer and larger operations than the library's: what `peer.fuse` builds out of a layer's parts.

Inside a layer the hidden states are a matrix [rows, width]; linear maps multiply as `peer.maps`
has them. Like those, these modules are called without the hooks a module may have. And as a module looks for its
parameters and for other modules in Python, what a call takes is kept as plain attributes too: with one row in a layer
those look-ups took as long as its norms.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm

from peer.attention import Current, Heads
from peer.linear import Map
from peer.maps import joined
from peer.model import StandIn


class Norm(nn.Module):
    """RMS norm of the last dimension. `weight` is what the outcome is multiplied with: [width] for rows, [heads, dim]
    for heads, since those of queries and of keys have weights of their own."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps
        self._by_hand = weight.is_cpu and weight.dtype == torch.float32
        self._root = math.sqrt(weight.shape[-1])
        self._taken = self.weight.data, torch.zeros(()), torch.tensor(math.sqrt(eps) * self._root)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self._by_hand:
            return rms_norm(rows, self.weight.shape[-1:], None, self.eps) * self.weight
        # Torch's own is a dozen operations on a CPU, some of which only make tensors of numbers: 45 microseconds in
        # the middle of a layer of SmolLM2. What rows are divided by, the root of mean + eps, is that of
        # length² + eps * width over the root of width.
        weight, zero, least = self._taken
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).hypot_(least)
        return torch.addcdiv(zero, rows, length, value=self._root).mul_(weight)

    __call__ = forward


class GatedMlp(nn.Module):
    def __init__(self, gate: Map, up: Map, down: Map, act: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.down = joined(gate, up), joined(down)
        self.act = act
        self._in, self._act, self._out = self.gate_up.forward, act.forward, self.down.forward

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self._in(hidden).chunk(2, -1)
        out: torch.Tensor = self._out(self._act(gate).mul_(up))
        return out

    __call__ = forward


class Attention(nn.Module):
    """Attention of one layer; keys, values and what a row may see are the current run's business."""

    def __init__(
        self,
        layer: int,
        linears: Sequence[Map],
        norm: Norm | None,
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
        self._in, self._out = self.qkv.forward, self.out.forward
        self._norm = norm and norm.forward

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        run, rope = self._current.run, self._current.rope
        assert run is not None
        assert rope is not None
        rows = self._in(hidden)
        turned, value = rows[:, : self._split].view(self._turned), rows[:, self._split :].view(self._valued)
        if self._norm is not None:
            turned = self._norm(turned)
        query, key = rope.turn(turned).split_with_sizes(self._counts, 1)
        attended = run.attend(self._layer, query, key, value, self._heads)
        return self._out(attended.reshape(len(rows), -1))

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
        self._steps: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = tuple(part.forward for part in parts)
        self._scale = scale

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = hidden
        for step in self._steps:
            out = step(out)
        return torch.add(hidden, out, alpha=self._scale)

    __call__ = forward


class LeanLayer(StandIn):
    """A decoder layer as a chain of branches. Called like the library's own."""

    def __init__(self, replaced: nn.Module, branches: Sequence[Branch], current: Current) -> None:
        super().__init__(replaced)
        self.branches = nn.ModuleList(branches)
        self._steps = tuple(branch.forward for branch in branches)
        self._current = current

    def forward(self, hidden_states: torch.Tensor, *_: Any, position_embeddings: Any, **__: Any) -> torch.Tensor:
        self._current.turn_by(position_embeddings)
        return self.compute(hidden_states[0])[None]

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, width]; the rotary embedding is the current one."""
        for step in self._steps:
            hidden = step(hidden)
        return hidden

    __call__ = forward
