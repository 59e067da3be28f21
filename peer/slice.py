"""A slice: some consecutive layers of a causal language model, ready to compute packed frames."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from peer import loading
from peer.attention import NAME, Current, Run
from peer.errors import UnsupportedArchitecture
from peer.kv import KvLayout, KvShape
from peer.linear import NONE, Quant
from peer.maps import joined
from peer.model import Anatomy, Blank, Entry, Exit, architecture
from peer.probe import Probe
from peer.rebuild import rebuild
from peer.recurrent import find_recurrent, redirect

_TRIES = 5
"""Tokens sent through a slice to find out how quick it is."""

_PROBED = 12
"""Rows of the batch that rebuilt layers are compared on."""


class Slice:
    """Layers [start, end) of a model. The first slice embeds ids; the last one gives logits.

    Not for use by two threads at a time.
    """

    def __init__(
        self, model: Any, start: int, end: int, dtype: torch.dtype, device: torch.device, *, fused: bool = True
    ) -> None:
        """Take a model that `peer.model.cut` has cut. Raises UnsupportedArchitecture.

        fused: rebuild layers of known structure with fewer operations; else the library's own code computes them.
        """
        parts = Anatomy.of(model)
        self.config = model.config
        self.start, self.end, self.count = start, end, parts.count
        self.dtype, self.device = dtype, device
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.config.vocab_size
        self._model = model.eval().requires_grad_(False)
        self._decoder = model.get_submodule(parts.decoder)
        layers = getattr(self._decoder, parts.layers)
        self._entry: Entry | None = layers[start - 1] if start else None
        self._exit: Exit | None = layers[end] if end < parts.count else None
        self._current = Current()
        self._connect([layers[index] for index in range(start, end)])
        self.position_limit = _position_limit(self._decoder, parts)
        self.layout = self._learn_layout()
        self.fused: frozenset[int] = self._rebuild(layers, parts.heads) if fused else frozenset()
        """The layers that were rebuilt."""

    @classmethod
    def load(
        cls,
        source: str,
        start: int,
        end: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        quant: Quant = NONE,
        progress: Callable[[float], None] | None = None,
        fused: bool = True,
    ) -> "Slice":
        """Load layers [start, end) of `source`: a directory or a GGUF file.

        Nothing beyond the slice is read into memory.
        `progress` is called with rising numbers from 0 to 1. Raises a PeerError that says what to do.
        """
        model = loading.load_model(
            source,
            start,
            end,
            dtype=dtype,
            device=device,
            quant=quant,
            progress=progress,
        )
        return cls(model, start, end, dtype, device, fused=fused)

    @property
    def parts(self) -> tuple["Slice", ...]:
        """What there is on each device, as `peer.spread` has it."""
        return (self,)

    @property
    def devices(self) -> str:
        """For people."""
        return str(self.device)

    @property
    def first(self) -> bool:
        return self.start == 0

    @property
    def last(self) -> bool:
        return self.end == self.count

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights held, tied ones once."""
        tensors = {id(tensor): tensor for tensor in (*self._model.parameters(), *self._model.buffers())}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def __repr__(self) -> str:
        size = self.weight_bytes / 1e6
        return f"<Slice {architecture(self.config)} layers {self.start}-{self.end - 1} of {self.count}, {size:.0f} MB>"

    def forward(
        self, run: Run, ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor | None
    ) -> torch.Tensor:
        """ids and positions [rows], hidden [rows, width] unless this is the first slice -> hidden states [rows, width].

        Of the last slice they are what the head takes, after the final norm.
        """
        with self._running(run, hidden):
            out = self._decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False)
            states = out.last_hidden_state if self._exit is None else self._exit.kept
            return cast(torch.Tensor, states)[0]

    def logits(
        self, run: Run, ids: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor | None, rows: torch.Tensor
    ) -> torch.Tensor:
        """Like `forward` on the last slice, and then the head on `rows` only -> float32 [len(rows), vocabulary].

        The model's own forward applies the head, so that what belongs to it (scaled or capped logits) is applied too.
        """
        with self._running(run, hidden):
            out = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows)
            return cast(torch.Tensor, out.logits)[0].float()

    @torch.inference_mode()
    def layer_seconds(self) -> float:
        """Seconds that a layer takes for one token without context, the quickest of a few tries."""
        token = torch.zeros(1, dtype=torch.long, device=self.device)
        hidden = None if self.first else torch.zeros(1, self.hidden_size, dtype=self.dtype, device=self.device)
        took = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            self.forward(Probe(), token, token, hidden).cpu()  # which waits for the device
            took.append(time.perf_counter() - began)
        return min(took) / (self.end - self.start)

    @contextmanager
    def _running(self, run: Run, hidden: torch.Tensor | None) -> Iterator[None]:
        self._current.run = run
        if self._entry is not None and hidden is not None:
            self._entry.received = hidden[None]
        try:
            yield
        finally:
            self._current.clear()
            if self._entry is not None:
                self._entry.received = None
            if self._exit is not None:
                self._exit.kept = None

    def _connect(self, layers: list[nn.Module]) -> None:
        """Let the layers call this slice's run for attention and recurrence."""
        for module in self._model.modules():
            config = getattr(module, "config", None)
            if config is not None and hasattr(config, "_attn_implementation"):
                config._attn_implementation = NAME
            if isinstance(module, Blank):
                module.zero = torch.zeros((), dtype=self.dtype, device=self.device)
        for layer in layers:
            for module in layer.modules():
                if hasattr(module, "layer_idx"):
                    vars(module)["pooled"] = self._current
            for recurrent in find_recurrent(layer):
                redirect(recurrent, self._current)

    @torch.inference_mode()
    def _rebuild(self, layers: nn.ModuleList, heads: tuple[str, ...]) -> frozenset[int]:
        self._rebuild_heads(heads)
        ids = torch.arange(_PROBED, device=self.device) % self.vocab_size
        noise = torch.randn(_PROBED, self.hidden_size, generator=torch.Generator().manual_seed(0))
        hidden = None if self.first else noise.to(self.device, self.dtype)

        def probe() -> torch.Tensor:
            # Positions as of several segments in one frame.
            return self.forward(Probe(), ids, ids.flip(0) * 3, hidden)

        ends = (self._entry, self._exit)
        return rebuild(self._decoder, layers, range(self.start, self.end), ends, self._current, probe)

    def _rebuild_heads(self, names: tuple[str, ...]) -> None:
        embedding = self._decoder.get_input_embeddings()
        for name in names:
            if type(head := getattr(self._model, name)) is nn.Linear:
                tied = head.weight is getattr(embedding, "weight", None)
                setattr(self._model, name, joined(head, shared=tied and self.first))
                if tied and not self.first:
                    # The head may hold them in another form now, and nothing is embedded here.
                    self._decoder.set_input_embeddings(self._blank())

    def _blank(self) -> Blank:
        blank = Blank(self.hidden_size)
        blank.zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return blank

    @torch.inference_mode()
    def _learn_layout(self) -> KvLayout:
        """Send one token through and see what each layer would keep of it."""
        probe = Probe()
        token = torch.zeros(1, dtype=torch.long, device=self.device)
        hidden = None if self.first else torch.zeros(1, self.hidden_size, dtype=self.dtype, device=self.device)
        self.forward(probe, token, token, hidden)
        stateless = set(range(self.start, self.end)) - probe.attended.keys() - probe.recurrent.keys()
        if stateless:
            raise UnsupportedArchitecture(
                f"{architecture(self.config)} keeps what it remembers in layer {min(stateless)} in a way that cannot "
                "be pooled; use a model of another architecture"
            )
        attention = {
            layer: KvShape(seen.key.shape[1], seen.key.shape[2], seen.value.shape[2])
            for layer, seen in probe.attended.items()
        }
        return KvLayout(attention, probe.recurrent)


def _position_limit(decoder: Any, parts: Anatomy) -> int | None:
    """How many positions the slice can serve whatever else is in a frame; None: no such limit."""
    limits: list[int] = []
    for name in parts.front:
        child = getattr(decoder, name)
        if name != parts.embedding and isinstance(child, nn.Embedding):
            limits.append(child.num_embeddings)
    # These rotary embeddings change with the longest session in a batch, and would change what was cached for others.
    rope = getattr(decoder.config, "rope_parameters", None) or {}
    for variant in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        kind = str(variant.get("rope_type", ""))
        if kind == "longrope":
            original = variant.get("original_max_position_embeddings")
            limits.append(original or decoder.config.original_max_position_embeddings)
        elif "dynamic" in kind:
            limits.append(decoder.config.max_position_embeddings)
    return min(limits, default=None)
