"""Weights in few bits: how much they lose, and that slices of them work."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from peer.kv import KvPool
from peer.linear import GROUP, INT4, INT8, Int4Linear, Int8Linear, PackedLinear, Quant, quantise
from peer.loading import load_model
from peer.slice import Slice
from peer.step import Engine
from tests.peer.chains import Chain, Session, greedy

CPU = torch.device("cpu")

shapes = st.tuples(st.integers(1, 5).map(lambda n: 16 * n), st.integers(1, 4).map(lambda n: GROUP * n))


def matrix(shape: tuple[int, int], seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def kept(packed: PackedLinear) -> torch.Tensor:
    """The weights as they act: what the map makes of unit vectors."""
    return packed(torch.eye(packed.in_features)).T


@given(shape=shapes, seed=st.integers(0, 2**32), spread=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=40)
def test_weights_in_8_bits_lose_half_a_step_of_their_row(shape: tuple[int, int], seed: int, spread: float) -> None:
    weight = matrix(shape, seed, spread)
    loss = (kept(Int8Linear.of(weight, None)) - weight).abs()
    largest = weight.abs().amax(1, keepdim=True)
    # A step is rounded up to bfloat16, and the product to bfloat16.
    assert (loss <= largest * (0.5 / 127 * (1 + 2**-7) + 2**-8)).all()


@given(shape=shapes, seed=st.integers(0, 2**32), spread=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=40)
def test_weights_in_4_bits_lose_half_a_step_of_their_group(shape: tuple[int, int], seed: int, spread: float) -> None:
    weight = matrix(shape, seed, spread)
    groups = weight.view(shape[0], -1, GROUP)
    loss = (kept(Int4Linear.of(weight, None)).view_as(groups) - groups).abs()
    span = groups.amax(2, keepdim=True) - groups.amin(2, keepdim=True)
    assert (loss <= span * 0.5 / 15 * (1 + 2**-7) + groups.abs().amax(2, keepdim=True) * 2**-6).all()


@pytest.mark.parametrize("of", [Int8Linear.of, Int4Linear.of])
@pytest.mark.parametrize("rows", [1, 12, 13, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_is_that_of_the_kept_weights(of: Callable, rows: int, dtype: torch.dtype) -> None:
    packed = of(matrix((64, 96), 1), matrix((1, 64), 2)[0].to(dtype))
    given = matrix((rows, 96), 3).to(dtype)
    expected = given.float() @ kept(of(matrix((64, 96), 1), None)).T + matrix((1, 64), 2)
    found = packed(given.view(1, rows, 96))
    assert found.dtype == dtype
    assert found.shape == (1, rows, 64)
    assert (found.float() - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.parametrize("shape", [(33, 50), (64, 40), (64, 33)])
def test_rows_the_kernel_cannot_read_are_unpacked(shape: tuple[int, int]) -> None:
    weight = matrix(shape, 1)
    found = Int8Linear.of(weight, None)(torch.eye(shape[1])[:3])
    assert (found - weight.T[:3]).abs().max() <= 0.02 * weight.abs().max()


def test_zeros_stay_zeros() -> None:
    for packed in (Int8Linear.of(torch.zeros(16, 32), None), Int4Linear.of(torch.zeros(16, 32), None)):
        assert packed(torch.ones(2, 32)).tolist() == [[0] * 16] * 2


def test_heads_keep_8_bits_and_small_maps_all() -> None:
    model = nn.ModuleDict(
        {"body": nn.Linear(64, 64), "odd": nn.Linear(50, 64), "router": nn.Linear(64, 8), "head": nn.Linear(64, 96)}
    )
    quantise(model, INT4, heads=("head",))
    kinds = {name: type(module) for name, module in model.items()}
    assert kinds == {"body": Int4Linear, "odd": Int8Linear, "router": nn.Linear, "head": Int8Linear}


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "gemma3", "qwen3_moe", "qwen3_5"])
@pytest.mark.parametrize("quant", [INT8, INT4])
def test_slices_of_packed_weights_answer_as_the_whole(tiny: Callable[[str], Path], name: str, quant: Quant) -> None:
    prompt = list(range(40, 60))
    whole, parts = (Chain.load(tiny(name), cuts, quant=quant) for cuts in ([0, 4], [0, 1, 4]))
    answers = [greedy(chain, Session(0, [(1, 4)]), prompt, 8) for chain in (whole, parts)]
    assert answers[0] == answers[1]
    assert torch.equal(whole.logits, parts.logits)
    plain = Chain.load(tiny(name), [0, 4])
    assert whole.engines[0].slice.weight_bytes < plain.engines[0].slice.weight_bytes


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("cut", [(0, 4), (1, 4), (0, 3), (2, 3)])
def test_what_is_loaded_in_parts_is_what_is_loaded_at_once(
    tiny: Callable[[str], Path], name: str, cut: tuple[int, int]
) -> None:
    """Tied and untied; a float32 checkpoint in bfloat16 is loaded part by part."""
    whole = load_model(str(tiny(name)), *cut, dtype=torch.float32, device=CPU)
    parts = load_model(str(tiny(name)), *cut, dtype=torch.bfloat16, device=CPU)
    expected = {key: tensor.bfloat16() for key, tensor in whole.state_dict().items()}
    found = parts.state_dict()
    unused = set() if cut[0] == 0 else {key for key in expected if "embed_tokens" in key or "wte" in key}
    assert found.keys() == expected.keys() - unused
    assert all(torch.equal(found[key], expected[key]) for key in found)
    assert len(list(parts.parameters())) == len(found) - (cut == (0, 4) and name != "qwen2"), "a tied head is held once"


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("quant", [INT8, INT4])
def test_rebuilt_layers_of_packed_weights_give_what_the_library_gives(
    tiny: Callable[[str], Path], name: str, quant: Quant
) -> None:
    slices = [
        Slice.load(str(tiny(name)), 0, 4, dtype=torch.float32, device=CPU, quant=quant, fused=fused)
        for fused in (True, False)
    ]
    assert slices[0].fused == {0, 1, 2, 3}
    assert slices[0].weight_bytes < 1.01 * slices[1].weight_bytes
    logits = []
    for slice in slices:
        chain = Chain([Engine(slice, KvPool(slice, 4))])
        chain.run([Session(0, [(0, 4)]).segment(range(40, 75), sampled=5)])
        logits.append(chain.logits)
    assert (logits[0] - logits[1]).norm() / logits[1].norm() < 0.03
