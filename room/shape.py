"""The sizes of a model that the room plans with, from its config and its tensors' names and shapes."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from room.headers import TensorInfo, Tensors
from room.model_errors import UnsupportedModel, UnusableWeights


@dataclass(frozen=True)
class ModelShape:
    """The text model alone, also of a checkpoint that sees or hears besides."""

    architecture: str
    """Its model type as transformers names it, such as "llama"."""
    layers: int
    hidden_size: int
    vocab_size: int
    ctx: int
    """Tokens of context it was made for."""
    tied: bool
    """The output projection is the embedding."""
    layer_params: tuple[int, ...]
    """Parameters of each layer."""
    layer_matrices: tuple[int, ...]
    """Of these, those of plain matrices, which can be kept in fewer bits."""
    embed_params: int
    head_params: int
    """Of what follows the last layer: the norm, and the output projection where it is not tied."""
    kv_per_token: tuple[int, ...]
    """Elements of K and V together that each layer keeps per position; 0 where it keeps a state instead."""
    kv_heads: tuple[int, ...]
    """Heads whose keys and values each layer keeps; 0 where it keeps a state instead."""
    state_elements: tuple[int, ...]
    """Elements of the recurrent state that each layer keeps per slot; 0 for attention layers."""

    @property
    def params(self) -> int:
        return sum(self.layer_params) + self.embed_params + self.head_params

    @property
    def hybrid(self) -> bool:
        """Some layers keep a recurrent state."""
        return any(self.state_elements)

    # Deals are searched by the sizes of very many slices: each is the difference of two of these sums.

    @cached_property
    def params_before(self) -> list[int]:
        """Of the layers before each one, and of all layers."""
        return list(accumulate(self.layer_params, initial=0))

    @cached_property
    def matrices_before(self) -> list[int]:
        return list(accumulate(self.layer_matrices, initial=0))

    @cached_property
    def kv_before(self) -> list[int]:
        return list(accumulate(self.kv_per_token, initial=0))

    @cached_property
    def kv_heads_before(self) -> list[int]:
        return list(accumulate(self.kv_heads, initial=0))

    @cached_property
    def states_before(self) -> list[int]:
        return list(accumulate(self.state_elements, initial=0))


def shape_of(config: Any, tensors: Tensors) -> ModelShape:
    """The shape of the text model in `config` (a transformers config) whose checkpoint holds `tensors`.

    Raises UnsupportedModel for layers that neither attend nor are gated delta-nets, UnusableWeights when the tensors
    are not those of all layers.
    """
    text = config.get_text_config(decoder=True)
    sizes = {name: info.elements * _values_per_element(info, config) for name, info in tensors.items()}
    layer_params, rest = _split(sizes, text.num_hidden_layers, text.model_type)
    plain = {name: size if _is_plain_matrix(name, tensors[name]) else 0 for name, size in sizes.items()}
    output = {name for name in rest if _OUTPUT.search(name)}
    tied = not output or all(getattr(part, "tie_word_embeddings", True) for part in (text, config))
    embed = {name for name in rest if _EMBEDDING.search(name)} - output
    head = set(rest) - embed - (output if tied else set())
    kept = [_kept(layer, kind, text.model_type) for layer, kind in _layer_configs(text)]
    return ModelShape(
        architecture=text.model_type,
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        ctx=_context(text),
        tied=tied,
        layer_params=layer_params,
        layer_matrices=_split(plain, text.num_hidden_layers, text.model_type)[0],
        embed_params=sum(sizes[name] for name in embed),
        head_params=sum(sizes[name] for name in head),
        kv_per_token=tuple(kv for kv, _, _ in kept),
        kv_heads=tuple(heads for _, heads, _ in kept),
        state_elements=tuple(state for _, _, state in kept),
    )


# ---------------------------------------------------------------- parameters

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|blk|h)\.(?=(\d+)\.)")
_OUTPUT = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.")
_EMBEDDING = re.compile(r"emb|wte|wpe")


def _split(sizes: dict[str, int], layers: int, architecture: str) -> tuple[tuple[int, ...], list[str]]:
    """Parameters of each layer, and the names of the text model's other tensors."""
    stacks: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for name, size in sizes.items():
        if found := _LAYER.search(name):
            stacks[name[: found.end()]][int(found[1])] += size
    whole = {prefix: stack for prefix, stack in stacks.items() if stack.keys() >= set(range(layers))}
    if not whole:
        raise UnusableWeights(
            f"the weights do not hold the {layers} layers that the config of this {architecture} model tells of; "
            "is the download complete?"
        )
    # A vision or audio tower may have as many layers; multimodal layouts call the text part language_model.
    prefix = max(whole, key=lambda name: ("language_model" in name or "text" in name, sum(whole[name].values())))
    outer = prefix[:-1].rpartition(".")[0]
    base = outer + "." if outer else ""
    rest = [name for name in sizes if not _LAYER.search(name) and _is_beside_layers(name, base)]
    return tuple(whole[prefix][at] for at in range(layers)), rest


def _is_plain_matrix(name: str, info: TensorInfo) -> bool:
    """The weights of a linear map of its own; experts are fused when they are loaded."""
    return len(info.shape) == 2 and name.endswith(".weight") and "expert" not in name and "_exps" not in name


def _is_beside_layers(name: str, base: str) -> bool:
    """A tensor of the text model itself, not of a part of its own such as a vision tower."""
    inside = name.startswith(base) and name.removeprefix(base).count(".") <= 1
    return inside or bool(_OUTPUT.search(name))


def _values_per_element(info: TensorInfo, config: Any) -> int:
    """How many weights one stored element packs: checkpoints quantized to 4 bits keep several in an integer."""
    quantization = getattr(config, "quantization_config", None)
    widths = {"U8": 8, "I32": 32}
    if not quantization or info.dtype not in widths:
        return 1
    bits = quantization.get("bits", 4) if isinstance(quantization, dict) else 4
    return max(widths[info.dtype] // int(bits), 1)


# ---------------------------------------------------------------- what layers keep


def _layer_configs(text: Any) -> Iterable[tuple[Any, str]]:
    """Each layer's own config and its kind."""
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return ((text.per_layer_config[at], kind) for at, kind in enumerate(kinds))


def _kept(layer: Any, kind: str, architecture: str) -> tuple[int, int, int]:
    """Elements of K and V per position, their heads, and elements of the recurrent state, that a layer keeps."""
    if kind == "linear_attention" and getattr(layer, "linear_num_value_heads", None):
        keys = layer.linear_num_key_heads * layer.linear_key_head_dim
        values = layer.linear_num_value_heads * layer.linear_value_head_dim
        return 0, 0, values * layer.linear_key_head_dim + (2 * keys + values) * layer.linear_conv_kernel_dim
    if "attention" not in kind or kind == "linear_attention" or not getattr(layer, "num_attention_heads", None):
        raise UnsupportedModel(
            f"a {architecture} model has {kind} layers, which Pooled cannot deal out; choose another"
        )
    grouped = getattr(layer, "num_key_value_heads", None) or getattr(layer, "num_kv_heads", None)
    heads = grouped or layer.num_attention_heads
    plain = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
    # Latent attention (MLA) is kept unpacked: keys of two parts, values of their own width.
    key = (getattr(layer, "qk_nope_head_dim", None) or 0) + (getattr(layer, "qk_rope_head_dim", None) or 0) or plain
    return heads * (key + (getattr(layer, "v_head_dim", None) or plain)), heads, 0


def _context(text: Any) -> int:
    for name in ("max_position_embeddings", "seq_length", "max_seq_len"):
        if (value := getattr(text, name, None)) and value > 0:
            return int(value)
    raise UnsupportedModel(f"the config of this {text.model_type} model does not tell its context length")
