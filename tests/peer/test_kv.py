from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peer.errors import NotEnoughMemory
from peer.kv import KvPool
from peer.slice import Slice
from tests.peer.chains import Chain, Session

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


def test_int8_keys_and_values_come_with_their_steps(tiny: Callable[[str], Path]) -> None:
    slice = load(tiny("llama"), 0, 2)
    pool = KvPool(slice, 3, dtype=torch.int8)
    held = [*pool.keys.values(), *pool.values.values(), *(s for steps in pool.steps.values() for s in steps)]
    assert pool.bytes == sum(tensor.numel() * tensor.element_size() for tensor in held)
    key, value = torch.randn(2, 2, 16), torch.randn(2, 2, 16) * 1000
    pool.write(1, torch.tensor([5, 9]), key, value)
    pool.copy_page(0, 2)
    for slots in ([5, 9], [37, 41]):
        for kept, steps, rows in zip((pool.keys[1], pool.values[1]), pool.steps[1], (key, value), strict=True):
            back = kept[slots] * steps[slots]
            assert ((back - rows).abs() <= rows.abs().amax(-1, keepdim=True) * 0.501 / 127).all()


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_5"])
def test_answers_with_int8_keys_and_values_are_close(tiny: Callable[[str], Path], name: str) -> None:
    """Windows, capped logits and sinks; in one chunk and token by token; on pages that do not follow each other.

    Tiny random experts amplify what they are given; a mistake would differ by as much as the logits are.
    """
    exact, rounded = (Chain.load(tiny(name), [0, 4], kv=kv) for kv in (None, torch.int8))
    for fed in ([list(range(40, 75))], [list(range(40, 60)), [7], [9]]):
        logits = []
        for chain in (exact, rounded):
            session = Session(0, [(1, 1), (4, 3)])
            for ids in fed:
                chain.run([session.segment(ids, sampled=1)])
            logits.append(chain.logits)
        assert (logits[0] - logits[1]).abs().max() <= 0.1 * logits[0].abs().max()
