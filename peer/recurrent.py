"""Layers that carry a recurrent state from token to token instead of keys and values: gated delta-nets.

Such a layer's forward asks the library's cache for its state and gives the new one back. Here it gets a `StateView`
instead, over rows gathered from the pool's numbered slots, so that the layer itself is used as it is.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from peer.attention import Current

_CACHE_VERBS = {"update_conv_state", "update_recurrent_state"}

StateKey = tuple[str, int]
"""("conv" or "recurrent", the state's number within its layer): some layers keep several of a kind."""

States = dict[StateKey, torch.Tensor]
"""One layer's states; the first dimension is the sessions of a batch, or the slots of a pool."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """One state of a recurrent layer, for one session."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class StateView:
    """What a recurrent layer takes for its cache during one forward: reads and writes `states`."""

    def __init__(self, states: States) -> None:
        self.states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.states.get(("recurrent", state_idx))

    def has_previous_state(self, layer_idx: int, state_idx: int = 0) -> bool:
        return ("conv", state_idx) in self.states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Append columns; gives back all that the convolution sees and keeps the last kernel's width of them."""
        kept = self.states.get(("conv", state_idx))
        full = conv_states if kept is None else torch.cat([kept.to(conv_states.dtype), conv_states], -1)
        size = conv_kernel_size or (full.shape[-1] if kept is None else kept.shape[-1])
        tail = full[..., -size:]
        self.states["conv", state_idx] = pad(tail, (size - tail.shape[-1], 0)).clone()
        return full

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        self.states["recurrent", state_idx] = recurrent_states
        return recurrent_states


def find_recurrent(layer: nn.Module) -> list[Any]:
    """The modules of a layer whose forward keeps a recurrent state in the library's cache."""
    return [m for m in layer.modules() if _CACHE_VERBS & set(inspect.unwrap(type(m).forward).__code__.co_names)]


def redirect(module: Any, current: Current) -> None:
    """Let the current run call the module's forward, segment by segment, with states of its choice."""
    original: Callable[..., torch.Tensor] = module.forward
    names = list(inspect.signature(original).parameters)

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        assert current.run is not None
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        hidden = given.pop(names[0])
        return current.run.recur(module.layer_idx, original, hidden, given)

    module.forward = forward
