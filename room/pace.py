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
        self._took: deque[float] = deque(maxlen=FINISHES)

    def count(self, tokens: int) -> None:
        self._tokens.append((self._clock(), tokens))
        self._forget()

    def finished(self, took: float) -> None:
        """An answer is whole, `took` seconds after it began to run."""
        self._took.append(took)

    def tokens_per_second(self) -> float:
        """Over the last ten seconds, or since the first token of them."""
        self._forget()
        if not self._tokens:
            return 0.0
        since = self._clock() - self._tokens[0][0]
        return sum(count for _, count in self._tokens) / max(since, 1.0)

    def wait(self, ahead: int, running: int) -> float:
        """Seconds until `ahead` of `running` answers have made way, by how long the latest took; 0: not known yet."""
        if not self._took:
            return 0.0
        return ahead * sum(self._took) / len(self._took) / max(running, 1)

    def retry_after(self, running: int) -> int:
        """Whole seconds, 1 to 60, until a place should be free; 5 while nothing is known."""
        return max(1, min(60, round(self.wait(1, running)))) if self._took else 5

    def _forget(self) -> None:
        while self._tokens and self._clock() - self._tokens[0][0] > WINDOW:
            self._tokens.popleft()
