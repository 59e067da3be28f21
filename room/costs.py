"""What a frame takes, by its number of rows, as measured lately."""

from bisect import bisect_left
from collections import deque
from math import log2
from statistics import fmean, median

_KEPT = 8
"""Frames of a size that count; of these the median, so that one slow frame does not."""

_FORGET = 512
"""Frames without one of a size, after which what is known of that size is out of date."""

_UNKNOWN = 16
"""While frames of one size only were seen: so many more rows are taken to double the time."""


_LEAST = 1e-6
"""Seconds that every frame takes, whatever a peer says: others are divided by it."""


class Costs:
    """Seconds by rows: measured where there are measurements, a line between and beyond."""

    def __init__(self) -> None:
        self._sizes: dict[int, deque[tuple[int, float]]] = {}
        self._seen: dict[int, int] = {}
        self._count = 0
        self._points: list[tuple[float, float]] = []

    def __bool__(self) -> bool:
        return bool(self._points)

    def observe(self, rows: int, seconds: float) -> None:
        """A frame of `rows` took `seconds`."""
        self._count += 1
        size = round(4 * log2(rows))
        self._sizes.setdefault(size, deque(maxlen=_KEPT)).append((rows, max(seconds, _LEAST)))
        self._seen[size] = self._count
        for old in [each for each, seen in self._seen.items() if seen < self._count - _FORGET]:
            del self._seen[old], self._sizes[old]
        self._points = sorted(
            (fmean(rows for rows, _ in kept), median(seconds for _, seconds in kept)) for kept in self._sizes.values()
        )

    @property
    def known(self) -> bool:
        """Frames of several sizes were measured, so that it is known what a row costs."""
        return len(self._points) > 1

    def of(self, rows: float) -> float:
        """Seconds that a frame of `rows` should take; 0 while nothing is known."""
        points = self._points
        if not points:
            return 0.0
        at = bisect_left(points, (rows, 0.0))
        if 0 < at < len(points):
            (low, below), (high, above) = points[at - 1], points[at]
            return below + (above - below) * (rows - low) / (high - low)
        nearest, seconds = points[min(at, len(points) - 1)]
        return max(seconds / 4, seconds + self._slope() * (rows - nearest))

    def rows_within(self, seconds: float, most: int) -> int:
        """The most rows, up to `most`, of a frame that takes no longer than `seconds`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.of(middle) <= seconds else (low, middle - 1)
        return low

    def _slope(self) -> float:
        """Seconds a row, over everything that was seen."""
        (low, below), (high, above) = self._points[0], self._points[-1]
        if low == high:
            return below / (low + _UNKNOWN)
        return max(0.0, (above - below) / (high - low))
