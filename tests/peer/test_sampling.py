import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from peer.sampling import Row, gumbel_noise, sample
from protos import peer_pb2

NEUTRAL: dict[str, Any] = {"temperature": 1, "top_p": 1, "repetition_penalty": 1}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def row(
    position: int = 0,
    drafted: Sequence[int] = (),
    mask: bytes | None = None,
    counts: dict[int, int] | None = None,
    bias: dict[int, float] | None = None,
    **params: Any,
) -> Row:
    spec = peer_pb2.SamplingSpec(
        params=peer_pb2.SamplingParams(
            **{**NEUTRAL, **params},
            logit_bias=[peer_pb2.LogitBias(id=token, bias=value) for token, value in (bias or {}).items()],
        ),
        counts=[peer_pb2.TokenCount(id=token, answer=count) for token, count in (counts or {}).items()],
    )
    return Row(spec, len(drafted), position, drafted, mask)


def mask_of(allowed: Sequence[int], size: int) -> bytes:
    bits = bytearray((size + 7) // 8)
    for token in allowed:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


def draw(logits: torch.Tensor, *rows: Row) -> list[int]:
    return [token.id for token in sample(logits.expand(len(rows), -1) if logits.dim() == 1 else logits, rows)]


def reference(logits: Sequence[float], row: Row) -> int:
    """The same rules, one token at a time."""
    params = row.spec.params
    values = dict(enumerate(logits))
    for entry in params.logit_bias:
        values[entry.id] += entry.bias
    counts = {entry.id: entry.answer for entry in row.spec.counts}
    for token in row.drafted:
        counts[token] = counts.get(token, 0) + 1
    for token, count in counts.items():
        penalty = params.repetition_penalty
        values[token] = values[token] * penalty if values[token] < 0 else values[token] / penalty
        values[token] -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
    if row.mask is not None:
        values = {token: value for token, value in values.items() if row.mask[token // 8] >> token % 8 & 1}
    ranked = sorted(values, key=lambda token: (-values[token], token))
    if params.temperature == 0:
        return ranked[0]
    if params.top_k:
        ranked = ranked[: params.top_k]
    best = values[ranked[0]]
    weights = [math.exp((values[token] - best) / params.temperature) for token in ranked]
    reached, kept = 0.0, []
    for token, weight in zip(ranked, weights, strict=True):
        if not kept or reached < params.top_p * sum(weights):
            kept.append(token)
        reached += weight
    kept = [token for token, weight in zip(kept, weights, strict=False) if weight >= params.min_p]
    noise = gumbel_noise(params.seed, row.position, np.array(kept, dtype=np.int64))
    scores = {
        token: (values[token] - best) / params.temperature + extra for token, extra in zip(kept, noise, strict=True)
    }
    return max(sorted(scores), key=lambda token: scores[token])


SIZE = 13
tokens = st.integers(0, SIZE - 1)
# Multiples of 1/8, so that ties are common and sums are exact.
eighths = st.integers(-40, 40).map(lambda number: number / 8)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    def maybe(values: st.SearchStrategy[Any], neutral: Any) -> Any:
        return draw(st.one_of(st.just(neutral), values))

    allowed = maybe(st.lists(tokens, min_size=1), None)
    return row(
        position=draw(st.integers(0, 1 << 20)),
        drafted=maybe(st.lists(tokens, max_size=4), []),
        mask=None if allowed is None else mask_of(allowed, SIZE),
        counts=maybe(st.dictionaries(tokens, st.integers(0, 3)), {}),
        bias=maybe(st.dictionaries(tokens, eighths), {}),
        temperature=maybe(st.sampled_from([0, 0.25, 0.5, 1.5, 2]), 1),
        top_k=maybe(st.integers(1, SIZE + 3), 0),
        top_p=maybe(st.sampled_from([0, 0.1, 0.35, 0.6, 0.93]), 1),
        min_p=maybe(st.sampled_from([0.01, 0.11, 0.3, 1]), 0),
        repetition_penalty=maybe(st.sampled_from([0.5, 1.25, 2]), 1),
        presence_penalty=maybe(st.sampled_from([-1, 0.5, 2]), 0),
        frequency_penalty=maybe(st.sampled_from([-0.5, 0.25, 1]), 0),
        seed=draw(st.integers(0, 2**64 - 1)),
        logprobs=draw(st.booleans()),
    )


@settings(max_examples=200)
@given(st.lists(st.tuples(st.lists(eighths, min_size=SIZE, max_size=SIZE), rows()), min_size=1, max_size=6))
def test_every_combination_matches_a_slow_reference_whatever_the_batch(
    cases: list[tuple[list[float], Row]],
) -> None:
    drawn = draw(torch.tensor([logits for logits, _ in cases]), *(row for _, row in cases))
    assert drawn == [reference(logits, row) for logits, row in cases]


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"temperature": 0.6}, {"top_p": 0.8}, {"logprobs": True}])
def test_frequencies_follow_the_softmax(params: dict[str, Any]) -> None:
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, 2.0, 0.25, -1.0, 1.5])
    draws = 4000
    drawn = draw(logits, *(row(position=at, seed=7, **params) for at in range(draws)))
    scores = logits[None] / params.get("temperature", 1)
    for warper in _warpers(params):
        scores = warper(torch.empty(1, 0, dtype=torch.long), scores)
    expected = torch.softmax(scores[0].double(), -1).numpy() * draws
    counted = np.bincount(drawn, minlength=len(logits))
    assert not counted[expected == 0].any()
    kept = expected > 0
    chi_square = float(((counted[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    degrees = int(kept.sum()) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize(("seeds", "positions"), [(0, 1), (1, 0), (1, 1)])
def test_seeds_and_positions_draw_independently(seeds: int, positions: int) -> None:
    side = 60
    every = [row(seed=seed, position=at) for seed in range(side) for at in range(side)]
    grid = np.array(draw(torch.zeros(4), *every)).reshape(side, side)
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (grid[: side - seeds, : side - positions], grid[seeds:, positions:]), 1)
    expected = np.outer(pairs.sum(1), pairs.sum(0)) / pairs.sum()
    degrees = 9
    assert float(((pairs - expected) ** 2 / expected).sum()) < degrees + 4 * math.sqrt(2 * degrees)


def test_the_noise_is_the_same_for_ever() -> None:
    ids = np.array([0, 1, 49151, 248319])
    assert gumbel_noise(0, 0, ids).tolist() == pytest.approx(NOISE_0, rel=1e-14)
    assert gumbel_noise(2**64 - 1, 123456, ids).tolist() == pytest.approx(NOISE_1, rel=1e-14)


NOISE_0 = [0.8641271107640522, 2.4804403233732355, 0.011769875946521395, 0.8834796031007757]
NOISE_1 = [-0.8761214111088876, 0.48013816429366657, -1.317967495305512, 0.18764902546113757]


@pytest.mark.parametrize("params", [{}, {"top_k": 40}, {"top_k": 40, "top_p": 0.9, "logprobs": True}, {"min_p": 0.05}])
def test_a_draw_does_not_depend_on_the_rows_beside_it(params: dict[str, Any]) -> None:
    logits = torch.randn(24, 1000, generator=torch.Generator().manual_seed(1)) * 3
    mixed = [row(position=at, seed=at % 3, **(params if at % 2 else {"temperature": 0})) for at in range(24)]
    together = draw(logits, *mixed)
    alone = [draw(logits[at], mixed[at])[0] for at in range(24)]
    backwards = draw(logits.flip(0), *reversed(mixed))[::-1]
    assert together == alone == backwards
    assert len(set(together)) > 12


def test_the_same_seed_and_position_draw_the_same_token_and_others_do_not() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    again = draw(logits, row(seed=5, position=9), row(seed=5, position=9))
    others = draw(logits, *(row(seed=5, position=at) for at in range(10, 30)), *(row(seed=at) for at in range(20)))
    assert again[0] == again[1]
    assert len(set(others)) > 30


def _warpers(params: dict[str, Any]) -> list[LogitsProcessor]:
    made: list[LogitsProcessor] = []
    if params.get("top_k"):
        made.append(TopKLogitsWarper(top_k=params["top_k"]))
    if params.get("top_p", 1) < 1:
        made.append(TopPLogitsWarper(top_p=params["top_p"]))
    if params.get("min_p"):
        made.append(MinPLogitsWarper(min_p=params["min_p"]))
    return made


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 500},
        {"top_p": 0.3},
        {"top_p": 0.95},
        {"min_p": 0.2},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_filters_keep_what_those_of_transformers_keep(params: dict[str, Any]) -> None:
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(3)) * 2
    scores = TemperatureLogitsWarper(0.75)(torch.empty(40, 0, dtype=torch.long), logits)
    for warper in _warpers(params):
        scores = warper(torch.empty(40, 0, dtype=torch.long), scores)
    for seed in range(10):
        noise = torch.from_numpy(np.stack([gumbel_noise(seed, at, np.arange(300)) for at in range(40)]))
        expected = (scores.double() + noise).argmax(-1).tolist()
        assert draw(logits, *(row(position=at, seed=seed, temperature=0.75, **params) for at in range(40))) == expected


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = torch.randn(30, 50, generator=torch.Generator().manual_seed(4))
    history = [[at % 50, (3 * at) % 50, 7, 7] for at in range(30)]
    expected = RepetitionPenaltyLogitsProcessor(penalty=1.7)(torch.tensor(history), logits.clone()).argmax(-1).tolist()
    penalised = [
        row(temperature=0, repetition_penalty=1.7, counts={seen[0]: 0, seen[1]: 1}, drafted=seen[2:])
        for seen in history
    ]
    assert draw(logits, *penalised) == expected
    assert expected != logits.argmax(-1).tolist()


def test_presence_and_frequency_count_the_answer_only() -> None:
    logits = torch.tensor([3.0, 2.9, 2.0])
    prompt_only, once, twice = {0: 0}, {0: 1}, {0: 2}
    presence = {"temperature": 0, "presence_penalty": 0.5}
    frequency = {"temperature": 0, "frequency_penalty": 0.06}
    assert draw(
        logits,
        row(counts=prompt_only, **presence),
        row(counts=once, **presence),
        row(counts=once, **frequency),
        row(counts=twice, **frequency),
        row(counts=once, drafted=[0], **frequency),
    ) == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_bias_of_100_forces_and_of_minus_100_forbids(temperature: float) -> None:
    logits = torch.tensor([5.0, 4.0, -3.0, 1.0])
    seeds = range(50)
    assert set(draw(logits, *(row(seed=seed, temperature=temperature, bias={2: 100}) for seed in seeds))) == {2}
    banned = draw(logits, *(row(seed=seed, temperature=temperature, bias={0: -100, 1: -100}) for seed in seeds))
    assert not {0, 1} & set(banned)


def test_ids_beyond_the_vocabulary_are_ignored() -> None:
    logits = torch.tensor([1.0, 2.0])
    strange = row(
        temperature=0, bias={9: 100}, counts={8: 2}, drafted=[7], frequency_penalty=1, mask=mask_of([0, 1, 9], 16)
    )
    assert draw(logits, strange) == [1]


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.1}, {"min_p": 0.9}, {"temperature": 1e-6}, {"logprobs": True}],
)
def test_a_mask_holds_whatever_else_is_set(params: dict[str, Any]) -> None:
    logits = torch.arange(20.0)
    allowed = [0, 3, 8]
    drawn = draw(logits, *(row(seed=seed, mask=mask_of(allowed, 20), **params) for seed in range(30)))
    assert set(drawn) <= set(allowed)


def test_what_a_short_mask_does_not_reach_is_not_allowed() -> None:
    assert draw(torch.arange(20.0), row(temperature=0, mask=b"\x05")) == [2]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_mask_that_allows_nothing_is_an_error(temperature: float) -> None:
    with pytest.raises(ValueError, match="the mask allows no token"):
        draw(torch.zeros(9), row(temperature=temperature, mask=bytes(2)))


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"top_k": 1}, {"top_k": 40}])
def test_a_mask_that_allows_only_what_the_model_cannot_write_is_an_error(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the mask allows no token"):
        draw(torch.tensor([0.0, -math.inf]), row(mask=mask_of([1], 2), **params))


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 5}, {"top_k": 40, "top_p": 0.9}])
def test_a_masked_row_is_drawn_as_if_the_rest_were_not_there(params: dict[str, Any]) -> None:
    """However few are allowed, and beside rows that have no mask."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(3)).round(decimals=1)  # with ties
    for allowed in (range(500), range(0, 500, 7), [3, 100, 101], [77]):
        hidden = torch.full_like(logits, -math.inf)
        hidden[:, list(allowed)] = logits[:, list(allowed)]
        mask = mask_of(list(allowed), 500)
        for seed in range(20):
            mine = draw(logits, row(seed=seed, mask=mask, **params), row(**params), row(seed=seed, mask=mask, **params))
            bare = draw(hidden, *(row(seed=seed, bias={0: 0.0}, **params) for _ in range(3)))
            assert [mine[0], mine[2]] == [bare[0], bare[2]]


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 2}, {"logprobs": True}])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_are_an_error(bad: float, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        draw(torch.tensor([0.0, bad, 1.0]), row(**params))


@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 0}])
def test_tokens_the_model_rules_out_are_never_drawn(params: dict[str, Any]) -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, -50.0])
    assert set(draw(logits, *(row(seed=seed, **params) for seed in range(20)))) == {1}


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(5)) * 1e4
    tiny = [row(position=at, temperature=temperature, top_p=0.9, top_k=at * 30, logprobs=True) for at in range(5)]
    drawn = sample(logits, tiny)
    assert [token.id for token in drawn] == logits.argmax(-1).tolist()
    assert all(math.isfinite(token.logprob) for token in drawn)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1}, {"temperature": 0, "logprobs": True}])
def test_ties_go_to_the_lowest_id(params: dict[str, Any]) -> None:
    logits = torch.full((3, 500), 1.0)
    logits[1, 7] = logits[1, 300] = 2.0
    assert draw(logits, *(row(seed=3, **params) for _ in range(3))) == [0, 7, 0]


def test_top_k_keeps_exactly_k_of_more_that_tie() -> None:
    logits = torch.zeros(500)
    logits[400] = 1.0
    drawn = draw(logits, *(row(position=at, top_k=4) for at in range(200)))
    assert set(drawn) == {0, 1, 2, 400}


def test_logprobs_are_of_the_raw_distribution_and_only_on_request() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(6))
    shaped = {"temperature": 0.5, "top_k": 3, "counts": {1: 2}, "presence_penalty": 1, "bias": {2: 1.5}}
    told = sample(logits, [row(position=at, logprobs=True, top_logprobs=4, **shaped) for at in range(3)])
    silent = sample(logits, [row(position=at, top_logprobs=4, **shaped) for at in range(3)])
    expected = torch.log_softmax(logits.double(), -1)
    for at, token in enumerate(told):
        best = expected[at].topk(4)
        assert token.logprob == pytest.approx(expected[at, token.id].item(), abs=1e-6)
        assert [chance.id for chance in token.top] == best.indices.tolist()
        assert [chance.logprob for chance in token.top] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert [token.id for token in silent] == [token.id for token in told]
    assert all(token.logprob == 0 and not token.top for token in silent)


def test_more_alternatives_than_tokens_are_all_of_them() -> None:
    (token,) = sample(torch.tensor([[1.0, 3.0, 2.0]]), [row(temperature=0, logprobs=True, top_logprobs=20)])
    assert [chance.id for chance in token.top] == [1, 2, 0]


def test_no_rows_draw_nothing() -> None:
    assert sample(torch.zeros(0, 10), []) == []
