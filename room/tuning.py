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
from room.speculation import always, extended, worth_drafting

log = logging.getLogger("pooled.room")

MOST_CHUNKS = 8
"""Prefill frames in flight."""

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
        self._machines = tuple(machines)
        self._speculate = speculate
        self._clock = clock
        self._latency = {DECODE: Costs(), PREFILL: Costs()}  # there and back, without waiting for other frames
        self._busy = {DECODE: Costs(), PREFILL: Costs()}  # at the busiest machine
        self._crossing: dict[int, float] = {}  # seconds that a row takes from a stage to the next one
        self._flight: dict[int, _Sent] = {}
        self._depth = Depth(apart)
        self._fixed = False

    def fix(self, frames: int) -> None:
        """Keep up to so many frames in flight in each lane from now on, whatever is measured."""
        self._fixed = True
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
        self._latency[lane].observe(rows, max(seconds - waited, sum(computed.values())))
        self._busy[lane].observe(rows, max(computed.values()))

    def _tune(self, sent: _Sent, running: int) -> None:
        if sent.plan.lane == DECODE and not sent.beside and running:
            latency, busy = self._latency[DECODE], self._busy[DECODE]
            self._depth.frame(
                self._clock(),
                len(sent.plan.shares),
                running,
                partial(steps_per_second, running=running, latency=latency, busy=busy, shared=self.limits.shared),
                partial(start, running, latency, busy, self.limits.shared, self._depth.value),
            )
        else:
            self._depth.disturbed()
        pace = steps_per_second(self._depth.value, running, self._latency[DECODE], self._busy[DECODE]) if running else 0
        chunk = beside(self._busy[PREFILL], running / pace if pace else 0.0, apart=len(set(self._machines)) > 1)
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

    def with_drafts(self, plan: FramePlan, may_guess: Callable[[Session], bool]) -> FramePlan:
        """The frame with guesses at what follows, where they pay, for those who may."""
        if plan.lane != DECODE or self._speculate == OFF:
            return plan
        if self._speculate == AUTO:
            return extended(plan, self._cycle, self.limits.decode_tokens, may_guess)
        return always(plan, self._speculate, self.limits.decode_tokens, may_guess)

    def guesses_worth(self, running: int, took: Callable[[int], float], chance: float, most: int) -> int:
        """How many guesses of a draft model, up to `most`, one of `running` answers is to wait for; 0: none."""
        if self._speculate != AUTO:
            return min(self._speculate, most)
        return worth_drafting(partial(self._period, running), took, chance, most)

    def _period(self, running: int, guesses: int) -> float:
        """Seconds between two frames of one of `running` answers, all with so many guesses; 0: not known."""
        frames = min(self.limits.decode_depth, running)
        rows = -(-running // frames) * (1 + guesses)
        return max(frames * self._busy[DECODE].of(rows), self._latency[DECODE].of(rows))

    def _cycle(self, rows: float) -> float:
        """Seconds between two decode frames of so many rows; 0: not known."""
        return max(self._busy[DECODE].of(rows), self._latency[DECODE].of(rows) / self.limits.decode_depth)
