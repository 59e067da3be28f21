"""Attention over spans of a pool, against the definition written out."""

import math
from collections.abc import Sequence

import pytest
import torch

from peer import attention
from peer.attention import Heads, Span, attend_spans

HEADS, SHARED, DIM, SLOTS = 6, 2, 8, 64


def pool(seed: int) -> torch.Tensor:
    return torch.randn(SLOTS, SHARED, DIM, generator=torch.Generator().manual_seed(seed))


def by_head(*kept: torch.Tensor) -> list[torch.Tensor]:
    return [each.transpose(0, 1) for each in kept]


def by_definition(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: Heads, length: int
) -> torch.Tensor:
    """query [heads, rows, dim], keys and values [length, kv heads, dim] -> [rows, heads, dim], number by number."""
    rows = query.shape[1]
    out = torch.zeros(rows, HEADS, DIM)
    for head in range(HEADS):
        for row in range(rows):
            position = length - rows + row
            first = 0 if heads.window is None else max(0, position - heads.window + 1)
            shared = head // (HEADS // SHARED)
            logits = [float(query[head, row] @ keys[at, shared]) * heads.scale for at in range(first, position + 1)]
            if heads.softcap is not None:
                logits = [math.tanh(logit / heads.softcap) * heads.softcap for logit in logits]
            weights = [math.exp(logit) for logit in logits]
            total = sum(weights) + (math.exp(heads.sinks[head]) if heads.sinks is not None else 0)
            for weight, at in zip(weights, range(first, position + 1), strict=True):
                out[row, head] += weight / total * values[at, shared]
    return out


SINKS = torch.linspace(-1, 1, HEADS)

RUNS = {
    "one run": [(20, 20)],
    "a few runs": [(50, 1), (3, 12), (17, 3), (60, 4)],
    "many runs": [(50, 2), (3, 2), (17, 2), (60, 2), (30, 2), (40, 2), (9, 2), (20, 2), (0, 1), (44, 3)],
}
"""Of 20 slots."""


@pytest.mark.parametrize("rows", [1, 2, 20])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (2.0, None), (None, SINKS), (2.0, SINKS)])
@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_spans_follow_the_definition(
    rows: int, window: int | None, softcap: float | None, sinks: torch.Tensor | None, runs: Sequence[tuple[int, int]]
) -> None:
    length = sum(count for _, count in runs)
    slots = torch.cat([torch.arange(first, first + count) for first, count in runs])
    span = Span(rows, tuple(runs), slots) if len(runs) > 1 else Span(rows, tuple(runs))
    query = torch.randn(rows, HEADS, DIM, generator=torch.Generator().manual_seed(9))
    heads = Heads(0.5, window, softcap, sinks)
    found = attend_spans([span], query, by_head(pool(1), pool(2)), heads)
    assert found.shape == (rows, HEADS, DIM)
    expected = by_definition(query.transpose(0, 1), pool(1)[slots], pool(2)[slots], heads, length)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_pool_may_keep_fewer_bits_than_are_computed_with() -> None:
    query, span = torch.ones(2, HEADS, DIM), Span(2, ((20, 9),))
    found = attend_spans([span], query, by_head(pool(1).bfloat16(), pool(2).bfloat16()), Heads(0.5))
    assert found.dtype == torch.float32
    assert torch.allclose(found, attend_spans([span], query, by_head(pool(1), pool(2)), Heads(0.5)), atol=0.05)


def test_spans_of_one_call_stay_apart() -> None:
    scattered = Span(1, ((63, 1), (0, 1), (20, 1)), torch.tensor([63, 0, 20]))
    spans = [Span(1, ((4, 12),)), Span(3, ((30, 5),)), scattered]
    query = torch.randn(5, HEADS, DIM, generator=torch.Generator().manual_seed(9))
    together = attend_spans(spans, query, by_head(pool(1), pool(2)), Heads(0.5))
    row = 0
    for span in spans:
        alone = attend_spans([span], query[row : row + span.rows], by_head(pool(1), pool(2)), Heads(0.5))
        assert torch.allclose(together[row : row + span.rows], alone, atol=1e-6)
        row += span.rows


def test_a_layer_that_needs_a_mask_is_refused() -> None:
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(attention.UnsupportedArchitecture, match="Module needs an attention mask"):
        attention.pooled_attention(torch.nn.Module(), tensor, tensor, tensor, torch.zeros(1))
