"""How many decode frames to keep in flight: found by measuring, not assumed.

With d frames each session is in one of them, so a frame holds 1/d of the sessions, and all sessions take a step in the
time of one round trip or of d frames at the busiest machine, whichever is longer. Peers that share a processor want
one full frame; peers apart or behind slow links want as many as keep each of them busy.
"""

from collections.abc import Callable
from math import ceil, inf, log2

from room.costs import Costs

MOST = 16
"""Frames in flight."""

_ROUNDS = 4
"""Steps of every session that make one measurement."""

_SETTLING = 2
"""Steps of every session that pass until a new depth has come about."""

_ON_WAY = 1
"""Steps that may have been sent ahead at the old depth by then: a trial may take so many more to come to its end."""

_GAIN = 1.05
"""A depth has to be so much faster than the one before to be kept."""

_HOPELESS = 0.95
"""A depth that should reach less than this part of the speed is not tried."""

_CHANGED = 0.7
"""At less than this part of the speed before, something is different now: it is time for a trial."""

_AS_GOOD = 0.99
"""Depths that should reach this part of the best one's speed are about as fast."""

_WORTH_SHARING = 0.8
"""The same where stages share a processor: frames that are computed at the same time slow each other down there, which
no frame alone foretells. More than one has to be much better, as it is over slow links, or found so by a trial."""

_PATIENCE, _LONGEST_PATIENCE = 2, 64
"""Measurements between two trials; twice as many after each trial in vain."""


def steps_per_second(depth: int, running: int, latency: Costs, busy: Costs, *, shared: bool = False) -> float:
    """What `running` sessions should reach, by the measured time of a frame there and back and at the busiest machine.

    Both by rows; 0 while they are unknown. Where stages share a processor (`shared`) more frames than one have to
    promise more.
    """
    rows = ceil(running / depth)
    cycle = max(latency.of(rows), ceil(running / rows) * busy.of(rows))
    slowed = _WORTH_SHARING if shared and depth > 1 else 1.0
    return slowed * running / cycle if cycle else 0.0


def start(running: int, latency: Costs, busy: Costs, shared: bool, otherwise: int) -> int:
    """The depth to start from: of those that should be about the fastest, the one that leaves no machine idle.

    Where stages share a processor (`shared`), the one with the fullest frames.
    """
    speeds = {depth: steps_per_second(depth, running, latency, busy) for depth in range(1, min(MOST, running) + 1)}
    best = max(speeds.values(), default=0.0)
    if not best:
        return otherwise
    if shared:
        return min(depth for depth, speed in speeds.items() if speed >= _WORTH_SHARING * best)
    return max(depth for depth, speed in speeds.items() if speed >= _AS_GOOD * best)


class Depth:
    """Climbs to the fastest depth, one up or down at a time, for about as many sessions as are running.

    Sessions that start or end in the middle of a measurement spoil it; what was found for their number is
    remembered, and how often to look for something better.
    """

    def __init__(self, otherwise: int) -> None:
        self.value = otherwise
        self._found: dict[int, int] = {}
        self._patience: dict[int, int] = {}  # measurements between two trials, by level as well
        self._level = 0
        self._from: int | None = None  # the depth a trial is compared with
        self._speed = 0.0  # and its speed
        self._until = 0.0  # when a trial that has not come to its end is lost: by then that depth would have
        self._up = True
        self._hold = _PATIENCE
        self._skip = 0
        self._since, self._steps = -1.0, 0
        self._sure = True

    def frame(
        self,
        now: float,
        sessions: int,
        running: int,
        speed: Callable[[int], float],
        first: Callable[[], int],
        *,
        sure: bool = True,
    ) -> None:
        """A decode frame with so many `sessions` came back while `running` were decoding.

        `speed` foretells what a depth should reach, by what frames of several sizes took if it is `sure`; `first` gives
        what to start from.
        """
        self._sure = sure
        if self._level != _level_of(running):
            self._enter(_level_of(running), first)
        elif self._from is not None and now > self._until:
            self._give_up(self._from)
        elif self._skip > 0:
            self._skip -= 1
        elif self._since < 0:
            self._since = now
        else:
            self._steps += sessions
            if self._steps >= _ROUNDS * running:
                self._measured(now, self._steps / max(now - self._since, 1e-9), running, speed, first)

    def disturbed(self) -> None:
        """Something else than decode frames is on its way: what is being measured tells nothing."""
        self._until = inf
        self._restart()

    def _measured(
        self, now: float, speed: float, running: int, foretold: Callable[[int], float], first: Callable[[], int]
    ) -> None:
        self._restart()
        self._until = now + (_ROUNDS + _SETTLING + _ON_WAY) * running / speed
        if self._level not in self._found:  # the first look at so many sessions: now it is known what a frame takes
            self._found[self._level] = first()
            self._set(self._found[self._level])
        elif self._from is None:
            self._hold = 0 if speed < _CHANGED * self._speed else self._hold - 1
            self._speed = speed
            if self._hold <= 0:
                self._try(running, foretold, first)
        elif speed > _GAIN * self._speed:
            self._found[self._level] = self.value
            self._speed, self._from = speed, None
            self._patience[self._level] = _PATIENCE
            self._try(running, foretold, first)
        else:
            self._give_up(self._from)

    def _give_up(self, former: int) -> None:
        """A trial was in vain."""
        self._restart()
        self._set(former)
        self._from, self._up = None, not self._up
        self._hold = self._patience[self._level] = min(2 * self._patience_here, _LONGEST_PATIENCE)

    def _try(self, running: int, foretold: Callable[[int], float], first: Callable[[], int]) -> None:
        """Try another depth: the one that is foretold to be best if that is much better, else the next one."""
        self._hold = self._patience_here
        best = [first()] if foretold(first()) > _GAIN * foretold(self.value) else []
        for depth in (*best, *(self.value + step for step in ((1, -1) if self._up else (-1, 1)))):
            possible = 1 <= depth <= min(MOST, running)
            if possible and (not self._sure or foretold(depth) >= _HOPELESS * foretold(self.value)):
                self._from, self._up = self.value, depth > self.value
                self._set(depth)
                return

    def _enter(self, level: int, first: Callable[[], int]) -> None:
        self._level, self._from, self._speed = level, None, 0.0
        self._hold = self._patience_here
        self._set(self._found[level] if level in self._found else first())
        self._restart()

    @property
    def _patience_here(self) -> int:
        return self._patience.get(self._level, _PATIENCE)

    def _set(self, depth: int) -> None:
        # Frames of the old depth have to come back first.
        self._skip = _SETTLING * max(depth, self.value)
        self.value = depth

    def _restart(self) -> None:
        self._since, self._steps = -1.0, 0


def _level_of(running: int) -> int:
    return round(2 * log2(max(running, 1)))
