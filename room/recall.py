"""The exact tokens of answers the room wrote: a later turn that quotes one is given them back.

A client sends an answer back as text, and text does not tell how it was sampled: "Hel" + "lo" comes back as "Hello".
What the peers hold is "Hel" + "lo", so the room swaps its own tokens in where the texts are the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

MOST_TOKENS = 4_000_000
"""Tokens remembered, prompts included; the oldest answers are forgotten beyond."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class _Written:
    prompt: Ids
    answer: Ids
    """Without its end-of-turn token."""
    spelling: bytes
    controls: Ids
    """The control tokens in it: text that only looks like one is not the same."""


class Recall:
    """Remembers answers of one model. `spell` gives a token's bytes, control tokens' too; `controls` are their ids."""

    def __init__(self, spell: Callable[[int], bytes], controls: Collection[int], ends: Collection[int]) -> None:
        self._spell = spell
        self._controls = frozenset(controls)
        self._ends = frozenset(ends)
        self._written: OrderedDict[tuple[Ids, Ids], _Written] = OrderedDict()
        self._tokens = 0

    def __repr__(self) -> str:
        return f"<Recall [{len(self._written)} answers, {self._tokens} tokens]>"

    def remember(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """An answer was written after `prompt`."""
        whole = tuple(answer[:-1] if answer and answer[-1] in self._ends else answer)
        written = _Written(tuple(prompt), whole, self._spelled(whole), self._controls_of(whole))
        key = (written.prompt, written.answer)
        self._tokens += (len(prompt) + len(whole)) * (key not in self._written)
        self._written[key] = written
        self._written.move_to_end(key)
        while self._tokens > MOST_TOKENS:
            _, oldest = self._written.popitem(last=False)
            self._tokens -= len(oldest.prompt) + len(oldest.answer)

    def restore(self, prompt: Sequence[int]) -> list[int]:
        """`prompt` with the room's own answers in it as they were written."""
        ids = list(prompt)
        # An earlier answer stands in the prompts of later ones, so shorter prompts come first.
        for written in sorted(self._written.values(), key=lambda each: len(each.prompt)):
            start = len(written.prompt)
            if start < len(ids) and tuple(ids[:start]) == written.prompt:
                end = self._end_of(written, ids, start)
                if end is not None:
                    ids[start:end] = written.answer
        return ids

    def _end_of(self, written: _Written, ids: Sequence[int], start: int) -> int | None:
        """Where the answer's text ends in `ids`, when it stands there from `start` on."""
        length, end = 0, start
        while length < len(written.spelling) and end < len(ids):
            length += len(self._spell(ids[end]))
            end += 1
        quoted = ids[start:end]
        same = self._spelled(quoted) == written.spelling and self._controls_of(quoted) == written.controls
        return end if same else None

    def _spelled(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._spell(token) for token in ids)

    def _controls_of(self, ids: Sequence[int]) -> Ids:
        return tuple(token for token in ids if token in self._controls)
