"""Rebuilding the library's decoder layers as lean ones, without knowing any architecture.

A layer is watched while it computes: which parts it calls, on what, and what becomes of the outcome tell its structure.
The rebuilt layer then has to give what the library's gave; a layer that does not, or whose structure is unknown, stays
as it is.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.utils import ModelOutput

from peer.attention import Current
from peer.errors import PeerError
from peer.lean import Attention, Branch, GatedMlp, LeanLayer, Norm, Part, Whole
from peer.linear import PLAIN, PackedLinear
from peer.probe import Attended, Probe

CLOSE = 8
"""Largest difference, relative to the outcome and in units of the dtype's precision, that counts as rounding."""
SUMMED = 32
"""The same in units of float32's, in which products are summed up: kernels do so in different orders."""


class Unfamiliar(PeerError):
    """A layer that the library's own code has to compute."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a module. Of several tensors in or out, the first."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @property
    def gave(self) -> torch.Tensor:
        first: torch.Tensor = _first(self.out)
        return first

    @property
    def given(self) -> torch.Tensor:
        return next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, torch.Tensor))


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, tuple | ModelOutput) else out


@contextmanager
def watching(modules: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """The calls of `modules` in the block, in the order they end."""
    calls: list[Call] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if isinstance(_first(out), torch.Tensor):
            calls.append(Call(module, args, kwargs, out))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def fuse(call: Call, current: Current) -> LeanLayer:
    """The layer of `call`, rebuilt and compared with what the call gave. Raises Unfamiliar."""
    if "position_embeddings" not in call.kwargs:
        raise Unfamiliar("it gets no rotary embedding")
    try:
        lean = _rebuilt(call, current)
        found = lean(*call.args, **call.kwargs)
    except Unfamiliar:
        raise
    except Exception as error:
        # Whatever a layer does that was not foreseen here, the library's own code still does it.
        raise Unfamiliar(f"rebuilding it ended in a {type(error).__name__}") from error
    # Packed weights are multiplied in bfloat16, which passes a last digit of its input on as one of its own.
    packed = any(isinstance(module, PackedLinear) for module in call.module.modules())
    if not close(found, call.gave, torch.bfloat16 if packed else found.dtype):
        raise Unfamiliar("rebuilt, it gives other numbers")
    return lean


def _rebuilt(call: Call, current: Current) -> LeanLayer:
    layer, probe = call.module, Probe()
    current.run = probe
    with watching(module for module in layer.modules() if module is not layer) as calls:
        layer(*call.args, **call.kwargs)
    return LeanLayer(layer, _branches(layer, call, calls, probe, current), current)


def _branches(layer: nn.Module, call: Call, calls: list[Call], probe: Probe, current: Current) -> list[Branch]:
    """The layer's parts as branches: each branch begins with the sum that the branches before it left."""
    children = set(layer.children())
    waiting = [part for part in calls if part.module in children]
    branches, hidden = [], call.given
    while waiting:
        chain = [waiting.pop(0)]
        if chain[0].given is not hidden:
            raise Unfamiliar("its parts do not follow each other")
        while waiting and waiting[0].given is chain[-1].gave:
            chain.append(waiting.pop(0))
        after = waiting[0].given if waiting else call.gave
        parts = [_part(part, calls, probe, current) for part in chain]
        branches.append(Branch(parts, _scale(layer, hidden, chain[-1].gave, after)))
        hidden = after
    return branches


def _scale(layer: nn.Module, before: torch.Tensor, added: torch.Tensor, after: torch.Tensor) -> float:
    """What a branch is multiplied with before it is added: 1, or a number that the layer keeps."""
    numbers = [1.0, *(value for value in vars(layer).values() if isinstance(value, float))]
    for number in numbers:
        if close(torch.add(before, added, alpha=number), after):
            return number
    raise Unfamiliar("its parts are put together in another way than by adding")


def _part(call: Call, calls: list[Call], probe: Probe, current: Current) -> Part:
    inner = set(call.module.modules()) - {call.module}
    within = [other for other in calls if other.module in inner]
    if hasattr(call.module, "layer_idx"):
        return _attention(call, within, probe, current)
    return _norm(call) or _gated_mlp(call, within) or Whole(call.module)


def _norm(call: Call) -> Norm | None:
    """An RMS norm, whatever it is called: one vector of weights, used as they are or as what is added to one."""
    module = call.module
    parameters = list(module.parameters())
    if len(parameters) != 1 or parameters[0].shape != call.given.shape[-1:]:
        return None
    # So small that the number which keeps the root from zero shows.
    small = call.given / call.given.abs().max() * 1e-3
    expected = module(small)
    for eps in (value for value in vars(module).values() if isinstance(value, float)):
        for weight in (parameters[0].data, parameters[0].data + 1):
            norm = Norm(weight, eps)
            if close(norm(small), expected):
                return norm
    return None


def _gated_mlp(call: Call, within: list[Call]) -> GatedMlp | None:
    """down(act(gate(x)) * up(x)), told apart by what is called on what."""
    linears, acts = _linears(within)
    if len(linears) != 3 or len(acts) != 1 or any(True for _ in acts[0].module.parameters()):
        return None
    gates = [other for other in linears if acts[0].given is other.gave]
    ups = [other for other in linears if other.given is call.given and other not in gates]
    if len(gates) != 1 or len(ups) != 1 or gates[0].given is not call.given:
        return None
    down = next(other for other in linears if other not in (gates[0], ups[0]))
    mlp = GatedMlp(gates[0].module, ups[0].module, down.module, acts[0].module)
    return mlp if close(mlp(call.given), call.gave) else None


def _attention(call: Call, within: list[Call], probe: Probe, current: Current) -> Attention:
    """Linear maps to queries, keys and values, in this order; perhaps a norm of queries' and of keys' heads; rotary
    embeddings; attention; a linear map out."""
    layer: Any = call.module.layer_idx
    if layer not in probe.attended:
        raise Unfamiliar("it remembers in another way than by keys and values")
    seen = probe.attended[layer]
    linears, norms = _linears(within)
    ins = linears[:-1]
    if len(ins) != 3 or any(other.given is not call.given for other in ins):
        raise Unfamiliar("its attention is made in another way than by queries, keys and values")
    widths = [other.gave.shape[-1] for other in ins]
    if widths != [each[0].numel() for each in (seen.query, seen.key, seen.value)]:
        raise Unfamiliar("its queries, keys and values have other shapes than their linear maps give")
    shape = (seen.query.shape[1], seen.key.shape[1], seen.query.shape[2])
    if call.kwargs["position_embeddings"][0].shape[-1] != shape[2]:
        raise Unfamiliar("it turns a part of each head only")
    maps = [other.module for other in linears]
    return Attention(layer, maps, _head_norm(norms, seen), seen.heads, shape, current)


def _linears(calls: list[Call]) -> tuple[list[Call], list[Call]]:
    """Calls of plain linear maps, and of anything else: a map that does more than a matmul is no plain one."""
    plain = [call for call in calls if type(call.module) in PLAIN]
    return plain, [call for call in calls if call not in plain]


def _head_norm(calls: list[Call], seen: Attended) -> Norm | None:
    if not calls:
        return None
    norms = [_norm(call) for call in calls]
    dim = seen.query.shape[-1:]
    if len(norms) != 2 or any(norm is None or norm.weight.shape != dim for norm in norms):
        raise Unfamiliar("its queries and keys are normalised in another way than head by head")
    query, key = norms
    assert query is not None
    assert key is not None
    if query.eps != key.eps:
        raise Unfamiliar("its queries and keys are normalised in two ways")
    counts = ((query, seen.query.shape[1]), (key, seen.key.shape[1]))
    return Norm(torch.cat([norm.weight.data.expand(count, -1) for norm, count in counts]), query.eps)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether they differ by rounding only: that of `dtype`, or else of their own."""
    error = (found - expected).float().norm() / expected.float().norm().clamp_min(1e-30)
    bound = CLOSE * torch.finfo(dtype or found.dtype).eps + SUMMED * torch.finfo(torch.float32).eps
    return bool(error <= bound)
