"""A run that keeps nothing: it finds out what a slice's layers hand to their run, and what they would keep."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from peer.attention import Heads
from peer.recurrent import StateKey, StateShape, StateView


@dataclass(frozen=True, slots=True)
class Attended:
    """What a layer handed over: query [rows, heads, dim], key and value [rows, kv heads, dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    heads: Heads


class Probe:
    """Lets each row see itself and the rows before it. Windows, capped logits and sinks are only noted."""

    def __init__(self) -> None:
        self.attended: dict[int, Attended] = {}
        self.recurrent: dict[int, dict[StateKey, StateShape]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: Heads
    ) -> torch.Tensor:
        self.attended[layer] = Attended(query, key, value, heads)
        q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=heads.scale, enable_gqa=True)
        return out[0].transpose(0, 1)

    def recur(self, layer: int, forward: Any, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        view = StateView({})
        out: torch.Tensor = forward(hidden, **{**kwargs, "cache": view})
        self.recurrent[layer] = {key: StateShape(state.shape[1:], state.dtype) for key, state in view.states.items()}
        return out
