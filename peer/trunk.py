"""What a decoder does around its layers (embed, make ready the rotary embeddings, norm) without the library's Python.

For one token the library's own way there takes as long as two layers: masks that nobody needs, outputs that could be
asked for, pass-throughs for the layers of other slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from peer.attention import Current, Rope
from peer.fuse import Call, Unfamiliar
from peer.lean import LeanLayer
from peer.model import Entry, Exit


@dataclass(frozen=True, slots=True)
class Turn:
    """How the decoder makes a rotary embedding: by calling this module on hidden states, positions and perhaps more."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """As in the call that was watched."""

    def rope(self, hidden: torch.Tensor, positions: torch.Tensor) -> Rope:
        def filled(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return hidden if value.is_floating_point() else positions

        args, kwargs = map(filled, self.args), {name: filled(value) for name, value in self.kwargs.items()}
        return Rope.of(self.module(*args, **kwargs))


@dataclass(frozen=True)
class Outline:
    """What surrounds the layers of a slice."""

    embedding: nn.Module | None
    """From ids to what the first layer takes; None where another slice has it."""
    turns: tuple[Turn, ...]
    of_layer: tuple[int, ...]
    """Which of the turns each layer takes."""
    norm: nn.Module | None
    """Of what the last layer gives; None where another slice has it."""
    output: Any
    """The kind of output that the decoder gives and the model around it expects."""

    @classmethod
    def of(cls, around: Sequence[Call], layers: Sequence[Call], *, first: bool, last: bool) -> "Outline":
        """From one forward's calls of the decoder, its own modules before it, and of the slice's layers.

        Raises Unfamiliar.
        """
        turns: dict[int, Turn] = {}
        of_layer = []
        for layer in layers:
            embedding = layer.kwargs.get("position_embeddings")
            call = next((call for call in around if embedding is not None and call.out is embedding), None)
            if call is None:
                raise Unfamiliar("its rotary embeddings are made in another way than by one module")
            turns.setdefault(id(embedding), Turn(call.module, call.args, call.kwargs))
            of_layer.append(list(turns).index(id(embedding)))
        embedding = next((call.module for call in around if first and call.gave is layers[0].given), None)
        norm = next((call.module for call in around if last and call.given is layers[-1].gave), None)
        if (embedding is None) == first or (norm is None) == last:
            raise Unfamiliar("something stands between its layers and its embedding or its last norm")
        return cls(embedding, tuple(turns.values()), tuple(of_layer), norm, type(around[-1].out))


class Trunk:
    """Stands for a decoder's forward."""

    def __init__(
        self, outline: Outline, layers: Sequence[LeanLayer], entry: Entry | None, exit: Exit | None, current: Current
    ) -> None:
        self._outline = outline
        self._layers = tuple(zip(layers, outline.of_layer, strict=True))
        self._entry, self._exit, self._current = entry, exit, current

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> Any:
        """input_ids and position_ids [1, rows]."""
        outline, current = self._outline, self._current
        hidden = outline.embedding(input_ids) if outline.embedding is not None else self._received()
        ropes = [turn.rope(hidden, position_ids) for turn in outline.turns]
        rows = hidden[0]
        for layer, turn in self._layers:
            current.rope = ropes[turn]
            rows = layer.compute(rows)
        hidden = rows[None]
        if self._exit is not None:
            self._exit.kept = hidden
        return outline.output(last_hidden_state=hidden if outline.norm is None else outline.norm(hidden))

    def _received(self) -> torch.Tensor:
        assert self._entry is not None
        assert self._entry.received is not None
        return self._entry.received
