"""How layers are divided over devices, and what a slice on several of them says of itself."""

from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer import spread
from peer.linear import INT8, NONE, Quant
from peer.memory import Share
from peer.slice import Slice
from peer.spread import Spread, Weights

CPU = torch.device("cpu")


def shares(*lent: int) -> list[Share]:
    return [Share(CPU, each) for each in lent]


def load(directory: Path, start: int, end: int, *lent: int) -> spread.Layers:
    return spread.load(str(directory), start, end, shares(*lent), dtype=torch.float32)


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=7),
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.booleans(),
)
def test_no_other_cut_fills_the_fullest_device_less(
    layers: list[int], front: int, tail: int, lent: list[int], whole: bool
) -> None:
    weights = Weights(tuple(layers), front, tail)
    start = 0 if whole else max(0, len(layers) - 1 - len(lent))
    end = len(layers) if whole else max(start + len(lent), len(layers) - 1)

    def fullest(cuts: tuple[int, ...]) -> float:
        return max(
            (sum(layers[low:high]) + front * (low == 0) + tail * (high == len(layers))) / each
            for each, (low, high) in zip(lent, pairwise(cuts), strict=True)
        )

    found = tuple(weights.cuts(start, end, lent))
    assert (found[0], found[-1], sorted(set(found))) == (start, end, list(found))
    others = ((start, *inner, end) for inner in combinations(range(start + 1, end), len(lent) - 1))
    assert fullest(found) == pytest.approx(min(map(fullest, others)))


def test_layers_go_where_the_memory_is() -> None:
    weights = Weights((1.0,) * 12, front=0.0, tail=0.0)
    assert weights.cuts(0, 12, [10, 20]) == [0, 4, 12]
    assert weights.cuts(2, 12, [10, 10]) == [2, 7, 12]
    heavy = Weights((1.0,) * 12, front=2.0, tail=4.0)
    assert heavy.cuts(0, 12, [10, 10, 10]) == [0, 4, 10, 12]
    assert heavy.cuts(1, 11, [10, 10]) == [1, 6, 11], "neither end of the model is in it"


@pytest.mark.parametrize("quant", [NONE, INT8])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_weights_are_told_before_they_are_read(name: str, quant: Quant, tiny: Callable[[str], Path]) -> None:
    source, dtype = str(tiny(name)), torch.bfloat16
    weights = Weights.of(source, dtype, quant)
    told = [weights.layers[0] + weights.front, weights.layers[1], weights.layers[3] + weights.tail]
    for bytes, (start, end) in zip(told, [(0, 1), (1, 2), (3, 4)], strict=True):
        held = Slice.load(source, start, end, dtype=dtype, device=CPU, quant=quant).weight_bytes
        assert bytes == pytest.approx(held, rel=0.1)


def test_what_is_spread_says_what_a_slice_says(tiny: Callable[[str], Path]) -> None:
    one, several = load(tiny("llama"), 0, 4, 10), load(tiny("llama"), 0, 4, 10, 10)
    assert isinstance(several, Spread)
    assert [(part.start, part.end) for part in several.parts] == [(0, 2), (2, 4)]
    for name in ("start", "end", "count", "first", "last", "dtype", "device", "hidden_size", "vocab_size"):
        assert getattr(several, name) == getattr(one, name)
    twice = 256 * 64 * 4  # tied weights, which both ends need
    assert several.weight_bytes == pytest.approx(one.weight_bytes + twice, rel=1e-3)
    assert repr(several) == "<Spread LlamaForCausalLM layers 0-3 of 4 over cpu to cpu, 1 MB>"
    assert several.layer_seconds() > 0
    assert several.position_limit is one.position_limit is None
    assert load(tiny("gpt2"), 0, 4, 10, 10).position_limit == 512


def test_devices_without_a_layer_of_their_own_are_left_out(tiny: Callable[[str], Path]) -> None:
    assert isinstance(load(tiny("llama"), 1, 2, 10, 20, 30), Slice)
    assert len(load(tiny("llama"), 1, 3, 10, 20, 30).parts) == 2


def test_progress_rises_over_all_parts(tiny: Callable[[str], Path]) -> None:
    heard: list[float] = []
    spread.load(str(tiny("llama")), 0, 4, shares(1, 1), dtype=torch.float32, progress=heard.append)
    assert heard == sorted(heard)
    assert (heard[0], heard[-1]) == (0, 1)
    assert any(0.4 < done < 0.6 for done in heard)
