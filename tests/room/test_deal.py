from itertools import combinations
from random import Random

import pytest

from room.deal import SNAPSHOTS_PER_SESSION, Deal, Offer, Shortfall, deal
from room.forms import KVS, QUANTS, Forms
from tests.room.fakes import shape

GB = 1 << 30


def offers(*memories: int, forms: Forms | None = None) -> list[Offer]:
    return [Offer(f"p{at}", memory, 4, forms or Forms()) for at, memory in enumerate(memories)]


def dealt(found: Deal | Shortfall) -> list[int]:
    assert isinstance(found, Deal), found
    return [part.end - part.start for part in found.slices]


def test_every_layer_is_dealt_once_and_in_order() -> None:
    found = deal(shape(13), offers(GB, GB, GB), ctx=64, sessions=1)
    assert isinstance(found, Deal)
    assert [part.start for part in found.slices] == [0, *[part.end for part in found.slices[:-1]]]
    assert found.slices[-1].end == 13


def test_more_memory_means_more_layers() -> None:
    counts = dealt(deal(shape(12), offers(GB, 3 * GB), ctx=64, sessions=1))
    assert counts[1] > 2 * counts[0]


def test_embedding_and_head_count_as_weight() -> None:
    """Embedding and head weigh as much as three layers each here: the middle peer gets most layers."""
    heavy = shape(9, params=1000)
    heavy = type(heavy)(**{**vars(heavy), "embed_params": 3000, "head_params": 3000})
    assert dealt(deal(heavy, offers(GB, GB, GB), ctx=64, sessions=1)) == [2, 5, 2]


def test_tied_embedding_weighs_on_both_ends() -> None:
    tied = shape(4, tied=True)
    assert Forms().weight_bytes(tied, 0, 2, 4) == Forms().weight_bytes(tied, 2, 4, 4) == 4 * 3000
    assert Forms().weight_bytes(tied, 0, 4, 4) == 4 * 5000, "one peer holds it once"
    assert Forms().weight_bytes(shape(4), 0, 4, 2) == 2 * 6000


def test_the_split_is_the_fairest_there_is() -> None:
    rng = Random(3)
    for _ in range(50):
        layers, peers = rng.randint(3, 9), rng.randint(1, 3)
        model = shape(layers)
        lent = offers(*(rng.randint(1, 9) * GB for _ in range(peers)))

        def fullest(cuts: tuple[int, ...], model=model, lent=lent) -> float:
            return max(
                Forms().weight_bytes(model, start, end, 4) / offer.memory
                for offer, start, end in zip(lent, cuts, cuts[1:], strict=False)
            )

        counts = dealt(deal(model, lent, ctx=64, sessions=1))
        ours = (0, *(sum(counts[: at + 1]) for at in range(peers)))
        best = min(fullest((0, *cut, layers)) for cut in combinations(range(1, layers), peers - 1))
        assert fullest(ours) == pytest.approx(best)


def test_the_pool_is_as_large_as_the_smallest_peer_allows() -> None:
    # 0.9 of the memory, less 3 x 1000 parameters of 4 bytes, at 2 layers x 16 elements x 4 bytes a token
    memory = int((3 * 4000 + 128 * 16 * 200) / 0.9) + 1
    found = deal(shape(4), offers(memory, GB), ctx=2048, sessions=10, layers=[2, 2])
    assert isinstance(found, Deal)
    assert found.pages == 200


def test_the_pool_is_no_larger_than_all_sessions_need() -> None:
    found = deal(shape(4), offers(GB), ctx=160, sessions=3)
    assert isinstance(found, Deal)
    assert found.pages == 30


def test_too_little_memory_says_how_much_and_where() -> None:
    found = deal(shape(4, params=10**9), offers(GB, GB), ctx=2048, sessions=1)
    assert isinstance(found, Shortfall)
    assert "GB more is needed" in found.reason
    assert "--memory" in found.reason


def test_recurrent_states_count() -> None:
    hybrid = type(shape())(**{**vars(shape(4)), "state_elements": (10**6,) * 4})
    assert isinstance(deal(hybrid, offers(100 << 20), ctx=64, sessions=4), Deal)
    assert isinstance(deal(hybrid, offers(100 << 20), ctx=64, sessions=40), Shortfall)


def test_snapshots_take_a_share_of_what_is_left_and_no_more_than_are_of_use() -> None:
    hybrid, sessions = shape(4, hybrid=True), 8
    state = 4 * 8 * 4
    plenty = deal(hybrid, offers(GB), ctx=64, sessions=sessions)
    assert isinstance(plenty, Deal)
    assert plenty.state_slots == sessions * (1 + SNAPSHOTS_PER_SESSION)
    kv = 64 * 4 * 16 * 4
    tight = deal(hybrid, offers(int((24000 + sessions * state + 1.25 * kv) / 0.9)), ctx=64, sessions=sessions)
    assert isinstance(tight, Deal)
    assert sessions < tight.state_slots <= sessions + 1.25 * kv / 8 / state
    dense = deal(shape(4), offers(GB), ctx=64, sessions=sessions)
    assert isinstance(dense, Deal)
    assert dense.state_slots == 0


def test_layers_by_hand() -> None:
    assert dealt(deal(shape(30), offers(GB, GB, GB), ctx=64, sessions=1, layers=[3, 26, 1])) == [3, 26, 1]
    wrong = deal(shape(30), offers(GB, GB), ctx=64, sessions=1, layers=[3, 26])
    assert isinstance(wrong, Shortfall)
    assert "30 layers" in wrong.reason


def test_more_peers_than_layers() -> None:
    assert isinstance(deal(shape(2), offers(GB, GB, GB), ctx=64, sessions=1), Shortfall)


def test_a_large_deal_is_quick_enough_to_plan_with() -> None:
    assert sum(dealt(deal(shape(120), offers(*[GB] * 16), ctx=64, sessions=1))) == 120


@pytest.mark.parametrize(("quant", "per_weight"), [("int8", 1.01), ("int4", 0.63)])
def test_packed_weights_count_as_what_they_take(quant: str, per_weight: float) -> None:
    """Of 1000 parameters a layer here, 900 are matrices. Embeddings are not packed, heads to 8 bits."""
    forms = Forms(QUANTS[quant])
    layer = 900 * per_weight + 100 * 4
    assert forms.weight_bytes(shape(4), 1, 3, 4) == int(2 * layer)
    assert forms.weight_bytes(shape(4), 0, 2, 4) == int(2 * layer + 1000 * 4)
    assert forms.weight_bytes(shape(4), 2, 4, 4) == int(2 * layer + 1000 * 1.01)
    tied = shape(4, tied=True)
    assert forms.weight_bytes(tied, 0, 4, 4) == int(4 * layer + 1000 * 4 + 1000 * 1.01), "a packed head is apart"


def test_pages_count_by_the_form_of_kv() -> None:
    """2 layers keep 16 elements in 2 heads a token each; the model's own weights take 3 x 1000 x 4 bytes."""
    memory = int((3 * 4000 + 100_000) / 0.9) + 1
    per_token = {"auto": 2 * 16 * 4, "bf16": 2 * 16 * 2, "int8": 2 * (16 + 2 * 8)}
    for kv, size in per_token.items():
        forms = Forms(kv=KVS[kv])
        found = deal(shape(4), offers(memory, GB, forms=forms), ctx=64, sessions=1000, layers=[2, 2])
        assert isinstance(found, Deal)
        assert found.pages == 100_000 // size // 16
