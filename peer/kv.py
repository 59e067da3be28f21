"""The memory a peer lends for its slice: KV pages, and state slots for recurrent layers.

Page and slot numbers are logical and shared by the whole chain; the room gives them out. A peer only follows them.
"""

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch

from peer.errors import NotEnoughMemory
from peer.packs import Packs
from peer.recurrent import StateKey, States, StateShape
from protos import room_pb2

if TYPE_CHECKING:
    from peer.slice import Slice

STEP = torch.float32
"""Of what one step of an int8 key or value stands for."""

KV_DTYPES: dict[int, torch.dtype] = {
    room_pb2.KV_F32: torch.float32,
    room_pb2.KV_BF16: torch.bfloat16,
    room_pb2.KV_INT8: torch.int8,
}
"""By the room's setting; what is not here follows the compute dtype."""

PAGE = 16
"""Positions in a page."""

PACKS = 1 << 28
"""Bytes beside the pages for packs, where nobody says how much there is."""


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
        shapes = self.attention.values()
        steps = 2 * STEP.itemsize * sum(shape.heads for shape in shapes) if dtype == torch.int8 else 0
        return PAGE * (dtype.itemsize * sum(shape.numbers for shape in shapes) + steps)

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
        packs: int = PACKS,
    ) -> None:
        """packs: bytes that sessions' keys and values may take beside the pages, see `peer.packs`."""
        self.pages, self.state_slots = pages, state_slots
        self.dtype, self.device = dtype or slice.dtype, device or slice.device
        layout = slice.layout
        self.bytes = pages * layout.page_bytes(self.dtype) + (state_slots + 2) * layout.slot_bytes
        self.keys: dict[int, torch.Tensor] = {}
        """By layer: [slots, kv heads, key dim], where slot = page * PAGE + offset: consecutive pages are one view."""
        self.values: dict[int, torch.Tensor] = {}
        self.steps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By layer: what a step of int8 keys and of int8 values stands for, [slots, kv heads, 1] each."""
        self.by_head: dict[int, tuple[torch.Tensor, ...]] = {}
        """By layer: views of its keys and values, and of their steps if they are int8, each [kv heads, slots, dim]."""
        self.states: dict[int, States] = {}
        """By layer: [state_slots + 2, ...]. Slot 0 stays zero for fresh sessions; the last one is never read."""
        self.packs = Packs(layout, slice.dtype, PAGE, packs if self.device.type == "cpu" else 0)
        try:
            for layer, shape in layout.attention.items():
                self.keys[layer] = self._empty(shape.heads, shape.key_dim)
                self.values[layer] = self._empty(shape.heads, shape.value_dim)
                if self.dtype == torch.int8:
                    self.steps[layer] = (self._empty(shape.heads, 1, STEP), self._empty(shape.heads, 1, STEP))
                kept = (self.keys[layer], self.values[layer], *self.steps.get(layer, ()))
                self.by_head[layer] = tuple(each.transpose(0, 1) for each in kept)
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
        for kept in (*self.keys.values(), *self.values.values(), *chain.from_iterable(self.steps.values())):
            kept[target * PAGE : (target + 1) * PAGE] = kept[source * PAGE : (source + 1) * PAGE]

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep the keys and values [rows, kv heads, dim] of a layer in `slots` [rows]."""
        for kept, rows, steps in zip(
            (self.keys[layer], self.values[layer]), (key, value), self.steps.get(layer, (None, None)), strict=True
        ):
            if steps is not None:
                largest = rows.abs().amax(-1, keepdim=True).to(STEP)
                step = largest.div_(127).clamp_min_(torch.finfo(STEP).tiny)
                steps.index_copy_(0, slots, step)
                rows = (rows / step).round_()
            kept.index_copy_(0, slots, rows.to(kept.dtype))

    def _empty(self, heads: int, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[slots, heads, dim]. On a CPU a head's slots lie side by side, since attention reads head by head; a GPU's
        kernel wants a slot's heads side by side."""
        slots = self.pages * PAGE
        if self.device.type == "cuda":
            return torch.empty(slots, heads, dim, dtype=dtype or self.dtype, device=self.device)
        return torch.empty(heads, slots, dim, dtype=dtype or self.dtype, device=self.device).transpose(0, 1)
