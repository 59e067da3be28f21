"""What the room has measured of a chain's frames, and the settings it draws from that."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos import peer_pb2
from protos.lanes import DECODE
from room.costs import Costs
from room.drafts import AUTO, OFF
from room.schedule import FramePlan, Limits
from room.speculation import always, extended


@dataclass(frozen=True)
class _Sent:
    plan: FramePlan
    at: float


class Tuning:
    """One chain's. `machines` names the machine of each stage: stages that share one share its processor.

    `speculate` is AUTO, OFF or a fixed number of guesses.
    """

    def __init__(self, machines: Sequence[str], limits: Limits, speculate: int, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._machines = tuple(machines)
        self._speculate = speculate
        self._clock = clock
        self._latency = Costs()  # there and back, without waiting for other frames
        self._busy = Costs()  # at the busiest machine
        self._flight: dict[int, _Sent] = {}

    def sent(self, step: int, plan: FramePlan) -> None:
        """A frame is on its way."""
        self._flight[step] = _Sent(plan, self._clock())

    def came_back(self, step: int, stages: Sequence[peer_pb2.StageTime]) -> None:
        """It is through the chain; `stages` is what each stage spent on it, none where it failed."""
        sent = self._flight.pop(step)
        if sent.plan.lane != DECODE or len(stages) != len(self._machines):
            return
        rows = sent.plan.rows
        waited = sum(stage.waited_us for stage in stages) / 1e6
        computed: dict[str, float] = defaultdict(float)
        for machine, stage in zip(self._machines, stages, strict=True):
            computed[machine] += stage.computed_us / 1e6
        self._latency.observe(rows, max(self._clock() - sent.at - waited, sum(computed.values())))
        self._busy.observe(rows, max(computed.values()))

    def with_drafts(self, plan: FramePlan) -> FramePlan:
        """The frame with guesses at what follows, where they pay."""
        if plan.lane != DECODE or self._speculate == OFF:
            return plan
        if self._speculate == AUTO:
            return extended(plan, self._cycle, self.limits.decode_tokens)
        return always(plan, self._speculate, self.limits.decode_tokens)

    def _cycle(self, rows: float) -> float:
        """Seconds between two decode frames of so many rows; 0: not known."""
        return max(self._busy.of(rows), self._latency.of(rows) / self.limits.decode_depth)
