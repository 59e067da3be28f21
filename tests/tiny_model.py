"""Tiny random models, saved as Hugging Face checkpoints: every architecture the slice engine promises to run.

    save_tiny("qwen3", directory)                      # weights and config; no tokenizer
    save_tiny("llama", directory, num_hidden_layers=6)  # config fields can be overridden
    save_tiny_chat(directory)                          # a tiny Llama with a real tokenizer and a ChatML template
    save_tiny_tokenizer(directory)                     # only the tokenizer: needs no torch

The same arguments always give the same bytes.
"""

from pathlib import Path
from typing import Any

import transformers

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_BASE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# One of the two kinds of layers in each half, so that every cut separates layers of both kinds.
_HYBRID: dict[str, Any] = {**_DELTA_NET, "layer_types": ["linear_attention", "full_attention"] * 2}
_WINDOW: dict[str, Any] = {
    "sliding_window": 6,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

Fields = dict[str, Any]

TINY: dict[str, tuple[str, Fields]] = {
    "llama": ("LlamaConfig", {**_BASE, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", _BASE),
    "qwen3": ("Qwen3Config", _BASE),
    "qwen3_moe": ("Qwen3MoeConfig", {**_BASE, **_EXPERTS}),
    "gemma2": ("Gemma2Config", {**_BASE, **_WINDOW}),
    "gemma3": ("Gemma3TextConfig", {**_BASE, **_WINDOW}),
    "gpt_oss": ("GptOssConfig", {**_BASE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}),
    "granite": (
        "GraniteConfig",
        {
            **_BASE,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "attention_multiplier": 0.05,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": 256,
            "n_embd": 64,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    "qwen3_next": ("Qwen3NextConfig", {**_BASE, **_EXPERTS, **_HYBRID, "shared_expert_intermediate_size": 32}),
    "qwen3_5": ("Qwen3_5TextConfig", {**_BASE, **_HYBRID}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {**_BASE, **_EXPERTS, **_HYBRID, "shared_expert_intermediate_size": 32}),
}
"""Name -> (config class of transformers, its fields). Text-only checkpoints."""

MULTIMODAL: dict[str, tuple[str, str, Fields, Fields]] = {
    "qwen3_5_vl": (
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
        {**_BASE, **_HYBRID},
        {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
        },
    ),
    "gemma3_vl": (
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {**_BASE, **_WINDOW},
        {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    ),
}
"""Checkpoints in multimodal layout: name -> (config class, model class, text fields, vision fields)."""


def tiny_config(name: str, **overrides: Any) -> Any:
    """The config of the tiny model `name` (a key of TINY or MULTIMODAL); `overrides` replace (text) fields."""
    if name in MULTIMODAL:
        config_class, _, text, vision = MULTIMODAL[name]
        return getattr(transformers, config_class)(text_config={**text, **overrides}, vision_config=dict(vision))
    config_class, fields = TINY[name]
    return getattr(transformers, config_class)(**{**fields, **overrides})


def tiny_model(name: str, *, seed: int = 0, **overrides: Any) -> Any:
    """A tiny random model in float32, in eval mode, with logits far enough apart to compare."""
    import torch

    config = tiny_config(name, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in MULTIMODAL:
            model = getattr(transformers, MULTIMODAL[name][1])(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _liven(model)
    return model.eval()


def save_tiny(
    name: str,
    directory: str | Path,
    *,
    seed: int = 0,
    max_shard_size: str = "50GB",
    **overrides: Any,
) -> Path:
    """Save the tiny model `name` into `directory` (made if need be) and return it as a Path.

    A small `max_shard_size` ("100KB") splits the weights over several files with an index.
    """
    directory = Path(directory)
    tiny_model(name, seed=seed, **overrides).save_pretrained(directory, max_shard_size=max_shard_size)
    return directory


def save_tiny_tokenizer(directory: str | Path, *, template: str = CHAT_TEMPLATE, ctx: int = 512) -> Any:
    """Save a small byte-level BPE tokenizer with ChatML's special tokens and return it.

    Every byte is a token, so any text can be encoded and most characters beyond ASCII take several tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=IM_START,
        eos_token=IM_END,
        pad_token=IM_END,
        unk_token=END_OF_TEXT,
        model_max_length=ctx,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    fast.save_pretrained(directory)
    return fast


def save_tiny_chat(
    directory: str | Path,
    layers: int = 4,
    ctx: int = 512,
    *,
    seed: int = 0,
    template: str = CHAT_TEMPLATE,
    **overrides: Any,
) -> Path:
    """Save a tiny random Llama that can be chatted with: weights, tokenizer, ChatML template, generation_config.

    Its end-of-turn token is <|im_end|>. `overrides` are fields of LlamaConfig.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = save_tiny_tokenizer(directory, template=template, ctx=ctx)
    fields: Fields = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": layers,
        "max_position_embeddings": ctx,
        "tie_word_embeddings": False,  # tied, a random model repeats one token for ever
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **overrides,
    }
    return save_tiny("llama", directory, seed=seed, **fields)


_CORPUS = [
    "the room and the peers and the bridge answer one question",
    "user\nassistant\nsystem\n",
    "what is the answer to the question",
    "one two three four five six seven eight nine ten",
    '{"name": "value", "list": [1, 2, 3], "true": false}',
]


def _liven(model: Any) -> None:
    """Make an initialised model tell its inputs apart: fresh weights are so small that all logits look alike,
    and norms of exactly one or biases of exactly zero would hide one that was not loaded."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
