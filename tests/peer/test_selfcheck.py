"""The self-check lets through what can be cut, and names what cannot."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from peer import selfcheck
from peer.attention import Heads
from peer.errors import CorruptModel, ModelNotFound, UnsupportedArchitecture
from peer.selfcheck import check_architecture, fingerprint, self_check
from peer.shrink import shrink
from tests.tiny_model import MULTIMODAL, TINY, tiny_config


def check(config: Any) -> None:
    check_architecture(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])


@pytest.mark.parametrize("name", [*TINY, *MULTIMODAL])
def test_what_can_be_cut_is_let_through(name: str, tiny: Callable[[str], Path]) -> None:
    found = self_check(str(tiny(name)))
    assert found.config.num_hidden_layers == 4


FULL_SIZE = [
    transformers.LlamaConfig(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8),
    transformers.Qwen3MoeConfig(num_hidden_layers=94, num_experts=128, num_experts_per_tok=8),
    transformers.Gemma3TextConfig(
        num_hidden_layers=62,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2,
    ),
    transformers.GptOssConfig(num_hidden_layers=36),
    transformers.Qwen3NextConfig(),
    transformers.DeepseekV3Config(),
    transformers.Phi3Config(num_hidden_layers=32, num_key_value_heads=8, num_attention_heads=32),
]


@pytest.mark.parametrize("config", FULL_SIZE, ids=lambda config: config.model_type)
def test_large_models_are_tried_out_small(config: Any) -> None:
    check(config)


REFUSED = {
    "recurrent, in another way": (transformers.MambaConfig(), "mamba"),
    "recurrent and attending": (transformers.JambaConfig(), "jamba"),
    "sharing keys between layers": (transformers.Gemma3nTextConfig(), "gemma3n"),
    "attention past the interface": (transformers.BloomConfig(), "bloom"),
    "attention in chunks": (transformers.Llama4TextConfig(), "llama4"),
    "attention as a difference": (transformers.DiffLlamaConfig(), "diffllama"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cut_is_named(case: str) -> None:
    config, name = REFUSED[case]
    with pytest.raises(UnsupportedArchitecture, match=name) as refusal:
        check(config)
    assert "use a model of another architecture" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_difference_beyond_rounding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tests above: slices that ignore windows must not pass."""
    attend = selfcheck.Batch.attend

    def without_window(batch: Any, layer: int, query: Any, key: Any, value: Any, heads: Heads) -> Any:
        return attend(batch, layer, query, key, value, replace(heads, window=None))

    monkeypatch.setattr(selfcheck.Batch, "attend", without_window)
    check(tiny_config("llama"))
    with pytest.raises(UnsupportedArchitecture, match="gemma3_text"):
        check(tiny_config("gemma3"))


def test_the_check_names_the_class_the_checkpoint_names(tmp_path: Path) -> None:
    fields = {**transformers.JambaConfig().to_dict(), "architectures": ["JambaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UnsupportedArchitecture, match="JambaForCausalLM"):
        self_check(str(tmp_path))


def test_what_opening_a_model_refuses_the_check_refuses(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        self_check(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptModel):
        self_check(str(tmp_path))


def test_shrinking_keeps_kinds_flags_and_head_sizes() -> None:
    config = transformers.Qwen3NextConfig(
        num_hidden_layers=48,
        num_experts=512,
        head_dim=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        attention_bias=True,
    )
    small = shrink(config)
    assert set(small.layer_types) == set(config.layer_types)
    assert small.num_hidden_layers == len(small.layer_types) == 4
    assert (small.head_dim, small.num_attention_heads, small.num_key_value_heads) == (256, 4, 2)
    assert (small.num_experts, small.num_experts_per_tok, small.vocab_size) == (8, 2, 256)
    assert small.rope_parameters == config.rope_parameters
    assert small.attention_bias is True
    assert config.num_experts == 512


def test_shrinking_takes_as_many_layers_as_there_are_kinds() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    small = shrink(transformers.Gemma3TextConfig(num_hidden_layers=24, layer_types=kinds * 4))
    assert small.layer_types == kinds
    assert small.sliding_window == 6


def test_a_fingerprint_is_the_same_each_time_and_tells_models_apart(tiny: Callable[[str], Path]) -> None:
    prints = {name: fingerprint(str(tiny(name))) for name in ("llama", "qwen3", "qwen3_5")}
    assert fingerprint(str(tiny("llama"))) == prints["llama"]
    assert len(set(prints.values())) == 3
    for values in prints.values():
        logits = torch.frombuffer(bytearray(values), dtype=torch.float32)
        assert logits.isfinite().all()
        assert logits.std() > 0.1, "what is all alike would hide a lot"


def test_a_fingerprint_changes_with_how_a_layer_computes(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    before = torch.frombuffer(bytearray(fingerprint(str(tiny("llama")))), dtype=torch.float32)
    monkeypatch.setattr(modeling_llama, "rotate_half", lambda x: x)
    after = torch.frombuffer(bytearray(fingerprint(str(tiny("llama")))), dtype=torch.float32)
    assert (before - after).abs().max() > 1e-2 * before.abs().max()
