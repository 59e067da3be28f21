"""Linear maps as rebuilt layers multiply with them: the quickest product that torch has for the weights at hand.

These modules are called straight away, without the hooks a module may have: at one row a call costs as much as a small
operation, and a layer makes a dozen.
"""

import logging
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
from torch import nn
from torch.nn.functional import linear

from peer.linear import Int8Linear, Map, PackedLinear

log = logging.getLogger("pooled.peer")

_SKINNY = 6
"""Rows up to which a wide map is quicker the other way round: at 2 rows the library's product took 1.7 ms and this one
0.45 ms where a single row takes 0.7 (3072 x 576, float32, MKL). Narrow maps gain at 2 rows only."""

_FEWEST = 4
"""Rows that a blocked product is computed for at least: one row alone takes 1.3 times as long as four."""
_BLOCKED_FOR = 16
"""Rows that weights are put into blocks for. They serve any number; made for one row, the blocks suit no other."""
_BLOCKED_DTYPES = (torch.float32, torch.bfloat16)


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


class Blocked(nn.Module):
    """A map on a CPU whose weights lie in the blocks that oneDNN's kernels read.

    Beside MKL's product of weights as they are it takes 0.6 times as long at one row and at sixteen, threads share the
    work at one row too, and a row's outcome does not depend on how many others there are (in the shapes tried).
    """

    blocks: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in], bias [out]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("blocks", torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _BLOCKED_FOR))
        self.bias = None if bias is None else _parameter(bias.detach())
        # Both once more, where they are found without a module's look-up in Python.
        self._taken = self.blocks, self.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        blocks, bias = self._taken
        rows = hidden.numel() // self.in_features
        if rows >= _FEWEST:
            return _blocked_product(hidden, blocks, bias)
        few = hidden if hidden.dim() == 2 else hidden.view(rows, -1)
        # Which rows fill it up does not matter: nobody looks at what comes of them.
        filled = few.expand(_FEWEST, -1) if rows == 1 else torch.cat([few] * -(-_FEWEST // rows))
        out = _blocked_product(filled, blocks, bias)[:rows]
        return out if hidden.dim() == 2 else out.view(*hidden.shape[:-1], -1)

    __call__ = forward

    @staticmethod
    def takes(weight: torch.Tensor) -> bool:
        """Whether this machine's torch has such kernels for these weights."""
        return weight.is_cpu and weight.dtype in _BLOCKED_DTYPES and _blocks_agree(weight.dtype)


def _blocked_product(rows: torch.Tensor, blocks: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    # One overload by name: to look for the one that fits takes 2 of the 16 microseconds of a call.
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, blocks, bias, "none", [], "")
    return out


@cache
def _blocks_agree(dtype: torch.dtype) -> bool:
    """Whether oneDNN's product is here and gives what torch's own gives."""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(count, 64, generator=generator).to(dtype) for count in (96, _FEWEST))
    try:
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight, _BLOCKED_FOR)
        found = _blocked_product(rows, blocks, None)
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        log.info("weights stay as they are: %s", str(error).partition("\n")[0])
        return False
    expected = linear(rows, weight).float()
    return bool((found.float() - expected).norm() <= 8 * torch.finfo(dtype).eps * expected.norm())


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


def joined(*maps: Map, shared: bool = False) -> Map | Blocked | SideBySide:
    """One layer that gives the outputs of several side by side.

    shared: the weights (of a single map) are somebody else's too, so they stay as they are.
    """
    kinds = {type(each) for each in maps}
    if kinds not in ({nn.Linear}, {Int8Linear}):
        return SideBySide(maps) if len(maps) > 1 else maps[0]
    bias = _joined_bias(maps)
    if kinds == {Int8Linear}:
        packed = cast(Sequence[Int8Linear], maps)
        return Int8(_cat([each.levels for each in packed]), _cat([each.steps for each in packed]), bias)
    plain = cast(Sequence[nn.Linear], maps)
    weight = _cat([each.weight.data for each in plain])
    if not shared and Blocked.takes(weight):
        return Blocked(weight, bias)
    if len(plain) == 1:
        return Linear.of(cast(nn.Parameter, plain[0].weight), plain[0].bias)
    return Linear.of(_parameter(weight), None if bias is None else _parameter(bias))


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _joined_bias(maps: Sequence[Map]) -> torch.Tensor | None:
    like = next((each.bias.data for each in maps if each.bias is not None), None)
    if like is None:
        return None
    return _cat([like.new_zeros(each.out_features) if each.bias is None else each.bias.data for each in maps])


def _cat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
