"""Which peer holds which layers: a pure function of the model's shape and the peers' memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from protos.progress import amount
from room.forms import Forms
from room.model import ModelShape
from room.pages import PAGE

USABLE = 0.9
"""Share of the lent memory that weights and KV may take; the rest is for activations."""

LEAST_TOKENS = 2048
"""A chain that cannot keep this much context (or the room's --ctx, if less) is not worth dealing."""


UNMEASURED = 1e-3
"""Seconds a layer while no peer was measured: all are taken to be equal."""

SNAPSHOT_SHARE = 8
"""Snapshots of recurrent states take at most the eighth part of what is left beside weights and running sessions."""

SNAPSHOTS_PER_SESSION = 4
"""And are no more than this many times the sessions that may run: two are made of a prompt, one of an answer."""


@dataclass(frozen=True)
class Offer:
    """What a peer lends."""

    peer: str
    memory: int
    """Bytes."""
    dtype_bytes: int
    """Of the compute dtype."""
    forms: Forms
    """In which weights and KV are kept."""
    layer_seconds: float = UNMEASURED
    """That one layer takes for a step of running answers: measured, or as others' where it is not known."""
    hop_seconds: float = 0.0
    """That a message takes to it."""

    def weight_bytes(self, shape: ModelShape, start: int, end: int) -> int:
        return self.forms.weight_bytes(shape, start, end, self.dtype_bytes)

    def kv_bytes(self, shape: ModelShape, start: int, end: int) -> int:
        """Of one position."""
        return self.forms.kv_bytes(shape, start, end, self.dtype_bytes)


@dataclass(frozen=True)
class Slice:
    """Layers [start, end) on one peer."""

    peer: str
    start: int
    end: int


@dataclass(frozen=True)
class Deal:
    slices: tuple[Slice, ...]
    pages: int
    """Of the chain's pool: what its smallest peer has room for."""
    state_slots: int
    """Of a hybrid model: one for each session, and those for snapshots."""


@dataclass(frozen=True)
class Shortfall:
    """No deal is possible; `reason` says what is missing."""

    reason: str


def deal(
    shape: ModelShape,
    offers: Sequence[Offer],
    *,
    ctx: int,
    sessions: int,
    layers: Sequence[int] | None = None,
) -> Deal | Shortfall:
    """Deal all layers to all `offers`, in their order, by memory.

    Each peer gets at least one layer; the split is the one whose fullest peer is least full. The pool is sized for
    `sessions` full contexts of `ctx` tokens at most. `layers` fixes the split by hand.
    """
    if layers is not None and (len(layers) != len(offers) or sum(layers) != shape.layers):
        return Shortfall(f"--layers must name {shape.layers} layers for {len(offers)} peers")
    if len(offers) > shape.layers:
        return Shortfall(f"the model has {shape.layers} layers, too few for {len(offers)} peers")
    cuts = _cuts_of(layers) if layers is not None else _fairest_cuts(shape, offers)
    slices = tuple(Slice(offer.peer, *cut) for offer, cut in zip(offers, pairwise(cuts), strict=True))
    each = list(zip(offers, slices, strict=True))
    slots = sessions if shape.hybrid else 0
    if slots:
        spare = min(_snapshots_left(shape, offer, part, sessions) for offer, part in each)
        slots += max(min(spare, sessions * SNAPSHOTS_PER_SESSION), 0)
    tokens = min(ctx * sessions, *(_tokens_left(shape, offer, part, slots) for offer, part in each))
    if tokens < min(ctx, LEAST_TOKENS):
        return _shortfall(shape, offers, slices, min(ctx, LEAST_TOKENS), sessions)
    return Deal(slices, pages=tokens // PAGE, state_slots=slots)


def holds(shape: ModelShape, offer: Offer, start: int, end: int, *, tokens: int, slots: int) -> bool:
    """Whether layers [start, end) fit the offer beside `tokens` positions of KV and `slots` recurrent states."""
    left = _bytes_left(shape, offer, Slice(offer.peer, start, end), slots)
    return left >= offer.kv_bytes(shape, start, end) * tokens


def fullest(shape: ModelShape, offers: Sequence[Offer], slices: Sequence[Slice]) -> float:
    """The largest share of what it lends that a peer's weights take."""
    by_peer = {offer.peer: offer for offer in offers}
    pairs = ((by_peer[part.peer], part) for part in slices)
    return max(offer.weight_bytes(shape, part.start, part.end) / max(offer.memory, 1) for offer, part in pairs)


def _cuts_of(layers: Sequence[int]) -> list[int]:
    cuts = [0]
    for count in layers:
        cuts.append(cuts[-1] + count)
    return cuts


def _fairest_cuts(shape: ModelShape, offers: Sequence[Offer]) -> list[int]:
    """Cuts that minimise the largest (weight bytes / lent bytes), by dynamic programming over (peer, first layer)."""

    def share(peer: int, start: int, end: int) -> float:
        offer = offers[peer]
        return offer.weight_bytes(shape, start, end) / max(offer.memory, 1)

    last = len(offers) - 1
    # best[start]: (fullest share, cuts) for peers [peer, ...] holding layers [start, ...)
    best = {start: (share(last, start, shape.layers), [start, shape.layers]) for start in range(last, shape.layers)}
    for peer in range(last - 1, -1, -1):
        best = {
            start: min(
                (max(share(peer, start, end), rest), [start, *cuts])
                for end, (rest, cuts) in best.items()
                if end > start
            )
            for start in range(peer, shape.layers - (last - peer))
        }
    return best[0][1]


def _tokens_left(shape: ModelShape, offer: Offer, part: Slice, slots: int) -> int:
    """Positions of KV that fit beside a slice's weights and recurrent states; negative when those do not fit."""
    left = _bytes_left(shape, offer, part, slots)
    per_token = offer.kv_bytes(shape, part.start, part.end)
    if left < 0 or not per_token:
        return -1 if left < 0 else 1 << 40
    return left // per_token


def _snapshots_left(shape: ModelShape, offer: Offer, part: Slice, sessions: int) -> int:
    """Snapshots that may be kept beside the states of `sessions`."""
    state = _state_bytes(shape, part)
    return _bytes_left(shape, offer, part, sessions) // SNAPSHOT_SHARE // state if state else 1 << 40


def _bytes_left(shape: ModelShape, offer: Offer, part: Slice, slots: int) -> int:
    return int(offer.memory * USABLE) - _fixed_bytes(shape, offer, part, slots)


def _fixed_bytes(shape: ModelShape, offer: Offer, part: Slice, slots: int) -> int:
    return offer.weight_bytes(shape, part.start, part.end) + _state_bytes(shape, part) * slots


def _state_bytes(shape: ModelShape, part: Slice) -> int:
    return (shape.states_before[part.end] - shape.states_before[part.start]) * 4  # recurrent states stay in float32


def _shortfall(
    shape: ModelShape, offers: Sequence[Offer], slices: Sequence[Slice], tokens: int, sessions: int
) -> Shortfall:
    """Name the peer that is worst off and how much the room lacks."""

    def lacks(offer: Offer, part: Slice) -> int:
        kv = offer.kv_bytes(shape, part.start, part.end) * tokens
        return int((_fixed_bytes(shape, offer, part, sessions) + kv) / USABLE) + 1 - offer.memory

    missing = [(lacks(offer, part), part) for offer, part in zip(offers, slices, strict=True)]
    worst, part = max(missing, key=lambda each: each[0])
    total = sum(max(lack, 0) for lack, _ in missing)
    return Shortfall(
        f"the peers lend too little memory: {amount(total)} more is needed in all, "
        f"{amount(worst)} of it by the peer for layers {part.start} to {part.end - 1}; "
        "lend more with --memory, or let more peers join"
    )
