"""How a chat template frames the turns of the assistant, so that history can be written as it was generated.

Stock templates drop what they think a model no longer needs: thoughts before the last question, blanks around an
answer. Caches then no longer match. So a template is shown marks in place of the assistant's turns, and what it wrote
between a turn's beginning and its end is replaced by what the model wrote there.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Render = Callable[..., str]
"""Renders messages with a model's template: render(messages, **settings). Empty where the template refuses."""

MARK_OPEN, MARK_CLOSE = "\ufdd2", "\ufdd3"
"""Noncharacters, which no text has."""


def mark(number: int) -> str:
    return f"{MARK_OPEN}{number}{MARK_CLOSE}"


def marked(message: Message, number: int) -> Message:
    """An assistant's message with nothing but a mark in it. Of its calls one is left, since some templates take no
    result without a call, and some no more than one."""
    stand_in: Message = {"role": "assistant", "content": mark(number)}
    calls = message.get("tool_calls")
    if calls:
        function = {"name": calls[0]["function"]["name"], "arguments": {"mark": mark(number)}}
        stand_in["tool_calls"] = [calls[0] | {"function": function}]
    return stand_in


@dataclass(frozen=True)
class Frames:
    """`start` begins an assistant's turn, in the history and where the model is to write; `off` and `on` are what the
    template writes after it there, without and with thinking. `ends` are the tokens that may end a turn."""

    start: str
    off: str
    on: str
    ends: tuple[str, ...]

    @classmethod
    def learn(cls, render: Render, wrap: Callable[[str], Any], ends: Sequence[str]) -> "Frames | None":
        """What a template shows of its frames; None where it cannot be read off it."""
        question = {"role": "user", "content": wrap("q")}
        base = render([question], add_generation_prompt=False)
        tails = []
        for thinking in (False, True):
            prompt = render([question], add_generation_prompt=True, enable_thinking=thinking, thinking=thinking)
            if not prompt.startswith(base):
                return None
            tails.append(prompt[len(base) :])
        history = render([question, {"role": "assistant", "content": wrap(mark(0))}, question])
        if not base or not history.startswith(base) or mark(0) not in history:
            return None
        before = history[len(base) :].partition(mark(0))[0]
        start = _common(_common(before, tails[0]), tails[1])
        return cls(start, tails[0][len(start) :], tails[1][len(start) :], tuple(ends))

    def fill(self, text: str, bodies: Sequence[str]) -> list[str] | None:
        """Cut a rendered text at the marks: what stands before, between and after the turns' bodies.

        None where marks are missing or out of order.
        """
        pieces: list[str] = []
        done = 0
        for number, _ in enumerate(bodies):
            first, last = text.find(mark(number), done), text.rfind(mark(number))
            if first < 0:
                return None
            begin = text.rfind(self.start, done, first) + len(self.start) if self.start else first
            if first < last and not self.ends:
                return None  # the template writes calls in a way of its own
            end = self._end(text, last + len(mark(number)))
            if begin < done + len(self.start) or end is None:
                return None
            pieces.append(text[done:begin])
            done = end
        rest = text[done:]
        return None if MARK_OPEN in rest else [*pieces, rest]

    def _end(self, text: str, after: int) -> int | None:
        if not self.ends:
            return after
        found = re.compile("|".join(map(re.escape, self.ends))).search(text, after)
        return found.start() if found else None


def _common(one: str, other: str) -> str:
    """What both begin with."""
    length = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return one[:length] if length is not None else min(one, other, key=len)
