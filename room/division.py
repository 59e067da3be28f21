"""Who makes which chain, where a pool of peers holds the model more than once. Free of I/O."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from room.deal import Offer
from room.model import ModelShape
from room.placement import MOST_EXACT, all_sets, fastest, most_layers

MUCH_SLOWER = 4.0
"""A further chain whose tokens take so many times as long would serve nobody well: its peers stay spares."""

_TRIED_ANEW = 7
"""Peers of one or two chains, and of none, whose division is searched again in every way: beyond MOST_EXACT peers."""

_TRIES = 16
"""Such searches."""

Division: TypeAlias = tuple[int, ...]
"""The peers of each chain, as bits."""


def divided(
    shape: ModelShape,
    offers: Sequence[Offer],
    *,
    tokens: int,
    slots: int,
    peers: int | None = None,
    chains: int | None = None,
) -> list[list[Offer]]:
    """Who makes which chain, each of which holds all layers, so that one answer in each get most tokens a second.

    Of equal divisions it is the one with the fewest peers. `peers` fixes how many a chain has. At most `chains` are
    made, or as many as are not MUCH_SLOWER than the quickest possible. The rest is as for `fastest`. Every way is tried
    for up to MOST_EXACT offers; for more it is a search that ends no worse than with the quickest chain, then the
    quickest of all others, and so on. The quickest chain comes first.
    """
    search = _Search(shape, offers, tokens, slots, peers, chains)
    found = sorted(search.best(), key=search.seconds)
    return [[offer for at, offer in enumerate(offers) if members >> at & 1] for members in found]


class _Search:
    """Peers are bits of a number, by their places among the offers."""

    def __init__(
        self,
        shape: ModelShape,
        offers: Sequence[Offer],
        tokens: int,
        slots: int,
        peers: int | None,
        chains: int | None,
    ) -> None:
        self._shape = shape
        self._offers = offers
        self._tokens = tokens
        self._slots = slots
        self._peers = peers
        self._chains = chains
        self._everybody = (1 << len(offers)) - 1
        self._seconds: dict[int, float] = {}  # of each chain that was thought of
        self._quickest_of = cache(self._search_quickest)
        self._slowest = math.inf

    def seconds(self, members: int) -> float:
        """That a token takes through a chain that was found."""
        return self._seconds[members]

    def best(self) -> Division:
        """In no order."""
        if len(self._offers) <= MOST_EXACT:
            return self._exact(self._everybody, self._chains)
        first = self._quickest_of(self._everybody)
        if first is None:
            return ()
        self._limit(self.seconds(first))
        return self._improved(max([self._one_by_one(), *self._dealt_out(), *self._filled_up()], key=self._rank))

    def _rank(self, division: Division) -> tuple[float, int, Division]:
        used = sum(members.bit_count() for members in division)
        return round(sum(1 / self.seconds(members) for members in division), 6), -used, division

    def _limit(self, quickest: float) -> None:
        if self._chains is None:
            self._slowest = MUCH_SLOWER * quickest

    @property
    def _most(self) -> int:
        return self._chains or len(self._offers)

    # ------------------------------------------------------------ divisions to begin with

    def _one_by_one(self) -> Division:
        """The quickest chain, then the quickest of who is left."""
        found: list[int] = []
        free = self._everybody
        while len(found) < self._most and (members := self._quick_enough(free)) is not None:
            found.append(members)
            free &= ~members
        return tuple(found)

    def _dealt_out(self) -> Iterator[Division]:
        """All peers in so many groups, by what they lend: the first to the last group, then back, and so on."""
        layers = [most_layers(self._shape, each, tokens=self._tokens, slots=self._slots) for each in self._offers]
        order = sorted(range(len(layers)), key=lambda at: -layers[at])
        for count in range(2, min(self._most, sum(layers) // self._shape.layers) + 1):
            groups = [0] * count
            for turn, at in enumerate(order):
                there = turn % (2 * count)
                groups[min(there, 2 * count - 1 - there)] |= 1 << at
            yield tuple(found for group in groups if (found := self._quick_enough(group)) is not None)

    def _filled_up(self) -> Iterator[Division]:
        """One chain after the other is given peers until it holds the model, in several orders of the peers."""
        layers = [most_layers(self._shape, each, tokens=self._tokens, slots=self._slots) for each in self._offers]
        speed = [each.layer_seconds + each.hop_seconds / self._shape.layers for each in self._offers]
        for order in (
            sorted(range(len(layers)), key=lambda at: (speed[at], -layers[at])),
            sorted(range(len(layers)), key=lambda at: -layers[at]),
        ):
            found: list[int] = []
            group = held = 0
            for at in order:
                group, held = group | 1 << at, held + layers[at]
                if held >= self._shape.layers and (members := self._quick_enough(group)) is not None:
                    found.append(members)
                    group &= ~members
                    held = sum(layers[each] for each in range(len(layers)) if group >> each & 1)
            yield tuple(sorted(found, key=self.seconds)[: self._most])

    def _quick_enough(self, group: int) -> int | None:
        """The quickest chain of some of a group."""
        members = self._quickest_of(group)
        return members if members is not None and self.seconds(members) <= self._slowest else None

    def _search_quickest(self, group: int) -> int | None:
        offers = [offer for at, offer in enumerate(self._offers) if group >> at & 1]
        best = (
            fastest(self._shape, offers, tokens=self._tokens, slots=self._slots, peers=self._peers) if offers else None
        )
        if best is None:
            return None
        members = sum(1 << at for at, offer in enumerate(self._offers) if offer in best.offers)
        self._seconds[members] = best.seconds
        return members

    # ------------------------------------------------------------ better ones

    def _improved(self, division: Division) -> Division:
        """The division, a few of its peers at a time divided anew in the best way."""
        left = _TRIES
        better = True
        while better and left:
            better = False
            for some in self._parts(division):
                if not left:
                    break
                left -= 1
                kept = tuple(members for members in division if not members & some)
                found = (*kept, *self._exact(some, self._chains and self._chains - len(kept)))
                if self._rank(found)[:2] > self._rank(division)[:2]:
                    division, better = found, True
                    break
        return division

    def _parts(self, division: Division) -> Iterator[int]:
        """Peers of two chains, or of one, with as many of those in none as can be searched at once."""
        used = 0
        for members in division:
            used |= members
        spare = [at for at in range(len(self._offers)) if not used >> at & 1]
        spare.sort(key=lambda at: (self._offers[at].layer_seconds, -self._offers[at].memory))
        slowest_first = sorted(division, key=self.seconds, reverse=True)
        pairs = [a | b for at, a in enumerate(slowest_first) for b in slowest_first[at + 1 :]]
        for some in [*pairs, *slowest_first, 0]:
            room = _TRIED_ANEW - some.bit_count()
            if room >= 0 and (some in pairs or room):
                yield some | sum(1 << at for at in spare[:room])

    # ------------------------------------------------------------ every way

    def _exact(self, among: int, chains: int | None) -> Division:
        places = [at for at in range(len(self._offers)) if among >> at & 1]
        offers = [self._offers[at] for at in places]
        sets = all_sets(self._shape, offers, tokens=self._tokens, slots=self._slots, peers=self._peers)
        if len(offers) == len(self._offers):
            self._limit(min(sets.values(), default=0.0))
        rates = {members: round(1 / took, 6) for members, took in sets.items() if 0 < took <= self._slowest}
        _, _, found = _best_division(rates, (1 << len(offers)) - 1, len(offers) if chains is None else chains)
        division = []
        for members in found:
            placed = sum(1 << at for each, at in enumerate(places) if members >> each & 1)
            self._seconds[placed] = sets[members]
            division.append(placed)
        return tuple(division)


def _best_division(rates: Mapping[int, float], everybody: int, chains: int) -> tuple[float, int, tuple[int, ...]]:
    """Disjoint sets of the largest rate in all: that, how many peers are in none, and the sets."""

    @cache
    def best(free: int, chains: int) -> tuple[float, int, tuple[int, ...]]:
        if not free or not chains:
            return 0.0, free.bit_count(), ()
        first = free & -free
        ways = []
        for members in _subsets(free ^ first):
            if (rate := rates.get(members | first)) is not None:
                more, spares, sets = best(free ^ first ^ members, chains - 1)
                ways.append((rate + more, spares, (members | first, *sets)))
        rate, spares, sets = best(free ^ first, chains)
        return max([*ways, (rate, spares + 1, sets)], key=lambda way: (round(way[0], 6), way[1]))

    return best(everybody, chains)


def _subsets(members: int) -> Iterator[int]:
    """Of a set, the empty one and itself included."""
    subset = 0
    while True:
        yield subset
        if subset == members:
            return
        subset = (subset - members) & members
