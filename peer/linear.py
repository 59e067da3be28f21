"""Linear maps whose weights are kept in 8 or 4 bits, as torch's own kernels read them.

Weights are rounded to multiples of a step: one step a row in 8 bits, one for each group of a row in 4. Steps are
bfloat16 from the start, so that no kernel rounds them again. Activations are bfloat16 for the product alone.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from protos import room_pb2

log = logging.getLogger("pooled.peer")

Quant: TypeAlias = room_pb2.Quant.ValueType

NONE, INT8, INT4 = room_pb2.QUANT_NONE, room_pb2.QUANT_INT8, room_pb2.QUANT_INT4
GROUP = 32
"""Entries of a row that share a step in 4 bits."""

_FEW = 12
"""Rows up to which the 8-bit kernel is quicker than to unpack the weights and multiply."""
_TILE = 1 << 19
"""Weights unpacked at a time, so that they are still in the processor's cache when they are used."""
_SMALLEST = 32
"""Narrower maps stay as they are: they weigh nothing, and routers and gates are among them."""
_CLOSE = 0.02
"""Difference from the plain product, relative to its largest entry, that counts as the rounding of bfloat16."""

Product = Callable[[torch.Tensor], torch.Tensor]


class PackedLinear(nn.Module):
    """A linear map that multiplies in bfloat16, whatever dtype goes in and comes out."""

    def __init__(self, shape: torch.Size, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """bfloat16 [rows, in] -> bfloat16 [rows, out]."""
        raise NotImplementedError

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if given.dim() == 2:
            out = self.product(given.bfloat16()).to(given.dtype)
        else:
            out = self.product(given.reshape(-1, self.in_features).bfloat16()).to(given.dtype)
            out = out.view(*given.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Int8Linear(PackedLinear):
    """Weights in 8 bits, one step a row."""

    levels: torch.Tensor
    steps: torch.Tensor

    def __init__(self, levels: torch.Tensor, steps: torch.Tensor, bias: torch.Tensor | None) -> None:
        """levels int8 [out, in], steps bfloat16 [out], bias [out]."""
        super().__init__(levels.shape, bias)
        self.register_buffer("levels", levels)
        self.register_buffer("steps", steps)
        # Rows of other lengths the kernel reads beyond their end.
        whole = self.in_features % 32 == 0
        self._kernel = levels.is_cpu and whole and _agree(self._packed, self._unpacked, self.in_features)

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> "Int8Linear":
        """weight [out, in] in any float dtype."""
        weight = weight.float()
        steps = _step(weight.abs().amax(1) / 127)
        levels = (weight / steps[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        return cls(levels, steps, bias)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return self._packed(rows) if self._kernel and len(rows) <= _FEW else self._unpacked(rows)

    def _packed(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.levels, self.steps)
        return out

    def _unpacked(self, rows: torch.Tensor) -> torch.Tensor:
        tile = max(_TILE // self.in_features, 1) if rows.is_cpu else self.out_features
        return torch.cat([linear(rows, part.to(rows.dtype)) for part in torch.split(self.levels, tile)], 1) * self.steps


class Int4Linear(PackedLinear):
    """Weights in 4 bits: in each GROUP of a row, a middle and the levels around it.

    On a CPU the levels are kept in the order of torch's kernel; elsewhere two neighbours share a byte, and they are
    unpacked for every product.
    """

    levels: torch.Tensor
    scales: torch.Tensor

    def __init__(self, levels: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        """levels int32 [out, in], 0 to 15; scales bfloat16 [in / GROUP, out, 2]: steps and middles; bias [out]."""
        super().__init__(levels.shape, bias)
        self.register_buffer("levels", (levels[:, ::2] | levels[:, 1::2] << 4).to(torch.uint8))
        self.register_buffer("scales", scales)
        self._kernel = False
        if levels.is_cpu:
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
            self._kernel = _agree(lambda rows: self._packed(rows, packed), self._unpacked, self.in_features)
            if self._kernel:
                self.levels = packed

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> "Int4Linear":
        """weight [out, in] in any float dtype; `in` a multiple of GROUP, `out` of 16."""
        groups = weight.float().view(len(weight), -1, GROUP)
        low, high = groups.aminmax(dim=2)
        steps = _step((high - low) / 15)
        middles = (low + 8 * steps.float()).bfloat16()
        levels = ((groups - middles[..., None]) / steps[..., None]).add_(8).round_().clamp_(0, 15)
        scales = torch.stack([steps, middles], 2).transpose(0, 1).contiguous()
        return cls(levels.flatten(1).to(torch.int32), scales, bias)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        return self._packed(rows, self.levels) if self._kernel else self._unpacked(rows)

    def _packed(self, rows: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, GROUP, self.scales)
        return out

    def _unpacked(self, rows: torch.Tensor) -> torch.Tensor:
        steps, middles = torch.split(self.scales.transpose(0, 1), 1, 2)
        levels = torch.stack([self.levels & 15, self.levels >> 4], 2).view(self.out_features, -1, GROUP)
        return linear(rows, ((levels.to(rows.dtype) - 8) * steps + middles).flatten(1))


Map: TypeAlias = nn.Linear | PackedLinear
PLAIN = (nn.Linear, Int8Linear, Int4Linear)
"""The types of modules that multiply with a matrix and do nothing else."""


def quantise(model: nn.Module, quant: Quant, heads: tuple[str, ...] = ()) -> None:
    """Keep the model's linear maps in few bits from now on, one after the other, in place.

    What is no plain linear map, such as fused experts, stays as it is. `heads` name the model's children that give
    logits: these get no less than 8 bits, and where their weights are the embedding's, that keeps its own.
    """
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            weight = module.weight.data
        elif type(module) is Conv1D:
            weight = module.weight.data.T
        else:
            continue
        if min(weight.shape) >= _SMALLEST:
            bias = None if module.bias is None else module.bias.data
            few = quant == INT4 and name not in heads and weight.shape[1] % GROUP == weight.shape[0] % 16 == 0
            model.set_submodule(name, (Int4Linear if few else Int8Linear).of(weight, bias))


def _step(exact: torch.Tensor) -> torch.Tensor:
    """The next bfloat16 from `exact` up, so that what it is a 127th of is not cut off; 1 for 0."""
    near = exact.bfloat16()
    up = torch.nextafter(near, torch.full_like(near, torch.inf))
    return torch.where(exact > 0, torch.where(near < exact, up, near), 1.0)


def _agree(kernel: Product, plain: Product, width: int) -> bool:
    """Whether a kernel takes these weights on this machine, and gives what plain arithmetic gives."""
    rows = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = plain(rows).float()
    try:
        found = kernel(rows).float()
    except (RuntimeError, NotImplementedError) as error:
        log.info("packed weights are unpacked for each product: %s", str(error).partition("\n")[0])
        return False
    return bool((found - expected).abs().max() <= _CLOSE * expected.abs().max())
