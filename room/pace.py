"""How fast the room answers, from what it did in the last seconds."""

from collections import deque
from collections.abc import Callable

WINDOW = 10.0
"""Seconds of tokens that count for the room's speed."""

FINISHES = 16
"""Answers that count for the line's pace."""


class Pace:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens: deque[tuple[float, int]] = deque()
        self._finishes: deque[float] = deque(maxlen=FINISHES)

    def count(self, tokens: int) -> None:
        self._tokens.append((self._clock(), tokens))
        self._forget()

    def finished(self) -> None:
        self._finishes.append(self._clock())

    def tokens_per_second(self) -> float:
        """Over the last ten seconds, or since the first token of them."""
        self._forget()
        if not self._tokens:
            return 0.0
        since = self._clock() - self._tokens[0][0]
        return sum(count for _, count in self._tokens) / max(since, 1.0)

    def retry_after(self) -> int:
        """Whole seconds, 1 to 60, until a place should be free; 5 while nothing is known."""
        if len(self._finishes) < 2:
            return 5
        per_answer = (self._clock() - self._finishes[0]) / len(self._finishes)
        return max(1, min(60, round(per_answer)))

    def _forget(self) -> None:
        while self._tokens and self._clock() - self._tokens[0][0] > WINDOW:
            self._tokens.popleft()
