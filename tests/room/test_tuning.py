"""What the room finds by measuring: how many frames to keep in flight, and how large a prefill chunk may be."""

import os
from collections.abc import Sequence
from itertools import pairwise

import pytest

from protos.lanes import PREFILL
from room.costs import Costs
from room.depth import MOST, Depth
from room.drafts import OFF
from room.interleave import CROSSING, LEAST, alone, beside
from room.interleave import MOST as MOST_TOKENS
from room.session import Session
from tests.room import fakes
from tests.room.fakes import ask
from tests.room.pipeline import Pipeline, Time

SLEEP = 0.040
SOAK = "POOLED_SOAK" in os.environ
LONG = 4000 if SOAK else 800
"""Tokens of a long prompt."""


@pytest.fixture(autouse=True)
def quick_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn does not matter here."""
    monkeypatch.setattr(fakes, "next_id", lambda ids, end: end % fakes.VOCAB)


def sleeps(rows: int) -> float:
    return SLEEP


def by_rows(base: float, row: float) -> Time:
    return lambda rows: base + row * rows


def streams(pipeline: Pipeline, count: int) -> list[Session]:
    return [ask(pipeline.room, prompt=5, max_new=4000, first=at) for at in range(count)]


def speed(
    times: Sequence[Time], count: int, *, warm: float = 8.0, seconds: float = 3.0, **options: object
) -> tuple[float, Pipeline]:
    """Tokens a second over so many seconds, which should hold many frames: tokens come by the frame."""
    pipeline = Pipeline(times, speculate=OFF, max_running=64, **options)
    return pipeline.pace(streams(pipeline, count), seconds, warm), pipeline


def test_behind_slow_links_every_session_moves_as_fast_as_the_way_round_allows() -> None:
    """Frames that take the same time whatever their size: a token takes two of them and three hops, and no longer."""
    reached, pipeline = speed([sleeps] * 2, 16, link=0.025)
    assert reached >= 0.9 * 16 / (2 * SLEEP + 3 * 0.025)
    assert pipeline.room.chains[0].limits.decode_depth >= 2


def test_with_frames_of_one_size_links_cost_nothing() -> None:
    """Compute in proportion to rows: as long as the pipeline is full, delays are hidden entirely."""
    row = by_rows(0.0, SLEEP / 4)
    near, _ = speed([row] * 2, 16)
    far, pipeline = speed([row] * 2, 16, link=0.025)
    assert far >= 0.9 * near
    assert pipeline.room.chains[0].limits.decode_depth >= 3


def test_peers_on_one_processor_get_one_full_frame() -> None:
    reached, pipeline = speed([by_rows(0.020, 0.001)] * 2, 16, machines=["m", "m"])
    assert pipeline.room.chains[0].limits.decode_depth == 1
    assert reached >= 0.95 * 16 / (2 * 0.036)


def test_a_slow_stage_decides() -> None:
    reached, _ = speed([by_rows(0.001, 0.0005), by_rows(0.010, 0.010)], 8, link=0.020)
    best = max(8 / max(d * (0.010 + 0.010 * 8 / d), 0.011 + 0.06 + 0.0105 * 8 / d) for d in (1, 2, 4, 8))
    assert reached >= 0.9 * best


STREAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if SOAK else (1, 4, 16, 32)


@pytest.mark.parametrize("link", [0.0, 0.025])
@pytest.mark.parametrize("machines", [["a", "b"], ["a", "a"]])
@pytest.mark.parametrize("time", [sleeps, by_rows(0.030, 0.003), by_rows(0.005, 0.010)], ids=["flat", "mixed", "rows"])
def test_more_streams_are_never_slower_together(time: Time, machines: list[str], link: float) -> None:
    warm, seconds = (20.0, 30.0) if SOAK else (9.0, 3.0)
    totals = [
        speed([time] * 2, count, link=link, machines=machines, warm=warm, seconds=seconds)[0] for count in STREAMS
    ]
    for fewer, more in pairwise(totals):
        assert more >= 0.95 * fewer, totals


def test_it_finds_the_depth_again_when_a_stage_becomes_slower() -> None:
    pipeline = Pipeline([by_rows(0.010, 0.002)] * 2, link=0.1, speculate=OFF, max_running=64)
    sessions = streams(pipeline, 16)
    pipeline.pace(sessions, 1.0, 5.0)
    assert 1 < pipeline.room.chains[0].limits.decode_depth <= MOST
    pipeline.stages[1].time = by_rows(0.2, 0.0)
    reached = pipeline.pace(sessions, 10.0, 60.0)
    best = max(16 / max(d * 0.2, 0.51 + 0.002 * 16 / d) for d in range(1, 17))
    assert reached >= 0.85 * best


def test_what_was_tried_in_vain_is_tried_less_often_also_after_others_were_running() -> None:
    depth, now = Depth(2), 0.0
    trials = []
    for _ in range(6):
        depths = set()
        for running in (8, 2):  # a burst of eight, then two
            for _ in range(120):
                now += 0.010 if depth.value == 2 else 0.013
                depth.frame(now, running, running, lambda _: 1.0, lambda: 2)
                depths |= {depth.value} if running == 8 else set()
        trials.append(len(depths - {2}))
    assert trials[0] > 0
    assert trials[-1] == 0


def test_a_trial_that_turns_out_badly_ends_when_the_depth_before_would_be_through() -> None:
    depth, now, lost = Depth(1), 0.0, 0.0
    for _ in range(200):
        took = 0.1 if depth.value == 1 else 2.0
        now, lost = now + took, lost + (took if depth.value > 1 else 0.0)
        depth.frame(now, 8 // depth.value, 8, lambda _: 1.0, lambda: 1)
    assert lost > 0
    assert lost <= 5 * 2 * 2.0, "two frames for each of a few trials"


# ---------------------------------------------------------------- prefill beside decode


@pytest.mark.parametrize("link", [0.0, 0.025])
@pytest.mark.parametrize("machines", [["a", "b"], ["a", "a"]])
@pytest.mark.parametrize("time", [by_rows(0.030, 0.001), by_rows(0.005, 0.004)], ids=["batches", "rows"])
def test_running_answers_keep_half_their_pace_beside_a_long_prefill(
    time: Time, machines: list[str], link: float
) -> None:
    pipeline = Pipeline([time] * 2, link=link, machines=machines, speculate=OFF)
    sessions = streams(pipeline, 4)
    alone = pipeline.pace(sessions, 2.0, 5.0)
    long = ask(pipeline.room, prompt=LONG, max_new=5, first=500)
    before = sum(len(session.tokens) for session in sessions)
    took = pipeline.run(lambda: long.decoding)
    beside = (sum(len(session.tokens) for session in sessions) - before) / took
    assert beside >= 0.5 * alone
    assert took < 5 * (LONG * 2 * time(1000) / 1000 + LONG / 32 * 2 * time(1)), "and the prefill does not starve either"


def test_a_chunk_takes_no_more_than_three_steps_of_the_answers() -> None:
    costs = Costs()
    assert beside(costs, costs, 0.1, apart=False) == (128, 1.0, 128)
    for rows in (16, 512):
        costs.observe(rows, 0.010 + 0.001 * rows)
    assert beside(costs, costs, 0.0, apart=True) == (128, 1.0, 490), "before anybody decodes"
    tokens, rounds, at_once = beside(costs, costs, 0.110, apart=False)
    assert (tokens, rounds) == (320, pytest.approx(1.2 * 0.330 / 0.110))
    assert at_once == 490, "half a second of short prompts"
    tokens, rounds, _ = beside(costs, costs, 0.005, apart=True)
    assert tokens == LEAST
    assert rounds == pytest.approx(1.7 * 0.026 / 0.005), "where even the least is too much it comes less often"


@pytest.mark.parametrize("machines", [["a", "b"], ["a", "a"]])
@pytest.mark.parametrize("crossing", [0.0046, 0.0024])
def test_a_slow_link_is_never_idle_while_a_long_prompt_is_read(machines: list[str], crossing: float) -> None:
    """A prompt takes what the link does for all of it, and beside that what stages do for the first and last chunk."""
    time, tokens = by_rows(0.010, 0.001), 2000
    pipeline = Pipeline([time] * 2, crossing=crossing, machines=machines, speculate=OFF)
    for first in (0, tokens):  # the first one meets a room that has measured nothing but its link
        asked = ask(pipeline.room, prompt=tokens, max_new=1, first=first)
        took = pipeline.run(lambda: asked.ended)  # noqa: B023
        assert took <= tokens * crossing + 2 * time(int(CROSSING / crossing)) + SLEEP


def test_chunks_are_as_large_as_links_let_them() -> None:
    assert [alone(row) for row in (0.0, 1e-6, 0.0046, 10.0)] == [MOST_TOKENS, MOST_TOKENS, 108, LEAST]


@pytest.mark.parametrize("machines", [["a", "b"], ["a", "a"]])
def test_running_answers_keep_half_their_pace_while_short_prompts_never_end(machines: list[str]) -> None:
    pipeline = Pipeline([by_rows(0.030, 0.001)] * 2, machines=machines, speculate=OFF)
    sessions = streams(pipeline, 4)
    alone = pipeline.pace(sessions, 2.0, 5.0)
    end, before, asked = pipeline.clock.now + 10.0, sum(len(session.tokens) for session in sessions), 0
    while pipeline.clock.now < end:
        asked += 1
        short = ask(pipeline.room, prompt=60, max_new=1, first=500 + 60 * asked)
        pipeline.run(lambda: short.ended)  # noqa: B023
    assert (sum(len(session.tokens) for session in sessions) - before) / 10.0 >= 0.5 * alone
    assert asked >= 10


@pytest.mark.parametrize("machines", [["a", "b"], ["a", "a"]])
def test_requests_that_come_together_are_under_way_together(machines: list[str]) -> None:
    pipeline = Pipeline([by_rows(0.030, 0.001)] * 2, machines=machines, speculate=OFF)
    streams(pipeline, 1)
    pipeline.pace([], 5.0)
    before = pipeline.frames[PREFILL]
    sessions = [ask(pipeline.room, prompt=15, max_new=100, first=500 + 15 * at) for at in range(8)]
    pipeline.run(lambda: all(session.decoding for session in sessions))
    assert pipeline.frames[PREFILL] - before <= 2, "the first of them went alone"
