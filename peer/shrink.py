"""Making a config small while the model it describes stays of the same kind.

Head sizes stay, since rotary embeddings and their scaling depend on them. Counts and widths come down, and with them
what only acts at a distance (windows, chunks, top-k selections), so that a short text shows its effect. Fields are told
apart by the words in their names, which the library's configs share.
"""

import copy
from typing import Any

VOCABULARY, HEADS, WINDOW, EXPERTS, INNER, RANK = 256, 4, 6, 8, 64, 32
_FEWEST, _MOST = 4, 12
"""Layers kept: at least, and at most when it takes more to have every kind."""


def shrink(config: Any) -> Any:
    """A copy of `config` with few layers, narrow ones, and the same flags and kinds of layers."""
    layers, heads, hidden = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    few = _few_layers(config)
    width = HEADS * (getattr(config, "head_dim", None) or hidden // heads)
    small = copy.deepcopy(config)
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == layers:
            setattr(small, name, [_changed(name, item, config) for item in (list(value) * few)[:few]])
        elif value == hidden and _is_width(name):
            setattr(small, name, width)
        else:
            setattr(small, name, _changed(name, value, config))
    small.num_hidden_layers, small.hidden_size, small.num_attention_heads = few, width, HEADS
    small.quantization_config = None
    return small


def _few_layers(config: Any) -> int:
    """The fewest layers, from the first on, that hold every kind the model has."""
    layers = config.num_hidden_layers
    kinds = [value for value in vars(config).values() if isinstance(value, list | tuple) and len(value) == layers]
    few = _FEWEST
    while few < min(layers, _MOST) and any(set(map(str, kind[:few])) != set(map(str, kind)) for kind in kinds):
        few += 1
    return few


def _is_width(name: str) -> bool:
    return any(word in name for word in ("dim", "size", "embd", "model", "width"))


def _changed(name: str, value: Any, config: Any) -> Any:
    """What becomes of a field: whole numbers may come down, anything else stays."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value

    def has(*words: str) -> bool:
        return any(word in name for word in words)

    cases = (
        (has("vocab"), VOCABULARY),
        (has("token_id"), VOCABULARY - 1),
        (has("window", "attention_chunk") and not has("layers"), WINDOW),
        (has("topk_group"), 1),
        (name in ("n_group", "num_expert_group"), 2),
        (has("topk", "top_k", "per_tok", "moe_k"), 2),
        (has("shared_experts", "shared_layers"), 2),
        (has("experts"), EXPERTS),
        (has("intermediate", "ffn", "n_inner", "feed_forward", "dff", "dim_ff"), INNER),
        (has("lora_rank"), RANK),
        (has("dense_replace", "dense_layers"), 1),
        (has("linear_num_key_heads"), 2),
        (has("linear_num_value_heads", "linear_num_heads"), HEADS),
        (has("key_value_heads", "kv_heads"), HEADS if value == config.num_attention_heads else 2),
        (has("attention_heads"), HEADS),
    )
    return next((min(value, limit) for applies, limit in cases if applies), value)
