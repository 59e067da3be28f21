"""How much prefill there may be at a time: beside running answers so much that they keep more than half their pace.

A long prompt is read in chunks, between which every answer takes some steps. Short ones are read in one frame, as many
as there are: one pause, for which the answers get more steps after it, instead of many. So requests that come together
are under way together, and from then on share each step.
"""

from typing import NamedTuple

from room.costs import Costs

LEAST, MOST = 16, 512
"""Tokens of a chunk."""

_FIRST = 128
"""Tokens of a chunk while nothing is measured."""

_LATE, _LATE_APART = 3.0, 1.5
"""Steps of the answers that a chunk may take. Few rows cost a stage nearly as much as many, so that smaller chunks took
much longer to get many requests under way; with several machines the steps beside them suffer from larger ones."""

_SPARE, _SPARE_APART = 1.2, 1.7
"""So many times what chunks take do answers get for themselves; more with several machines, at each of which a chunk
holds them up."""


CROSSING = 0.5
"""Seconds that a chunk may be on its way from one stage to the next while nothing decodes: the later stage idles until
the first one is there, and computes the last one when the link is idle."""

PAUSE = 0.5
"""Seconds for which answers may pause while short prompts are read."""


class Beside(NamedTuple):
    tokens: int
    """Of a chunk."""
    rounds: float
    """Steps that every running answer takes between two chunks."""
    at_once: int
    """Tokens of short prompts that may be read in one frame; as many as a chunk has at least."""


def alone(row_crossing: float) -> int:
    """Tokens of a chunk while nothing decodes, where a row takes so many seconds over the slowest link."""
    return max(LEAST, min(MOST, int(CROSSING / row_crossing))) if row_crossing else MOST


def beside(chunks: Costs, stalls: Costs, round_: float, *, apart: bool) -> Beside:
    """How to chunk, by what chunks take at the busiest machine and what a step of all answers takes without any.

    `stalls` is for how long a chunk holds answers up. Beside a long prompt no token is late by much more than a few
    such steps, whose time is 0 while it is not known. `apart`: on several machines.
    """
    if not chunks:
        return Beside(_FIRST, 1.0, _FIRST)
    at_once = chunks.rows_within(PAUSE, MOST)
    if not round_:
        return Beside(_FIRST, 1.0, max(_FIRST, at_once))
    spare, late = (_SPARE_APART, _LATE_APART) if apart else (_SPARE, _LATE)
    tokens = max(LEAST, chunks.rows_within(late * round_, MOST))
    at_once = max(tokens, at_once)
    return Beside(tokens, max(1.0, spare * stalls.of(tokens) / round_), at_once)
