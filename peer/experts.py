"""How a mixture's experts compute on a GPU: in one of the library's own two ways, by how many rows there are.

`batched_mm` copies each row's experts and multiplies all rows at once. For few rows that is the quickest way, and it
asks the GPU nothing meanwhile, so that a step can be recorded; but the copies of a prefill would not fit. `grouped_mm`
sorts the rows and reads each expert once.
"""

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, batched_mm_experts_forward, grouped_mm_experts_forward

NAME = "pooled"
"""Under this name the library knows the function."""

MOST_COPIED = 1 << 28
"""Bytes of one matrix of all rows' experts."""


def compute_experts(module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """hidden [rows, width], chosen and weights [rows, experts of each] -> [rows, width]."""
    largest = max(each[0].nbytes for each in module.parameters() if each.dim() == 3)
    few = chosen.numel() * largest <= MOST_COPIED
    compute = batched_mm_experts_forward if few else grouped_mm_experts_forward
    out: torch.Tensor = compute(module, hidden, chosen, weights)
    return out


ALL_EXPERTS_FUNCTIONS.register(NAME, compute_experts)


def loader_options(config: Any, device: torch.device) -> dict[str, str]:
    """For the library's loader. On a CPU, and for weights that come packed, it chooses by itself."""
    packed = getattr(config, "quantization_config", None) is not None
    return {"experts_implementation": NAME} if device.type == "cuda" and not packed else {}
