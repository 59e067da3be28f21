"""How many tokens to guess: as many as pay by what was measured, and none where a guess costs more than it brings.

A row of a frame that turns out wrong costs time at every stage and on every link, and brings nothing. So the guesses
of a frame are those that raise the tokens it should bring a second, by the measured chances of each session's guesses
and the measured time of frames by size.
"""

from collections.abc import Callable
from dataclasses import replace

from room.drafts import MOST, NOTHING, Draft
from room.schedule import FramePlan, Share
from room.session import Session

_DOUBT = 0.9
"""How much of what guesses should bring is counted on."""


def extended(
    plan: FramePlan, cycle: Callable[[float], float], largest: int, may_guess: Callable[[Session], bool]
) -> FramePlan:
    """A decode frame with the guesses that pay, for those who `may_guess`; no session gets more than `largest` rows.

    `cycle` gives the seconds between two such frames by their rows; 0 while that is not known: then nothing is guessed.
    """
    rows, tokens = plan.rows, float(len(plan.shares))
    if not cycle(rows):
        return plan
    shares = []
    for share in plan.shares:
        draft = _offered(share, MOST, largest)
        count, brought = _best(tokens, rows, share.session.chances(len(draft)), cycle)
        if count and may_guess(share.session):
            share = replace(share, draft=draft.first(count))
            rows, tokens = rows + count, tokens + brought
        shares.append(share)
    return replace(plan, shares=tuple(shares))


def expected(plan: FramePlan) -> float:
    """Tokens that a decode frame should bring."""
    guesses = (share.session.chances(len(share.draft)) for share in plan.shares if share.draft)
    return len(plan.shares) + _DOUBT * sum(sum(chances) for chances in guesses)


def worth_drafting(period: Callable[[int], float], took: Callable[[int], float], chance: float, most: int) -> int:
    """How many tokens a draft model should guess, for which the answer waits; 0: that would slow it down.

    `period` gives the seconds between two frames of the answer by the guesses in each, `took` those that the model
    guesses, `chance` is how often a guess comes true whose predecessors did. Where `period` is not known: 0.
    """
    if not period(0):
        return 0
    best, count, right, tokens = 1 / period(0), 0, 1.0, 1.0
    for number in range(1, most + 1):
        right *= chance
        tokens += _DOUBT * right
        rate = tokens / (period(number) + took(number))
        if rate > best:
            best, count = rate, number
    return count


def always(plan: FramePlan, most: int, largest: int, may_guess: Callable[[Session], bool]) -> FramePlan:
    """A decode frame with `most` guesses for each session that has as many, whether they pay or not."""
    drafts = ((share, _offered(share, most, largest)) for share in plan.shares)
    return replace(
        plan,
        shares=tuple(
            replace(share, draft=draft) if draft and may_guess(share.session) else share for share, draft in drafts
        ),
    )


def _offered(share: Share, most: int, largest: int) -> Draft:
    return share.session.draft(min(most, largest - share.rows)) if share.ends else NOTHING


def _best(tokens: float, rows: int, chances: list[float], cycle: Callable[[float], float]) -> tuple[int, float]:
    """How many guesses bring the most tokens a second, and how many tokens those bring."""
    best, count, brought, total = tokens / cycle(rows), 0, 0.0, 0.0
    for number, chance in enumerate(chances, 1):
        total += _DOUBT * chance
        rate = (tokens + total) / cycle(rows + number)
        if rate > best:
            best, count, brought = rate, number, total
    return count, brought
