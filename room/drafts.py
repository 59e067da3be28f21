"""Guesses at how an answer goes on: what followed its last tokens where they stood before.

Answers that quote, edit or fill in repeat long stretches of their prompt or of themselves. A guess costs nothing but
the rows it takes in a frame, and is checked by what is drawn there (prompt lookup; see docs/lifecycle.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

AUTO, OFF = -1, 0
"""How many tokens to guess, where it is no fixed number."""

MOST = 24
"""Guesses of one session in a frame."""

GRAMS = (3, 2)
"""Tokens in a row that are looked up, longest first."""

_BITS = 21
"""Of a token id in a run's key: a run of three fits into a machine word."""

SETTLED = 8
"""Tokens that agree in a row, after which a stretch counts as being copied."""

_WEIGHT = 0.1
"""Of the newest token in the measured chances."""

_HOPE = 0.7
"""What is expected of a draft model's guesses in an answer before any was measured."""


@dataclass(frozen=True)
class Draft:
    """Guessed tokens, and for each place then drawn from the mask that applies if all guesses before it hold."""

    ids: tuple[int, ...] = ()
    masks: tuple[bytes | None, ...] = ()
    """One more than there are ids; empty in an empty draft."""

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> "Draft":
        return Draft(self.ids[:count], self.masks[: count + 1]) if count else NOTHING


NOTHING = Draft()


class DraftIndex:
    """Where each run of 2 or 3 tokens stood last. Each token costs a few look-ups, however long the text is."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[int, dict[int, int]] = {size: {} for size in GRAMS}  # a run's key -> the position behind it
        self._next = -1  # where the token stands that is expected next; -1: nothing is
        self._agreed = 0  # tokens before it that are those before the text's end
        self.fresh = 0.4
        """How often the first guess behind a run that was just found came true."""
        self.settled = 0.9
        """The same for a guess behind SETTLED tokens or more that agreed."""

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Learn a prompt: nothing is guessed in it."""
        for token in tokens:
            self._append(token)
        self._find()

    def feed(self, tokens: Sequence[int]) -> None:
        """Learn more of an answer, and measure whether it came as expected."""
        for token in tokens:
            came_true = self._next >= 0 and self._tokens[self._next] == token
            if self._next >= 0:
                self._measure(came_true)
            self._append(token)
            if came_true:
                self._next += 1
                self._agreed += 1
            else:
                self._find()

    def draft(self, most: int) -> list[int]:
        """Up to `most` tokens that may come next; a repetition that reaches the end goes on repeating."""
        if self._next < 0:
            return []
        tokens, draft = self._tokens, list[int]()
        for at in range(self._next, self._next + most):
            draft.append(tokens[at] if at < len(tokens) else draft[at - len(tokens)])
        return draft

    def chances(self, count: int) -> list[float]:
        """For each of `count` drafted tokens, how likely it and all before it come true."""
        chances, chance = [], 1.0
        for at in range(count):
            chance *= self.settled if self._agreed + at >= SETTLED else self.fresh
            chances.append(chance)
        return chances

    def _measure(self, came_true: bool) -> None:
        if self._agreed >= SETTLED:
            self.settled += _WEIGHT * (came_true - self.settled)
        else:
            self.fresh += _WEIGHT * (came_true - self.fresh)

    def _append(self, token: int) -> None:
        # The runs that end before this token: behind them stands what may be guessed.
        for size in GRAMS:
            if len(self._tokens) >= size:
                self._ends[size][self._key(size)] = len(self._tokens)
        self._tokens.append(token)

    def _find(self) -> None:
        """Look for the longest run that the text ends with."""
        tokens = self._tokens
        self._next, self._agreed = -1, 0
        for size in GRAMS:
            at = self._ends[size].get(self._key(size)) if len(tokens) >= size else None
            if at is not None:
                self._next, self._agreed = at, size
                return

    def _key(self, size: int) -> int:
        """Of the run of `size` tokens at the text's end."""
        tokens = self._tokens
        key = 0
        for at in range(-size, 0):
            key = key << _BITS | tokens[at]
        return key


class Guessed:
    """Guesses that a draft model made of one answer, and how often they come true."""

    def __init__(self) -> None:
        self.chance = _HOPE
        """How often a guess comes true whose predecessors did."""
        self._behind, self._ids = -1, list[int]()

    def take(self, behind: int, ids: Sequence[int]) -> None:
        """The model guesses `ids` behind the first `behind` tokens of the text."""
        self._behind, self._ids = behind, list(ids)

    def draft(self, length: int, most: int) -> list[int]:
        """Up to `most` tokens that may come behind a text of `length`, for which they have to be meant."""
        return self._ids[:most] if length == self._behind else []

    def judge(self, tokens: Sequence[int]) -> None:
        """The text has gone on: measure what it has shown of the guesses, sent along or not."""
        if not 0 <= self._behind < len(tokens):
            return
        for guess, token in zip(self._ids, tokens[self._behind :], strict=False):
            self.chance += _WEIGHT * ((guess == token) - self.chance)
            if guess != token:
                break
        self._behind = -1
