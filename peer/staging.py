"""Copies between the CPU and a GPU by way of pinned memory, which the GPU reads and writes while both go on.

torch keeps pinned memory for the next copy, and does not give it out again before the last one is through. On other
devices nothing is pinned, and on the CPU nothing is copied.
"""

from collections.abc import Sequence

import numpy as np
import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the CPU."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def bytes_to_device(data: bytes, device: torch.device) -> torch.Tensor:
    """uint8 [len(data)]"""
    held = np.frombuffer(data, dtype=np.uint8)
    if device.type != "cuda":
        return torch.from_numpy(held.copy()).to(device)  # torch takes no read-only memory
    pinned = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
    pinned.numpy()[:] = held
    return pinned.to(device, non_blocking=True)


def to_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of one device. Those of a GPU are all under way before one is waited for."""
    device = tensors[0].device
    if device.type != "cuda":
        return [tensor.cpu() for tensor in tensors]
    copies = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        for tensor in tensors
    ]
    torch.cuda.current_stream(device).synchronize()
    return copies
