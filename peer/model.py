"""Cutting a model of the transformers library down to some of its layers, whatever its class.

The whole model is described to torch without memory (on the meta device), everything outside the slice is replaced by
modules that hold no weights, and the library's own loader then reads only what is left. What belongs where is found by
structure: the decoder's list of layers, what comes before it, and what comes after.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from peer.errors import UnsupportedArchitecture


def architecture(config: Any) -> str:
    """How the architecture is called, for messages: the class named by the checkpoint, else the model type."""
    named = getattr(config, "architectures", None)
    return str(named[0]) if named else str(getattr(config, "model_type", "unknown"))


class StandIn(nn.Module):
    """Stands in a decoder where another module was."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        # Decoders read plain attributes of their layers, such as which kind of attention a layer has.
        for name, value in vars(replaced).items():
            if not name.startswith("_") and isinstance(value, str | int | float):
                setattr(self, name, value)


class PassThrough(StandIn):
    """Stands where a module of another slice would be: what goes in comes out."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


class Entry(PassThrough):
    """Stands just before the slice's first layer and lets in the hidden states that came from the peer before.

    They are not given to the decoder as input embeddings: some decoders scale those, add positions or normalise them.
    """

    received: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        assert self.received is not None
        return self.received


class Exit(PassThrough):
    """Stands just after the slice's last layer and keeps what comes out, before any final norm."""

    kept: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.kept = hidden_states
        return hidden_states


class Blank(nn.Module):
    """Stands for an embedding that another slice holds. What it gives out is never used: an Entry follows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.zero = torch.zeros(())

    def forward(self, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.zero.expand(*ids.shape, self.width)


@dataclass(frozen=True)
class Anatomy:
    """Where a causal language model keeps its parts; names are attribute paths as in a state dict."""

    decoder: str
    """From the model to the decoder; "" when the model is its own decoder."""
    layers: str
    """From the decoder to its list of layers."""
    count: int
    """How many layers the whole model has."""
    front: tuple[str, ...]
    """The decoder's children that feed the first layer."""
    tail: tuple[str, ...]
    """The decoder's children that take the last layer's output."""
    embedding: str
    """The one of `front` that turns ids into hidden states."""
    heads: tuple[str, ...]
    """The model's children beside the decoder: what turns hidden states into logits."""

    @classmethod
    def of(cls, model: Any) -> "Anatomy":
        """Find the parts. Raises UnsupportedArchitecture."""
        decoder = model.get_decoder()
        path = next(name for name, module in model.named_modules() if module is decoder)
        names = [name for name, _ in decoder.named_children()]
        count = decoder.config.num_hidden_layers
        layers = next(
            (n for n in names if isinstance(m := getattr(decoder, n), nn.ModuleList) and len(m) == count), None
        )
        embedding = next((n for n in names if getattr(decoder, n) is decoder.get_input_embeddings()), None)
        if layers is None or embedding is None:
            raise UnsupportedArchitecture(
                f"{architecture(model.config)} keeps its layers in a way that cannot be cut into slices; "
                "use a model of another architecture"
            )
        at = names.index(layers)
        weighty = {name for name, child in decoder.named_children() if next(child.parameters(), None) is not None}
        return cls(
            decoder=path,
            layers=layers,
            count=count,
            front=tuple(n for n in names[:at] if n in weighty),
            tail=tuple(n for n in names[at + 1 :] if n in weighty),
            embedding=embedding,
            heads=tuple(n for n, _ in model.named_children() if n != path.split(".")[0]) if path else (),
        )


def cut(model: Any, start: int, end: int) -> None:
    """Replace everything outside layers [start, end) in place. Tied embeddings stay where the head needs them."""
    parts = Anatomy.of(model)
    decoder = model.get_submodule(parts.decoder)
    layers = getattr(decoder, parts.layers)
    for index, layer in enumerate(layers):
        if not start <= index < end:
            layers[index] = {start - 1: Entry, end: Exit}.get(index, PassThrough)(layer)
    first, last = start == 0, end == parts.count
    if not first:
        tied = last and getattr(model.config, "tie_word_embeddings", False)
        for name in parts.front:
            if not (tied and name == parts.embedding):
                setattr(decoder, name, Blank(decoder.config.hidden_size))
    if not last:
        for name in parts.tail:
            setattr(decoder, name, PassThrough(getattr(decoder, name)))
        for name in parts.heads:
            setattr(model, name, PassThrough(getattr(model, name)))
        # The loader looks up both ends of each tie, and the head is gone.
        model.all_tied_weights_keys = {}


def sliced(base: type, start: int, end: int) -> type:
    """A subclass of `base` whose instances are made with layers [start, end) only."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, config, *args, **kwargs)  # type: ignore[misc]
        cut(self, start, end)

    # The loader finds an architecture's weight conversions by the class's name and module.
    body = {"__init__": __init__, "__module__": base.__module__, "_keys_to_ignore_on_load_unexpected": [r".*"]}
    return type(base.__name__, (base,), body)


def forget_embedding(model: Any, parts: Anatomy) -> None:
    """Free the embedding of a slice that does not begin with it, and whose head has weights of its own."""
    decoder = model.get_submodule(parts.decoder)
    setattr(decoder, parts.embedding, Blank(decoder.config.hidden_size))


def graft(model: Any, later: Any, start: int, end: int) -> None:
    """Move layers [start, end) of `later` into `model`, which ends where they start, and what follows the last layer.

    Both are cut from the same whole. A head that shares the embedding's weights shares those of `model`, if it has any.
    """
    parts = Anatomy.of(later)
    decoder, source = model.get_submodule(parts.decoder), later.get_submodule(parts.decoder)
    layers, taken = getattr(decoder, parts.layers), getattr(source, parts.layers)
    for index in range(start, min(end + 1, parts.count)):
        layers[index] = taken[index]
    if end == parts.count:
        embedding, lost = decoder.get_input_embeddings(), source.get_input_embeddings()
        for name in parts.tail:
            setattr(decoder, name, getattr(source, name))
        for name in parts.heads:
            head = getattr(later, name)
            if isinstance(embedding, nn.Embedding) and getattr(head, "weight", None) is getattr(lost, "weight", head):
                head.weight = embedding.weight
            setattr(model, name, head)
