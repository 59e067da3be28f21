"""Layers rebuilt with fewer operations: which are, that they give the same, and what is left to the library."""

import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from peer.attention import Current
from peer.fuse import Unfamiliar, fuse, watching
from peer.kv import KvPool
from peer.linear import INT4, INT8, NONE, Quant
from peer.loading import load_model
from peer.maps import Blocked, joined
from peer.probe import Probe
from peer.slice import Slice
from peer.step import Engine
from peer.trunk import Trunk
from tests.peer.chains import Chain, Session
from tests.tiny_model import TINY

CPU = torch.device("cpu")
LEFT_TO_THE_LIBRARY = {"gpt_oss", "gpt2", "qwen3_next", "qwen3_5", "qwen3_5_moe"}
REBUILT = sorted(TINY.keys() - LEFT_TO_THE_LIBRARY)


def load(directory: Path, *, fused: bool = True, dtype: torch.dtype = torch.float32, quant: Quant = NONE) -> Slice:
    return Slice.load(str(directory), 0, 4, dtype=dtype, device=CPU, fused=fused, quant=quant)


def logits(slice: Slice) -> torch.Tensor:
    """Of frames that mix prompts, chunks and single tokens of three sessions."""
    chain = Chain([Engine(slice, KvPool(slice, 12, 4))])
    one, two, three = Session(0, [(2, 1), (6, 1)]), Session(1, [(3, 3)]), Session(2, [(0, 2), (7, 1)])
    chain.run([two.segment(range(30)), one.segment(range(40, 57), sampled=2), three.segment(range(60, 100))])
    found = [chain.logits]
    chain.run([three.segment([5], sampled=1), one.segment([6], sampled=1), two.segment(range(5), sampled=5)])
    return torch.cat([*found, chain.logits])


@pytest.mark.parametrize("name", TINY)
def test_which_architectures_are_rebuilt(name: str, tiny: Callable[[str], Path]) -> None:
    assert load(tiny(name)).fused == (set() if name in LEFT_TO_THE_LIBRARY else {0, 1, 2, 3})


@pytest.mark.parametrize("name", REBUILT)
def test_rebuilt_layers_give_what_the_library_gives(name: str, tiny: Callable[[str], Path]) -> None:
    expected, found = logits(load(tiny(name), fused=False)), logits(load(tiny(name)))
    assert (found - expected).abs().max() / expected.abs().max() < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_they_do_in_bfloat16_as_far_as_it_goes(name: str, tiny: Callable[[str], Path]) -> None:
    slice = load(tiny(name), dtype=torch.bfloat16)
    assert slice.fused == {0, 1, 2, 3}
    expected, found = logits(load(tiny(name), fused=False, dtype=torch.bfloat16)), logits(slice)
    assert (found - expected).norm() / expected.norm() < 0.1


@pytest.mark.parametrize("quant", [INT8, INT4])
def test_they_do_with_packed_weights(quant: Quant, tiny: Callable[[str], Path]) -> None:
    slice = load(tiny("qwen2"), quant=quant)
    assert slice.fused == {0, 1, 2, 3}
    expected, found = logits(load(tiny("qwen2"), fused=False, quant=quant)), logits(slice)
    assert (found - expected).norm() / expected.norm() < 0.01
    assert slice.weight_bytes == load(tiny("qwen2"), fused=False, quant=quant).weight_bytes


def test_weights_are_not_held_twice(tiny: Callable[[str], Path]) -> None:
    assert load(tiny("qwen2")).weight_bytes == load(tiny("qwen2"), fused=False).weight_bytes
    model = load_model(str(tiny("qwen2")), 0, 4, dtype=torch.float32, device=CPU)
    replaced = weakref.ref(model.model.layers[2].self_attn.q_proj.weight)
    slice = Slice(model, 0, 4, torch.float32, CPU)
    gc.collect()
    assert slice.fused
    assert replaced() is None


def test_the_log_says_what_is_left_to_the_library(
    tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pooled.peer"):
        load(tiny("gpt2"))
    assert "the library computes layers such as 3: it gets no rotary embedding" in caplog.text


@pytest.mark.parametrize("cut", [(0, 4), (0, 2), (1, 3), (2, 4)])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_what_surrounds_the_layers_is_rebuilt_too(
    name: str, cut: tuple[int, int], tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pooled.peer"):
        slice = Slice.load(str(tiny(name)), *cut, dtype=torch.float32, device=CPU)
    assert "from layer to layer" not in caplog.text
    assert slice._decoder.forward.__func__ is Trunk.forward


def test_embeddings_that_the_decoder_scales_are_left_to_the_library(
    tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pooled.peer"):
        assert load(tiny("granite")).fused == {0, 1, 2, 3}
    assert "something stands between its layers and its embedding or its last norm" in caplog.text


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize(("width", "out"), [(64, 192), (192, 64)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_the_same_whichever_way_it_is_taken(
    shared: bool, rows: int, width: int, out: int, bias: bool
) -> None:
    plain = nn.Linear(width, out, bias=bias)
    hidden = torch.randn(1, rows, width)
    with torch.inference_mode():
        made = joined(plain, shared=shared)
        assert not shared or getattr(made, "weight", None) is plain.weight
        found, expected = made(hidden), plain(hidden)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_blocks_a_row_comes_out_the_same_whatever_is_beside_it(dtype: torch.dtype) -> None:
    weight = torch.randn(192, 64).to(dtype)
    if not Blocked.takes(weight):
        pytest.skip("this torch has no such kernels")
    hidden, made = torch.randn(20, 64).to(dtype), Blocked(weight, None)
    with torch.inference_mode():
        whole = made(hidden)
        for rows in (1, 2, 3, 5, 16):
            assert made(hidden[:rows]).equal(whole[:rows])


class TestTwists:
    """A layer that looks familiar and computes something else is not rebuilt."""

    @staticmethod
    def layer(tiny: Callable[[str], Path]) -> Any:
        return load_model(str(tiny("llama")), 0, 4, dtype=torch.float32, device=CPU).model.layers[1]

    @staticmethod
    def rebuild(layer: Any) -> object:
        current = Current()
        layer.self_attn.pooled = current
        layer.self_attn.config._attn_implementation = "pooled"
        current.run = Probe()
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, 5, 64, generator=generator)
        angles = torch.randn(1, 5, 8, generator=generator).repeat(1, 1, 2)
        with torch.inference_mode(), watching([layer]) as calls:
            layer(hidden, position_embeddings=(angles.cos(), angles.sin()))
            return fuse(calls[0], current)

    def test_a_plain_one_is(self, tiny: Callable[[str], Path]) -> None:
        assert self.rebuild(self.layer(tiny)) is not None

    def test_another_sum(self, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        layer = self.layer(tiny)
        inner = layer.forward
        monkeypatch.setattr(layer, "forward", lambda *args, **kwargs: inner(*args, **kwargs) * 1.01)
        with pytest.raises(Unfamiliar, match="another way than by adding"):
            self.rebuild(layer)

    def test_another_turn(self, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        layer = self.layer(tiny)
        inner = layer.self_attn.forward

        def mirrored(*args: Any, position_embeddings: Any, **kwargs: Any) -> Any:
            cos, sin = position_embeddings
            return inner(*args, position_embeddings=(cos, -sin), **kwargs)

        monkeypatch.setattr(layer.self_attn, "forward", mirrored)
        with pytest.raises(Unfamiliar, match="gives other numbers"):
            self.rebuild(layer)

    def test_a_map_that_does_more(self, tiny: Callable[[str], Path]) -> None:
        class Adapted(nn.Linear):
            def forward(self, input: torch.Tensor) -> torch.Tensor:
                return super().forward(input) + 1

        layer = self.layer(tiny)
        layer.self_attn.k_proj.__class__ = Adapted
        with pytest.raises(Unfamiliar, match="queries, keys and values"):
            self.rebuild(layer)

    def test_parts_side_by_side(self, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        layer = self.layer(tiny)

        def parallel(hidden: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            normed = layer.input_layernorm(hidden)
            return hidden + layer.self_attn(normed, **kwargs)[0] + layer.mlp(normed)

        monkeypatch.setattr(layer, "forward", parallel)
        with pytest.raises(Unfamiliar):
            self.rebuild(layer)
