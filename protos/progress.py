"""How far many bytes have come: how many, how fast, and how long the rest takes."""

import time
from collections.abc import Callable

_OVER = 5.0
"""Seconds that the rate is taken over."""

_TELL_EVERY = 0.2
"""Seconds."""


class Meter:
    """Counts bytes towards a total."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done = total, 0
        self._clock = clock
        self._marks = [(clock(), 0)]
        self._told_at = clock()

    def add(self, count: int) -> bool:
        """Whether it is worth telling: so many times a second, and at the end."""
        return self.reach(self.done + count)

    def reach(self, done: int) -> bool:
        """So many bytes have come by now. As `add`."""
        self.done = done
        now = self._clock()
        if now - self._marks[-1][0] >= _OVER / 10:
            self._marks.append((now, self.done))
            while len(self._marks) > 2 and now - self._marks[1][0] > _OVER:
                del self._marks[0]
        if now - self._told_at < _TELL_EVERY and self.done < self.total:
            return False
        self._told_at = now
        return True

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(self.done / self.total, 1.0) if self.total else 1.0

    @property
    def rate(self) -> float:
        """Bytes a second, of late."""
        since, before = self._marks[0]
        passed = self._clock() - since
        return (self.done - before) / passed if passed > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None while nothing has come."""
        return max(self.total - self.done, 0) / self.rate if self.rate else None


def amount(count: int) -> str:
    """So many bytes, for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
