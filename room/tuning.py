"""What the room has measured of a chain's frames, and the settings it draws from that."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from protos import peer_pb2
from protos.lanes import DECODE, PREFILL, lane_name
from room.costs import Costs
from room.depth import Depth, start, steps_per_second
from room.drafts import AUTO, OFF
from room.interleave import alone, beside
from room.schedule import FramePlan, Limits
from room.session import Session
from room.speculation import always, expected, extended, worth_drafting

log = logging.getLogger("pooled.room")

MOST_CHUNKS = 8
"""Prefill frames in flight."""

MOST_AHEAD = 8
"""Decode frames that wait for one another: whoever ends or comes in between does so that many steps later."""

_WORTH_STOPPING = 1.15
"""So many times the tokens a second must guesses bring where they end that frames are sent ahead: those on their way
come back first, and behind the guesses the way is empty."""

_SLOW = 0.5
"""A link that takes so much of what the busiest machine does for a chunk decides how many are in flight: what machines
take drifts, and a link that has nothing to carry for a while is never made up for."""


@dataclass
class _Sent:
    plan: FramePlan
    at: float
    beside: bool
    """Frames of the other lane were on their way at the same time."""


class Tuning:
    """One chain's. `machines` names the machine of each stage: stages that share one share its processor.

    `speculate` is AUTO, OFF or a fixed number of guesses.
    """

    def __init__(self, machines: Sequence[str], speculate: int, clock: Callable[[], float]) -> None:
        apart = len(set(machines))
        self.limits = Limits(decode_depth=apart, prefill_depth=apart, shared=apart < len(machines))
        self.way = 0.0
        """Seconds from the last stage to the room and from there to the first one."""
        self._machines = tuple(machines)
        self._speculate = speculate
        self._clock = clock
        self._latency = {DECODE: Costs(), PREFILL: Costs()}  # there and back, without waiting for other frames
        self._around = Costs()  # of decode frames sent ahead: from the tokens of one to those of the next
        self._steps = self._latency[DECODE]  # of the two the one that holds for decode frames as they go now
        self._busy = {DECODE: Costs(), PREFILL: Costs()}  # at the busiest machine
        self._crossing: dict[int, float] = {}  # seconds that a row takes from a stage to the next one
        self._flight: dict[int, _Sent] = {}
        self._depth = Depth(apart)
        self._fixed, self._most_ahead = False, MOST_AHEAD

    def fix(self, frames: int, ahead: int = MOST_AHEAD) -> None:
        """Keep up to so many frames in flight in each lane from now on, whatever is measured, and `ahead` at most."""
        self._fixed, self._most_ahead = True, ahead
        self.limits = replace(self.limits, decode_depth=frames, prefill_depth=frames)

    def crosses(self, stage: int, row_seconds: float) -> None:
        """A row of hidden states takes so many seconds more than nothing does, from that stage to the next one."""
        self._crossing[stage] = row_seconds
        if not self._fixed:
            tokens = alone(max(self._crossing.values()))
            self.limits = replace(self.limits, prefill_tokens=tokens, prefill_depth=self._chunks_in_flight(tokens))

    def sent(self, step: int, plan: FramePlan) -> None:
        """A frame is on its way."""
        others = [sent for sent in self._flight.values() if sent.plan.lane != plan.lane]
        for sent in others:
            sent.beside = True
        self._flight[step] = _Sent(plan, self._clock(), bool(others))

    def came_back(self, step: int, stages: Sequence[peer_pb2.StageTime], running: int) -> None:
        """It is through the chain while `running` sessions decode.

        `stages` is what each stage spent on it, none where it failed.
        """
        sent = self._flight.pop(step)
        for behind in self._flight.values():
            if behind.plan.follows == step:
                behind.at = self._clock()  # it begins as the tokens reach the first peer, which is about now
        if log.isEnabledFor(logging.DEBUG):
            self._log(sent, stages)
        if len(stages) == len(self._machines) and not self._fixed:
            self._measure(sent, stages)
            self._tune(sent, running)

    def _log(self, sent: _Sent, stages: Sequence[peer_pb2.StageTime]) -> None:
        entry = {
            "lane": lane_name(sent.plan.lane),
            "sessions": len(sent.plan.shares),
            "rows": sent.plan.rows,
            "beside": sent.beside,
            "took_us": round((self._clock() - sent.at) * 1e6),
            "stages_us": [(stage.waited_us, stage.computed_us) for stage in stages],
        }
        log.debug("frame", extra=entry)

    def _measure(self, sent: _Sent, stages: Sequence[peer_pb2.StageTime]) -> None:
        lane, rows, seconds = sent.plan.lane, sent.plan.rows, self._clock() - sent.at
        computed: dict[str, float] = defaultdict(float)
        for machine, stage in zip(self._machines, stages, strict=True):
            computed[machine] += stage.computed_us / 1e6
        if lane == DECODE and sent.beside:
            return  # what it takes alone is what counts
        waited = sum(stage.waited_us for stage in stages) / 1e6
        if lane == DECODE:
            self._steps = self._around if sent.plan.follows else self._latency[DECODE]
        latency = self._steps if lane == DECODE else self._latency[PREFILL]
        latency.observe(rows, max(seconds - waited, sum(computed.values())))
        self._busy[lane].observe(rows, max(computed.values()))

    def _tune(self, sent: _Sent, running: int) -> None:
        if sent.plan.lane == DECODE and not sent.beside and running:
            latency, busy = self._steps, self._busy[DECODE]
            self._depth.frame(
                self._clock(),
                len(sent.plan.shares),
                running,
                partial(steps_per_second, running=running, latency=latency, busy=busy, shared=self.limits.shared),
                partial(start, running, latency, busy, self.limits.shared, self._depth.value),
                sure=busy.known or self.limits.shared,  # there fewer frames are better anyhow
            )
        else:
            self._depth.disturbed()
        pace = steps_per_second(self._depth.value, running, self._steps, self._busy[DECODE]) if running else 0
        # Where frames take turns, answers wait for a chunk all the way.
        stalls = self._latency[PREFILL] if self.limits.by_turns else self._busy[PREFILL]
        round_ = running / pace if pace else 0.0
        chunk = beside(self._busy[PREFILL], stalls, round_, apart=len(set(self._machines)) > 1)
        self.limits = replace(
            self.limits,
            decode_depth=self._depth.value,
            prefill_depth=self._chunks_in_flight(chunk.tokens if running else self.limits.prefill_tokens),
            prefill_tokens_beside=chunk.tokens,
            prefill_tokens_at_once=chunk.at_once,
            rounds_beside=chunk.rounds,
        )

    def _chunks_in_flight(self, tokens: int) -> int:
        """So many that the busiest machine or link always has one, as far as is known."""
        busy = self._busy[PREFILL].of(tokens)
        crossings = [row * tokens for row in self._crossing.values()]
        slowest = max(crossings, default=0.0)
        if slowest > _SLOW * busy:
            way = sum(crossings) + busy * len(set(self._machines))
            return min(MOST_CHUNKS, ceil(way / max(slowest, busy)) + 1)
        if not busy:
            return self.limits.prefill_depth
        return max(1, min(MOST_CHUNKS, round(self._latency[PREFILL].of(tokens) / busy)))

    def with_drafts(self, plan: FramePlan, may_guess: Callable[[Session], bool], *, loops: bool) -> FramePlan:
        """The frame with guesses at what follows, where they pay, for those who may.

        `loops`: without guesses it needs the room for nothing, and is through sooner.
        """
        if plan.lane != DECODE or self._speculate == OFF:
            return plan
        if self._speculate != AUTO:
            return always(plan, self._speculate, self.limits.decode_tokens, may_guess)
        guessing = extended(plan, self._cycle, self.limits.decode_tokens, may_guess)
        if guessing == plan or not loops:
            return guessing
        without, then = len(plan.shares) / self._loop(plan.rows), expected(guessing) / self._cycle(guessing.rows)
        return guessing if then > _WORTH_STOPPING * without else plan

    def ahead(self, rows: int) -> int:
        """How many decode frames are to wait, one for the other, behind one of so many rows: where the last stage tells
        the first what is drawn, the next one should have come by then.
        """
        around = self._around_of(rows)
        return min(self._most_ahead, max(1, ceil(self.way / around) if around else 1))

    def guesses_worth(
        self, running: int, took: Callable[[int], float], chance: float, most: int, *, loops: bool
    ) -> int:
        """How many guesses of a draft model, up to `most`, one of `running` answers is to wait for; 0: none.

        `loops`: without guesses it needs the room for nothing.
        """
        if self._speculate != AUTO:
            return min(self._speculate, most)
        return worth_drafting(partial(self._period, running, loops), took, chance, most)

    def _period(self, running: int, loops: bool, guesses: int) -> float:
        """Seconds between two frames of one of `running` answers, all with so many guesses; 0: not known."""
        frames = min(self.limits.decode_depth, running)
        rows = -(-running // frames) * (1 + guesses)
        latency = self._around_of(rows) if loops and not guesses else self._latency_of(rows)
        return max(frames * self._busy[DECODE].of(rows), latency)

    def _cycle(self, rows: float) -> float:
        """Seconds between two decode frames of so many rows; 0: not known."""
        return max(self._busy[DECODE].of(rows), self._latency_of(rows) / self.limits.decode_depth)

    def _loop(self, rows: float) -> float:
        """The same of frames sent ahead."""
        return max(self._busy[DECODE].of(rows), self._around_of(rows) / self.limits.decode_depth)

    def _around_of(self, rows: float) -> float:
        """Seconds that a decode frame sent ahead takes; 0: not known."""
        return self._around.of(rows) or max(self._latency[DECODE].of(rows) - self._saved, self._busy[DECODE].of(rows))

    def _latency_of(self, rows: float) -> float:
        """And one that the room sends when it knows all tokens; 0: not known."""
        around = self._around.of(rows)
        return self._latency[DECODE].of(rows) or (around + self._saved if around else 0.0)

    @property
    def _saved(self) -> float:
        """Seconds that it saves not to go by the room, if one stage is about as far from another as from the room."""
        return self.way if len(self._machines) == 1 else self.way / 2
