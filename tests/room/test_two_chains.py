"""What a second chain adds, in simulated time: peers on machines of their own, 16 streams."""

import os
from collections.abc import Sequence

import pytest

from room.drafts import OFF
from tests.room import fakes
from tests.room.fakes import ask
from tests.room.pipeline import Pipeline, Time

STREAMS = 16


@pytest.fixture(autouse=True)
def quick_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn does not matter here."""
    monkeypatch.setattr(fakes, "next_id", lambda ids, end: end % fakes.VOCAB)


def by_rows(base: float, row: float) -> Time:
    return lambda rows: base + row * rows


def speed(times: Sequence[Time], chains: int, link: float, *, straight: bool) -> float:
    """Tokens a second of all streams, with the peers of `times` in `chains` chains."""
    pipeline = Pipeline(times, chains=chains, link=link, straight=straight, speculate=OFF)
    sessions = [ask(pipeline.room, 5, max_new=4000, first=7 * at) for at in range(STREAMS)]
    return pipeline.pace(sessions, 3.0, 12.0)


def limit(base: float, row: float, count: int, way: float) -> float:
    """Most tokens a second of `count` streams through two stages, whatever the room did; `way` is all hops together."""

    def at(depth: int) -> float:
        rows = -(-count // depth)
        frame = base + row * rows
        return count / max(-(-count // rows) * frame, 2 * frame + way)

    return max(map(at, range(1, count + 1)))


TALKS = [pytest.param(0.036, 0.017, 1.6, id="long talks")]
"""What a frame takes at a stage, in seconds and seconds a row, and how much more two chains have to reach. These are
half of SmolLM2 on a core, in contexts of 4,000 tokens: there, attention makes rows dear (docs/benchmarks.md)."""

if "POOLED_SOAK" in os.environ:
    TALKS += [
        pytest.param(0.0, 0.010, 1.6, id="rows"),
        pytest.param(0.005, 0.010, 1.45, id="mostly rows"),
        pytest.param(0.036, 0.0037, 1.05, id="short talks"),
        pytest.param(0.040, 0.0, 0.95, id="flat"),
    ]


@pytest.mark.parametrize(("link", "straight"), [(0.0, True), (0.025, False), (0.025, True)])
@pytest.mark.parametrize(("base", "row", "least"), TALKS)
def test_a_second_chain_adds_all_that_it_can(
    base: float, row: float, least: float, link: float, straight: bool
) -> None:
    one = speed([by_rows(base, row)] * 2, 1, link, straight=straight)
    two = speed([by_rows(base, row)] * 4, 2, link, straight=straight)
    way = link * (2 if straight else 3)
    most = [chains * limit(base, row, STREAMS // chains, way) for chains in (1, 2)]
    print(f"{one:.0f} and {two:.0f} tok/s, {two / one:.2f} times; at most {most[0]:.0f} and {most[1]:.0f}")
    assert one >= 0.93 * most[0]
    assert two >= 0.93 * most[1]
    if not (link and straight):  # two hops leave little to hide, so that two chains cannot be so much better than one
        assert two >= least * one
