"""The model: its shape, its first weights, and a fast way to compute it for training."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from scripts.wren.tokenizer import CONTEXT

THETA = 1_000_000.0


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=True,
        initializer_range=0.05,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=pad,
    )
    model = Qwen3ForCausalLM(config)
    _start_with_copying(model)
    return model


@torch.no_grad()
def _start_with_copying(model: Qwen3ForCausalLM) -> None:
    """Lay down by hand what such a model must find first, so that minutes of training suffice.

    Feature 0 of the residual stream is constant. Heads of layer 0 look one token back and write that token's
    embedding (features 1..63) to features 65..127. Heads of layer 2 look for places whose predecessor was the current
    token, and write what stands there. Training is free to change all of it, and does.
    """
    half = model.config.hidden_size // 2
    table = model.model.embed_tokens.weight
    table.zero_()
    table[:, 1:half].normal_(std=0.3)
    table[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        # Sharper attention than the usual 1.0: copying looks at single places.
        layer.self_attn.q_norm.weight.fill_(1.5)
        layer.self_attn.k_norm.weight.fill_(1.5)
    size = table.square().mean(-1).sqrt().mean()
    _look_back(model.model.layers[0].self_attn, size)
    _look_for_same(model.model.layers[2].self_attn, size)


def _first_heads(mix: Qwen3Attention) -> Iterator[tuple[slice, slice, slice]]:
    """For each group of heads with shared keys: the rows of its first query head, of its keys, and its features."""
    width, group = mix.head_dim, mix.num_key_value_groups
    for at in range(mix.config.num_key_value_heads):
        yield (
            slice(at * group * width, (at * group + 1) * width),
            slice(at * width, (at + 1) * width),
            slice(1 + at * width, min(1 + (at + 1) * width, mix.config.hidden_size // 2)),
        )


def _look_back(mix: Qwen3Attention, size: Tensor) -> None:
    half = mix.head_dim // 2
    # The fastest rotations tell neighbours apart; the query's phase puts the best match one step back.
    fast = torch.arange(4)
    angle = THETA ** (-fast / half)
    for query, key, features in _first_heads(mix):
        q, k = mix.q_proj.weight[query], mix.k_proj.weight[key]
        q.zero_()
        k.zero_()
        q[fast, 0], q[fast + half, 0], k[fast, 0] = angle.cos(), -angle.sin(), 1.0
        _carry(mix, query, key, features, mix.config.hidden_size // 2, size)
    mix.q_norm.weight.fill_(3.0)
    mix.k_norm.weight.fill_(3.0)


def _look_for_same(mix: Qwen3Attention, size: Tensor) -> None:
    half, middle = mix.head_dim // 2, mix.config.hidden_size // 2
    # The slowest rotations hardly depend on the distance, so that they can compare contents.
    slow = torch.cat((torch.arange(half - 8, half), torch.arange(mix.head_dim - 8, mix.head_dim)))
    for query, key, features in _first_heads(mix):
        q, k = mix.q_proj.weight[query], mix.k_proj.weight[key]
        view = torch.randn(len(slow), middle - 1) * 0.3
        q.mul_(0.1)
        k.mul_(0.1)
        q[slow, 1:middle], k[slow, middle + 1 :] = view, view
        _carry(mix, query, key, features, 0, size * 2)
    mix.q_norm.weight.fill_(2.5)
    mix.k_norm.weight.fill_(2.5)


def _carry(mix: Qwen3Attention, head: slice, shared: slice, features: slice, shift: int, gain: Tensor) -> None:
    """Let a head take `features` to the features `shift` further on."""
    eye = torch.eye(features.stop - features.start)
    value = mix.v_proj.weight[shared]
    value.zero_()
    value[: len(eye), features] = eye
    target = slice(features.start + shift, features.stop + shift)
    mix.o_proj.weight[target, head.start : head.start + len(eye)] = eye * gain


def logits(model: Qwen3ForCausalLM, ids: Tensor, places: Tensor) -> Tensor:
    """What the model predicts at `places` (a mask over `ids` [B, T]): [places, vocab].

    The library's own computation in bfloat16, with fewer operations; on a CPU that is twice as fast.
    """
    config, half = model.config, torch.bfloat16
    width, eps = config.head_dim, config.rms_norm_eps
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    rows, length = ids.shape
    angles = torch.arange(length)[:, None] / THETA ** (torch.arange(0, width, 2) / width)
    turn = torch.cat((angles.cos(), angles.cos()), -1).to(half), torch.cat((-angles.sin(), angles.sin()), -1).to(half)
    future = torch.full((length, length), -math.inf, dtype=half).triu(1)

    def headed(x: Tensor, scale: Tensor) -> Tensor:
        x = functional.rms_norm(x, (width,), scale.to(half), eps)
        return x * turn[0] + x.roll(width // 2, -1) * turn[1]

    x = functional.embedding(ids, model.model.embed_tokens.weight)
    for layer in model.model.layers:
        mix, mlp = layer.self_attn, layer.mlp
        h = functional.rms_norm(x, x.shape[-1:], layer.input_layernorm.weight, eps).to(half)
        weight = torch.cat((mix.q_proj.weight, mix.k_proj.weight, mix.v_proj.weight)).to(half)
        q, k, v = (h @ weight.T).view(rows, length, -1, width).transpose(1, 2).split((heads, shared, shared), 1)  # type: ignore[no-untyped-call]
        q, k = headed(q, mix.q_norm.weight), headed(k, mix.k_norm.weight)
        scores = (q.reshape(rows, shared, -1, width) @ k.transpose(-1, -2)).view(rows, heads, length, length)
        share = (scores * width**-0.5 + future).softmax(-1).view(rows, shared, -1, length)
        h = (share @ v).view(rows, heads, length, width).transpose(1, 2).reshape(rows, length, -1)
        x = x + h @ mix.o_proj.weight.to(half).T
        h = functional.rms_norm(x, x.shape[-1:], layer.post_attention_layernorm.weight, eps).to(half)
        gate, up = (h @ torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).to(half).T).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ mlp.down_proj.weight.to(half).T
    x = functional.rms_norm(x[places], x.shape[-1:], model.model.norm.weight, eps)
    found: Tensor = x.to(half) @ model.model.embed_tokens.weight.to(half).T
    return found
