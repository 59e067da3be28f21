from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peer.errors import NotEnoughMemory
from peer.kv import KvPool
from peer.slice import Slice

CPU = torch.device("cpu")


def load(directory: Path, start: int, end: int, dtype: torch.dtype = torch.float32) -> Slice:
    return Slice.load(str(directory), start, end, dtype=dtype, device=CPU)


def test_pages_and_slots_have_the_size_the_layers_need(tiny: Callable[[str], Path]) -> None:
    slice = load(tiny("qwen3_5"), 0, 4)
    page = 16 * 2 * (16 + 16) * 4  # positions, kv heads, dims of key and value, bytes
    assert slice.layout.page_bytes(torch.float32) == 2 * page
    assert slice.layout.page_bytes(torch.bfloat16) == page
    conv, recurrent = (2 * 32 + 64) * 4 * 4, 4 * 16 * 16 * 4
    assert slice.layout.slot_bytes == 2 * (conv + recurrent)
    pool = KvPool(slice, 10, 3)
    held = [
        *pool.keys.values(),
        *pool.values.values(),
        *(s for states in pool.states.values() for s in states.values()),
    ]
    assert pool.bytes == sum(tensor.numel() * tensor.element_size() for tensor in held)


def test_a_slice_without_recurrent_layers_needs_no_slots(tiny: Callable[[str], Path]) -> None:
    assert load(tiny("qwen3_5"), 1, 2).layout.slot_bytes == 0
    assert load(tiny("qwen3_5"), 0, 1).layout.page_bytes(torch.float32) == 0


def test_the_pool_follows_the_slice_unless_told_otherwise(tiny: Callable[[str], Path]) -> None:
    slice = load(tiny("llama"), 0, 1, torch.bfloat16)
    assert KvPool(slice, 1).dtype == torch.bfloat16
    pool = KvPool(slice, 1, dtype=torch.float16)
    assert pool.keys[0].dtype == torch.float16


def test_a_pool_that_does_not_fit_is_refused_in_words(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(NotEnoughMemory, match="lend less memory"):
        KvPool(load(tiny("llama"), 0, 1), 1 << 40)
