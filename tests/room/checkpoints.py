"""Model directories made without torch: weights are zeros, only their headers matter."""

import json
from math import prod
from pathlib import Path
from typing import Any

from tests.tiny_model import save_tiny_tokenizer

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}

Shapes = dict[str, tuple[int, ...]]


def llama_tensors(prefix: str = "model.", layers: int = 2) -> Shapes:
    """Weights of LLAMA."""
    per_layer: Shapes = {
        "self_attn.q_proj.weight": (32, 32),
        "self_attn.k_proj.weight": (16, 32),
        "self_attn.v_proj.weight": (16, 32),
        "self_attn.o_proj.weight": (32, 32),
        "mlp.gate_proj.weight": (48, 32),
        "mlp.up_proj.weight": (48, 32),
        "mlp.down_proj.weight": (32, 48),
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
    }
    return {
        f"{prefix}embed_tokens.weight": (320, 32),
        **{f"{prefix}layers.{at}.{name}": shape for at in range(layers) for name, shape in per_layer.items()},
        f"{prefix}norm.weight": (32,),
        "lm_head.weight": (320, 32),
    }


LAYER_PARAMS = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32


def safetensors_bytes(tensors: Shapes, dtype: str = "F32", size: int = 4) -> bytes:
    header, at = {}, 0
    for name, shape in tensors.items():
        end = at + prod(shape) * size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


def save_checkpoint(
    directory: Path, tensors: Shapes | None = None, *, tokenizer: bool = True, dtype: str = "F32", **config: Any
) -> Path:
    """A directory as hubs hold them; `config` replaces fields of LLAMA, None leaves one out."""
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer:
        save_tiny_tokenizer(directory)
    fields = {name: value for name, value in {**LLAMA, **config}.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(fields))
    content = safetensors_bytes(llama_tensors() if tensors is None else tensors, dtype)
    (directory / "model.safetensors").write_bytes(content)
    return directory


def split_checkpoint(directory: Path) -> list[Path]:
    """Turn a directory's weights into two shards with an index."""
    tensors = list(llama_tensors().items())
    shards = {"model-00001-of-00002.safetensors": tensors[:8], "model-00002-of-00002.safetensors": tensors[8:]}
    for name, part in shards.items():
        (directory / name).write_bytes(safetensors_bytes(dict(part)))
    weight_map = {tensor: name for name, part in shards.items() for tensor, _ in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "model.safetensors").unlink()
    return [directory / name for name in shards]
