from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from random import Random

from room.deal import Deal, Offer, deal, holds
from room.forms import Forms
from room.model import ModelShape
from room.placement import MUCH_SLOWER, Placement, divided, fastest, predicted
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


def test_too_little_memory() -> None:
    assert search(shape(12), [Offer("p", 1000, 4, Forms())]) is None
