"""Which peers, in which order, hold which layers so that a token takes the least time: a search over all ways.

A token passes every stage once, so what it takes is the sum of each stage's layers by its speed, and of the ways
between. Free of I/O.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from room.deal import Offer, Slice, holds
from room.model import ModelShape

MOST_EXACT = 8
"""Peers up to which every subset is tried."""

_SUBSETS = 560
"""(Subset, peer) pairs tried for each number of stages beyond: as many as eight peers have at most. The sets of peers
that come farthest in the model are kept, of these the quickest."""

_AS_QUICK = 1 + 1e-9
"""Sums that differ by rounding alone are the same."""


def predicted(offers: Sequence[Offer], slices: Sequence[Slice]) -> float:
    """Seconds that a token of one answer takes through these slices; `offers` has one for each, in order."""
    pairs = zip(offers, slices, strict=True)
    return sum(offer.hop_seconds + offer.layer_seconds * (part.end - part.start) for offer, part in pairs)


@dataclass(frozen=True)
class Placement:
    """Who holds how many layers, first to last."""

    offers: tuple[Offer, ...]
    layers: tuple[int, ...]
    seconds: float
    """That a token should take."""


@dataclass(frozen=True)
class _Best:
    """For one set of peers, by the number of layers that they hold together from the first on."""

    seconds: list[float]
    last: list[tuple[int, int]]
    """The peer that holds the last of them, and its first layer."""

    @property
    def farthest(self) -> int:
        return next((at for at in reversed(range(len(self.seconds))) if self.seconds[at] < math.inf), 0)


def fastest(
    shape: ModelShape,
    offers: Sequence[Offer],
    *,
    tokens: int,
    slots: int,
    peers: int | None = None,
    including: Offer | None = None,
) -> Placement | None:
    """The placement of all layers that takes the least time, of these the one with the fewest stages.

    Each peer keeps `tokens` positions and `slots` states beside its layers. `peers` fixes how many there are,
    `including` names one that has to be among them. Exact for up to MOST_EXACT offers. None where the memory does not
    suffice, and perhaps, for more offers, where it barely would.
    """
    needed = 0 if including is None else 1 << offers.index(including)
    known: dict[int, _Best] = {}
    found, least = None, math.inf
    for sets in _by_size(shape, offers, tokens, slots, peers):
        known |= sets
        for members, best in sets.items():
            right = members & needed == needed and peers in (None, members.bit_count())
            if right and best.seconds[-1] * _AS_QUICK < least:
                found, least = members, best.seconds[-1]
    return None if found is None else _placement(offers, known, found)


def all_sets(
    shape: ModelShape, offers: Sequence[Offer], *, tokens: int, slots: int, peers: int | None = None
) -> dict[int, float]:
    """Seconds that a token takes through each set of offers, as bits, that can hold all layers.

    All of them are found for up to MOST_EXACT offers.
    """
    sets = (found for sets in _by_size(shape, offers, tokens, slots, peers) for found in sets.items())
    right = ((members, best.seconds[-1]) for members, best in sets if peers in (None, members.bit_count()))
    return {members: seconds for members, seconds in right if members and seconds < math.inf}


def most_layers(shape: ModelShape, offer: Offer, *, tokens: int, slots: int) -> int:
    """Of the longest slice that fits the peer."""
    return max(end - start for start, end in enumerate(_reach(shape, offer, tokens, slots)))


def _by_size(
    shape: ModelShape, offers: Sequence[Offer], tokens: int, slots: int, peers: int | None
) -> Iterator[dict[int, _Best]]:
    """The sets of peers with none, one, two of them, up to `peers`; only those of none where all lend too little."""
    reach = [_reach(shape, offer, tokens, slots) for offer in offers]
    sets: dict[int, _Best] = {0: _Best([0.0, *[math.inf] * shape.layers], [(-1, -1)] * (shape.layers + 1))}
    yield sets
    if sum(max(end - start for start, end in enumerate(ends)) for ends in reach) < shape.layers:
        return
    for _ in range(peers or min(len(offers), shape.layers)):
        sets = _kept(_larger(sets, offers, reach), len(offers))
        yield sets


def _reach(shape: ModelShape, offer: Offer, tokens: int, slots: int) -> list[int]:
    """By first layer: the end of the longest slice that fits the peer; it never falls."""
    ends, end = [], 0
    for start in range(shape.layers):
        end = max(end, start)
        while end < shape.layers and holds(shape, offer, start, end + 1, tokens=tokens, slots=slots):
            end += 1
        ends.append(end)
    return ends


def _larger(sets: Mapping[int, _Best], offers: Sequence[Offer], reach: Sequence[Sequence[int]]) -> dict[int, _Best]:
    """The sets with one peer more. Of ways that are as quick, the later peer stands behind the earlier one."""
    larger: dict[int, _Best] = {}
    for members in sets:
        for peer in range(len(offers)):
            joined = members | 1 << peer
            if joined == members or joined in larger:
                continue
            best = larger[joined] = _Best([math.inf] * len(sets[members].seconds), [(-1, -1)] * len(sets[members].last))
            for last in reversed(range(len(offers))):
                before = sets.get(joined & ~(1 << last)) if joined >> last & 1 else None
                if before is not None:
                    _put_behind(best, before, last, offers[last], reach[last])
    return larger


def _put_behind(best: _Best, before: _Best, peer: int, offer: Offer, reach: Sequence[int]) -> None:
    """Note where `peer` behind those `before` is quicker than what is known.

    A slice costs its peer the same wherever it begins, so the best beginning for each end is the least of a window
    that only moves on.
    """
    window: deque[tuple[float, int]] = deque()  # (seconds less those of the layers before, first layer), rising
    for end in range(1, len(best.seconds)):
        start = end - 1
        value = before.seconds[start] - start * offer.layer_seconds
        while window and window[-1][0] >= value:
            window.pop()
        window.append((value, start))
        while window and reach[window[0][1]] < end:
            window.popleft()
        if window:
            seconds = offer.hop_seconds + window[0][0] + end * offer.layer_seconds
            if seconds * _AS_QUICK < best.seconds[end]:
                best.seconds[end], best.last[end] = seconds, (peer, window[0][1])


def _kept(sets: dict[int, _Best], peers: int) -> dict[int, _Best]:
    if peers <= MOST_EXACT:
        return sets

    def rank(members: int) -> tuple[int, float]:
        best = sets[members]
        return -best.farthest, best.seconds[best.farthest]

    return {members: sets[members] for members in sorted(sets, key=rank)[: max(_SUBSETS // peers, 1)]}


def _placement(offers: Sequence[Offer], sets: Mapping[int, _Best], members: int) -> Placement:
    seconds, end = sets[members].seconds[-1], len(sets[members].seconds) - 1
    order: list[Offer] = []
    layers: list[int] = []
    while end:
        peer, start = sets[members].last[end]
        order.append(offers[peer])
        layers.append(end - start)
        members, end = members & ~(1 << peer), start
    return Placement(tuple(reversed(order)), tuple(reversed(layers)), seconds)
