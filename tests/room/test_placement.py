from collections.abc import Sequence
from itertools import combinations, pairwise, permutations
from random import Random

from room.deal import Deal, Offer, deal, holds
from room.forms import Forms
from room.model import ModelShape
from room.placement import Placement, fastest, predicted
from tests.room.fakes import shape

TOKENS = 256


def pool(rng: Random, model: ModelShape, peers: int) -> list[Offer]:
    """Peers that lend between a quarter of the model and more than all of it, of speeds and distances far apart."""
    whole = (Forms().weight_bytes(model, 0, model.layers, 4) + 16 * 4 * model.layers * TOKENS) / 0.9
    return [
        Offer(
            f"p{at}",
            int(whole * rng.uniform(0.25, 1.3)),
            4,
            Forms(),
            layer_seconds=rng.choice((1e-4, 3e-4, 1e-3, 4e-3)),
            hop_seconds=rng.choice((1e-4, 2e-3, 2e-2)),
        )
        for at in range(peers)
    ]


def search(model: ModelShape, offers: list[Offer], peers: int | None = None) -> Placement | None:
    return fastest(model, offers, tokens=TOKENS, slots=0, peers=peers)


def greedy(model: ModelShape, offers: list[Offer]) -> float | None:
    """What the first few peers to hold the model, in their order, would take."""
    for count in range(1, len(offers) + 1):
        found = deal(model, offers[:count], ctx=TOKENS, sessions=1)
        if isinstance(found, Deal):
            return predicted(offers[:count], found.slices)
    return None


def test_no_greedy_deal_is_quicker() -> None:
    rng, compared = Random(5), 0
    for _ in range(200):
        model = shape(rng.randint(2, 40))
        offers = pool(rng, model, rng.randint(1, 8))
        quickest = greedy(model, offers)
        if quickest is not None:
            found = search(model, offers)
            assert found is not None
            assert found.seconds <= quickest * (1 + 1e-9)
            compared += 1
    assert compared > 100


def all_ways(model: ModelShape, offers: Sequence[Offer]) -> list[float]:
    """Seconds of every placement of the model on some of the offers."""
    return [
        sum(each.hop_seconds + each.layer_seconds * (end - start) for each, (start, end) in placed)
        for count in range(1, len(offers) + 1)
        for order in permutations(offers, count)
        for inner in combinations(range(1, model.layers), count - 1)
        for placed in [list(zip(order, pairwise((0, *inner, model.layers)), strict=True))]
        if all(holds(model, each, start, end, tokens=TOKENS, slots=0) for each, (start, end) in placed)
    ]


def test_it_finds_what_trying_everything_finds() -> None:
    rng = Random(6)
    for _ in range(60):
        model = shape(rng.randint(2, 6))
        offers = pool(rng, model, rng.randint(1, 3))
        ways = all_ways(model, offers)
        found = search(model, offers)
        assert (found is None) == (not ways)
        if found is not None:
            assert abs(found.seconds - min(ways)) < 1e-12


def test_what_it_finds_can_be_dealt_and_takes_what_it_says() -> None:
    rng = Random(7)
    for _ in range(50):
        model = shape(rng.randint(8, 30))
        found = search(model, pool(rng, model, rng.randint(2, 12)))
        if found is not None:
            made = deal(model, found.offers, ctx=TOKENS, sessions=1, layers=found.layers)
            assert isinstance(made, Deal)
            assert abs(predicted(found.offers, made.slices) - found.seconds) < 1e-9


def test_as_few_stages_as_take_the_least_time() -> None:
    model = shape(12)
    offers = [Offer(f"p{at}", 1 << 30, 4, Forms()) for at in range(4)]
    found = search(model, offers)
    assert found is not None
    assert [each.peer for each in found.offers] == ["p0"]
    fixed = search(model, offers, peers=3)
    assert fixed is not None
    assert [each.peer for each in fixed.offers] == ["p0", "p1", "p2"], "of equal peers the first, in their order"


def test_too_little_memory() -> None:
    assert search(shape(12), [Offer("p", 1000, 4, Forms())]) is None
