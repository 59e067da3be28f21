"""The memory a peer lends for its slice: KV pages, and state slots for recurrent layers.

Page and slot numbers are logical and shared by the whole chain; the room gives them out. A peer only follows them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from peer.errors import NotEnoughMemory
from peer.recurrent import StateKey, States, StateShape

if TYPE_CHECKING:
    from peer.slice import Slice

PAGE = 16
"""Positions in a page."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one attention layer keeps of a position."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True)
class KvLayout:
    """What a slice's layers keep, by absolute layer."""

    attention: dict[int, KvShape]
    recurrent: dict[int, dict[StateKey, StateShape]]

    def page_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one page in all layers of the slice."""
        return PAGE * dtype.itemsize * sum(shape.numbers for shape in self.attention.values())

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state slot in all layers of the slice; 0 for a slice without recurrent layers."""
        return sum(state.bytes for states in self.recurrent.values() for state in states.values())


class KvPool:
    """Pages 0 to `pages` - 1 and state slots 1 to `state_slots` for every layer of a slice.

    On a CPU the operating system commits a page when it is first written, so an unused pool costs nothing.
    Raises NotEnoughMemory.
    """

    def __init__(
        self,
        slice: "Slice",
        pages: int,
        state_slots: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.pages, self.state_slots = pages, state_slots
        self.dtype, self.device = dtype or slice.dtype, device or slice.device
        layout = slice.layout
        self.bytes = pages * layout.page_bytes(self.dtype) + (state_slots + 2) * layout.slot_bytes
        self.keys: dict[int, torch.Tensor] = {}
        """By layer: [slots, kv heads, key dim], where slot = page * PAGE + offset: consecutive pages are one view."""
        self.values: dict[int, torch.Tensor] = {}
        self.states: dict[int, States] = {}
        """By layer: [state_slots + 2, ...]. Slot 0 stays zero for fresh sessions; the last one is never read."""
        try:
            for layer, shape in layout.attention.items():
                self.keys[layer] = self._empty(shape.heads, shape.key_dim)
                self.values[layer] = self._empty(shape.heads, shape.value_dim)
            for layer, states in layout.recurrent.items():
                self.states[layer] = {
                    key: torch.zeros(state_slots + 2, *state.shape, dtype=state.dtype, device=self.device)
                    for key, state in states.items()
                }
        except (RuntimeError, MemoryError) as error:
            raise NotEnoughMemory(
                f"{pages} KV pages take {self.bytes / 1e9:.1f} GB, which {self.device} does not have free; "
                "lend less memory (--memory) or close what else uses it"
            ) from error

    def __repr__(self) -> str:
        slots = f", {self.state_slots} state slots" if self.states else ""
        return f"<KvPool {self.pages} pages{slots}, {self.bytes / 1e6:.0f} MB on {self.device}>"

    def copy_page(self, source: int, target: int) -> None:
        """Put the keys and values of one page's positions into another, in every layer."""
        for kept in (*self.keys.values(), *self.values.values()):
            kept[target * PAGE : (target + 1) * PAGE] = kept[source * PAGE : (source + 1) * PAGE]

    def _empty(self, heads: int, dim: int) -> torch.Tensor:
        """[slots, heads, dim]. On a CPU a head's slots lie side by side, since attention reads head by head; the paged
        kernel of a GPU wants a page's slots side by side."""
        slots = self.pages * PAGE
        if self.device.type == "cuda":
            return torch.empty(slots, heads, dim, dtype=self.dtype, device=self.device)
        return torch.empty(heads, slots, dim, dtype=self.dtype, device=self.device).transpose(0, 1)
