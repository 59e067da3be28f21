"""Who makes which chain."""

import os
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from room.deal import LEAST_TOKENS, USABLE, Offer
from room.division import MUCH_SLOWER, divided
from room.forms import Forms
from room.model import ModelShape
from room.placement import fastest
from tests.room.fakes import FakePeer, open_room, shape
from tests.room.test_placement import TOKENS, all_ways, pool


def divisions(offers: Sequence[Offer]) -> Iterator[list[list[Offer]]]:
    """Every way to make groups of some of the offers."""
    if not offers:
        yield []
        return
    first, *others = offers
    for groups in divisions(others):
        yield groups
        yield [[first], *groups]
        for at in range(len(groups)):
            yield [*groups[:at], [first, *groups[at]], *groups[at + 1 :]]


def test_no_other_division_into_chains_and_no_other_deal_in_each_gives_more_tokens() -> None:
    rng, several = Random(8), 0
    for _ in range(80):
        model = shape(rng.randint(2, 5))
        offers = pool(rng, model, rng.randint(2, 4))
        chains = rng.choice((None, 1, 2))
        quickest = min(all_ways(model, offers), default=0.0)

        def rate(groups: Sequence[Sequence[Offer]], model: ModelShape = model) -> float:
            return sum(1 / min(all_ways(model, group)) for group in groups)

        legal = [
            groups
            for groups in divisions(offers)
            if len(groups) <= (chains or len(offers))
            and all(all_ways(model, group) for group in groups)
            and (chains or all(min(all_ways(model, group)) <= MUCH_SLOWER * quickest for group in groups))
        ]
        best = max(map(rate, legal))
        found = divided(model, offers, tokens=TOKENS, slots=0, chains=chains)
        assert abs(rate(found) - best) < 1e-6 * best + 1e-9
        assert sum(map(len, found)) == min(sum(map(len, each)) for each in legal if rate(each) >= best * (1 - 1e-9))
        several += len(found) > 1
    assert several > 10


def test_eight_peers_are_divided_at_once() -> None:
    model = shape(80)
    groups = divided(model, pool(Random(3), model, 8), tokens=TOKENS, slots=0)
    assert len(groups) > 1
    peers = [offer.peer for group in groups for offer in group]
    assert len(set(peers)) == len(peers)


def large_pool(rng: Random, model: ModelShape) -> list[Offer]:
    """9 to 24 peers that lend two to six times the model in all."""
    count = rng.randint(9, 24)
    whole = (Forms().weight_bytes(model, 0, model.layers, 4) + 16 * 4 * model.layers * TOKENS) / USABLE
    part = whole * rng.uniform(2, 6) / count
    return [
        Offer(
            f"p{at}",
            int(part * rng.uniform(0.4, 1.6)),
            4,
            Forms(),
            layer_seconds=rng.choice((1e-4, 3e-4, 1e-3)),
            hop_seconds=rng.choice((1e-4, 2e-3)),
        )
        for at in range(count)
    ]


def seconds(model: ModelShape, offers: Sequence[Offer]) -> float:
    found = fastest(model, offers, tokens=TOKENS, slots=0)
    assert found is not None
    return found.seconds


def one_by_one(model: ModelShape, offers: list[Offer]) -> list[float]:
    """Seconds of the quickest chain, of the quickest of who is left, and so on."""
    found: list[float] = []
    while (best := fastest(model, offers, tokens=TOKENS, slots=0)) is not None:
        if found and best.seconds > MUCH_SLOWER * found[0]:
            break
        found.append(best.seconds)
        offers = [offer for offer in offers if offer not in best.offers]
    return found


def test_a_large_pool_is_divided_no_worse_than_chain_by_chain_and_often_better() -> None:
    rng, better = Random(9), 0
    for _ in range(40 if "POOLED_SOAK" in os.environ else 10):
        model = shape(rng.randint(12, 24))
        offers = large_pool(rng, model)
        groups = divided(model, offers, tokens=TOKENS, slots=0)
        members = [offer.peer for group in groups for offer in group]
        assert len(set(members)) == len(members)
        took = [seconds(model, group) for group in groups]
        before = one_by_one(model, offers)
        assert took == sorted(took)
        assert not took or took[-1] <= MUCH_SLOWER * before[0] * (1 + 1e-9)
        rate, usual = (sum(1 / each for each in some) for some in (took, before))
        assert rate >= usual * (1 - 1e-6)
        better += rate > usual * 1.05
    assert better
    assert groups == divided(model, offers, tokens=TOKENS, slots=0), "the same each time"


@pytest.mark.parametrize("chains", [1, 2])
def test_a_large_pool_makes_no_more_chains_than_wanted_and_of_as_many_peers(chains: int) -> None:
    model = shape(12)
    offers = [Offer(f"p{at}", 1 << 30, 4, Forms()) for at in range(12)]
    groups = divided(model, offers, tokens=TOKENS, slots=0, peers=3, chains=chains)
    assert [len(group) for group in groups] == [3] * chains


@pytest.mark.parametrize("seed", range(3))
def test_a_room_makes_no_fewer_chains_of_many_peers_than_chain_by_chain(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would without a division of all: each chain of the fewest peers that hold the model."""
    rng = Random(seed)
    room = open_room(layers=12, chains=None, ctx=LEAST_TOKENS)
    whole = (Forms().weight_bytes(room.model.shape, 0, 12, 4) + 12 * 16 * 4 * LEAST_TOKENS) / USABLE
    for at in range(rng.randint(9, 12)):
        FakePeer(room, f"p{at}", memory=int(whole * rng.uniform(0.3, 0.8)))
    room.redeal()
    found = len(room.chains)
    monkeypatch.setattr("room.dealer.divided", lambda *args, **options: [])
    room.redeal()
    assert found >= len(room.chains) > 1
