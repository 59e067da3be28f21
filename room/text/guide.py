"""Which tokens an answer may have: thoughts first where there are any, then what a grammar allows.

A guide looks at tokens, not at text. Its answer tells it when thoughts begin and end.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from room.drafts import NOTHING, Draft
from room.errors import InternalError
from room.text.grammar import Grammar, Matcher, SchemaTooComplex
from room.text.tokenizer import TextModel

MAX_THOUGHTS = 4096
"""Tokens of thinking when the answer is held to a form."""


@dataclass(frozen=True)
class Rules:
    """What an answer is held to. The defaults hold it to nothing."""

    grammar: Grammar | None = None
    trigger: int | None = None
    """The token that the grammar begins with, after any text; None: it begins with the answer."""
    held_to_form: bool = False
    """The answer has to have the grammar's form, so thinking has to end in time, and the answer must not end before."""
    forbidden: int | None = None
    """A token that never comes: it would begin a call."""

    @property
    def whole(self) -> bool:
        """The grammar is one of the whole answer."""
        return self.grammar is not None and self.trigger is None


@contextmanager
def _outgrown() -> Iterator[None]:
    try:
        yield
    except SchemaTooComplex as error:
        raise InternalError("the answer's schema is too complex to go on with; simplify it") from error


class Guide:
    """A state machine without I/O. `thinking`: the answer begins with thoughts; `max_new`: its longest length."""

    def __init__(self, text: TextModel, rules: Rules, *, thinking: bool, max_new: int) -> None:
        self._text = text
        self._rules = rules
        self._tags = text.traits.tags if thinking else None
        """Of the thoughts the answer is still in; None: they are over, or there are none."""
        self._tail: list[int] = []  # the line end before the closing tag, which counts as thoughts
        self._budget: int | None = None
        if rules.held_to_form and self._tags is not None:
            self._tail = text.encode(self._tags.tail)
            self._budget = max(0, min(MAX_THOUGHTS, max_new // 2) - len(self._tail))
        self._matcher: Matcher | None = None
        self._pending: deque[int] = deque()  # come next, and are no business of the grammar's
        self._free = None if rules.forbidden is None else text.mask_without([rules.forbidden])
        if self._tags is None:
            self._begin()
        elif rules.whole and not text.traits.opened:
            # Thoughts that the prompt has not begun are begun for the model: else nobody knows when they are over.
            self._pending.extend(text.encode(self._tags.open + self._tags.head))

    def _begin(self) -> None:
        """The answer itself begins."""
        if self._rules.grammar is not None and self._rules.whole:
            self._matcher = self._rules.grammar.matcher()

    @property
    def over(self) -> bool:
        """The grammar has come to its end: nothing may follow. Raises InternalError as `mask` does."""
        if self._matcher is None:
            return False
        with _outgrown():
            return self._matcher.finished

    def mask(self) -> bytes | None:
        """Bits of the tokens that may come next; None: all.

        Raises InternalError where a grammar that compiled outgrows the compiler's limits after all.
        """
        if self._matcher is not None:
            with _outgrown():
                return self._matcher.mask()
        if self._tags is not None and self._rules.held_to_form:
            return self._text.eos_mask
        return self._free

    @property
    def steady(self) -> bool:
        """Nothing is known that would change what may come: no grammar is at work, and no budget runs out."""
        return self._matcher is None and not self._pending and self._budget is None

    def ahead(self, guess: Sequence[int]) -> Draft:
        """The part of a guess that may come, and the masks along it.

        Where no grammar is at work the mask is taken to stay; that it did is checked when the tokens have come.
        """
        if self._matcher is None or self._pending:
            return Draft(tuple(guess), (self.mask(),) * (len(guess) + 1))
        ids, masks = self._matcher.walk(guess)
        return Draft(tuple(ids), tuple(masks)) if ids else NOTHING

    def take(self, token: int, *, thinking: bool) -> None:
        """A token has come, which is no end of turn; `thinking`: among thoughts.

        Raises InternalError for one the grammar forbids.
        """
        if self._pending:
            self._pending.popleft()
            if not self._pending and self._tags is None:
                self._begin()
            return
        if self._matcher is None and self._rules.grammar is not None and token == self._rules.trigger and not thinking:
            self._matcher = self._rules.grammar.matcher()
        if self._matcher is None:
            return
        with _outgrown():
            accepted = self._matcher.accept(token)
        if not accepted:
            raise InternalError("the last peer sampled a token that the grammar forbids")

    def thoughts_over(self) -> None:
        """Thoughts have ended with the token that came last."""
        tags, self._tags = self._tags, None
        self._pending.clear()
        if tags is not None and tags.gap and self._rules.whole:
            self._pending.extend(self._text.encode(tags.gap))
        elif tags is not None:
            self._begin()

    def forced(self, thoughts: int) -> list[int]:
        """Tokens that come next without a choice, after so many tokens of thoughts."""
        spent = self._tags is not None and self._budget is not None and thoughts >= self._budget
        if spent and not self._pending and self._tags is not None:
            self._pending.extend([*self._tail, *self._text.encode(self._tags.close)])
        if self._pending:
            return list(self._pending)
        return self._matcher.forced() if self._matcher is not None else []
