"""What the room sends next: one pure function over sessions and frames in flight."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from protos.lanes import DECODE, PREFILL, Lane
from room.drafts import NOTHING, Draft
from room.session import Session


@dataclass(frozen=True)
class Share:
    """One session's part of a frame: its next `tokens` tokens, and behind them guesses at what follows."""

    session: Session
    tokens: int
    ends: bool
    """With these the session is up to date: from the last of them, and from each guess, a token is drawn."""
    draft: Draft = NOTHING
    drawn: int = 0
    """Its one token is not known yet: which of those it is that are drawn in the frame before, from 1."""

    @property
    def rows(self) -> int:
        return self.tokens + len(self.draft)

    @property
    def sampled(self) -> int:
        """How many of the last rows are drawn from."""
        return 1 + len(self.draft) if self.ends else 0


@dataclass(frozen=True)
class FramePlan:
    lane: Lane
    shares: tuple[Share, ...]
    rebuilds: bool = False
    """What stages lack that were replaced: it ends at the last of them."""
    audited: bool = False
    """Stages tell the room what they give."""
    owed: float = 0.0
    """Steps that every running answer is to take before another prompt is read, once this frame is sent."""
    follows: int = 0
    """The step in which the tokens are drawn that it was sent ahead of; 0: all are known."""

    @property
    def loops(self) -> bool:
        """Another frame may follow: what is drawn in this one, a token for each share, goes to the first peer too."""
        return self.lane == DECODE and not any(share.draft for share in self.shares)

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.shares)


@dataclass(frozen=True)
class Limits:
    """How far ahead of the answers the room works."""

    decode_depth: int
    """Decode frames in flight."""
    prefill_depth: int
    """Prefill frames in flight: chunk k+1 may enter stage 1 while chunk k is in stage 2."""
    decode_tokens: int = 32
    """Most tokens of one session in a decode frame: its last one, what follows it without a choice, and guesses."""
    prefill_tokens: int = 512
    """Largest prefill frame while nothing decodes."""
    prefill_tokens_beside: int = 128
    """Largest prefill frame beside running answers, which wait behind it at every stage."""
    prefill_tokens_at_once: int = 128
    """A prompt of so many tokens is read in one frame all the same, with others that fit into it."""
    rounds_beside: float = 1.0
    """Steps that every running answer takes for `prefill_tokens_beside` of prompts, or fewer in one frame."""
    shared: bool = False
    """Stages share a processor."""

    @property
    def by_turns(self) -> bool:
        """Frames of both lanes take turns: where stages share a processor, two at a time only slow each other down."""
        return self.shared and self.decode_depth == self.prefill_depth == 1


def next_frame(
    sessions: Sequence[Session], in_flight: Mapping[Lane, int], limits: Limits, owed: float
) -> FramePlan | None:
    """The next frame to send for running `sessions` (in order of admission), or None: nothing to send yet.

    `owed` is what the frame before this one says of it.
    """
    if not limits.by_turns:
        return _decode(sessions, in_flight[DECODE], limits, owed) or _prefill(sessions, in_flight, limits, owed)
    if any(in_flight.values()):
        return None
    return (
        _prefill(sessions, in_flight, limits, owed)
        or _decode(sessions, 0, limits, owed)
        or _prefill(sessions, in_flight, limits, 0.0)  # answers that wait for a page take no steps
    )


def frame_behind(
    step: int, plan: FramePlan, sessions: Sequence[Session], in_flight: Mapping[Lane, int], limits: Limits, owed: float
) -> FramePlan | None:
    """The decode frame that goes on where `plan`, sent as `step`, ends, before it is known what is drawn there.

    Those who are ready meanwhile come along. None where somebody who decodes needs the room between two steps, so that
    all keep one pace; where it is a prompt's turn; and where more frames are on their way than there should be.
    """
    decoding = [session for session in sessions if session.decoding]
    prompts_turn = limits.by_turns and owed <= 0 and any(session.prefilling for session in sessions)
    if not plan.loops or prompts_turn or in_flight[DECODE] > limits.decode_depth:
        return None
    if not all(session.foreseeable for session in decoding):
        return None
    going_on = (
        Share(session, 1, ends=True, drawn=number)
        for number, session in enumerate((share.session for share in plan.shares if share.ends), start=1)
        if session in sessions and session.can_go_ahead
    )
    ready = (_chunk(session, limits.decode_tokens) for session in decoding if session.ready_to_decode)
    shares = tuple(islice(chain(going_on, ready), -(-len(decoding) // limits.decode_depth)))
    if not any(share.drawn for share in shares):
        return None
    return FramePlan(DECODE, shares, owed=max(0.0, owed - len(shares) / len(decoding)), follows=step)


def _decode(sessions: Sequence[Session], in_flight: int, limits: Limits, owed: float) -> FramePlan | None:
    if in_flight >= limits.decode_depth:
        return None
    decoding = sum(session.decoding for session in sessions)
    most = -(-decoding // limits.decode_depth)
    ready = islice(_together(session for session in sessions if session.ready_to_decode), most)
    shares = tuple(_chunk(session, limits.decode_tokens) for session in ready)
    return FramePlan(DECODE, shares, owed=max(0.0, owed - len(shares) / decoding)) if shares else None


def _prefill(
    sessions: Sequence[Session], in_flight: Mapping[Lane, int], limits: Limits, owed: float
) -> FramePlan | None:
    beside = any(session.decoding for session in sessions) and (in_flight[DECODE] > 0 or limits.by_turns)
    if in_flight[PREFILL] >= limits.prefill_depth or (beside and owed > 0):
        return None
    # Whoever builds on pages that are rebuilt comes behind them.
    rebuilds = any(session.rebuilding for session in sessions)
    wanted = [session for session in sessions if session.prefilling and session.rebuilding is rebuilds]
    if not wanted:
        return None
    budget = limits.prefill_tokens
    if beside:
        budget, at_once = limits.prefill_tokens_beside, limits.prefill_tokens_at_once
        budget = max(budget, at_once) if wanted[0].untouched and wanted[0].unsent <= at_once else budget
    shares = tuple(_chunks(_together(wanted), budget))
    read = sum(share.tokens for share in shares) / limits.prefill_tokens_beside
    return FramePlan(PREFILL, shares, rebuilds, owed=limits.rounds_beside * max(1.0, read) if beside else 0.0)


def _together(sessions: Iterable[Session]) -> Iterator[Session]:
    """Those that may share a frame, the first of them in any case."""
    for at, session in enumerate(sessions):
        if not session.travels_alone:
            yield session
        elif not at:
            yield session
            return


def _chunks(sessions: Iterable[Session], budget: int) -> Iterable[Share]:
    """Fill a frame of `budget` tokens, first come first."""
    for session in sessions:
        if budget <= 0:
            return
        share = _chunk(session, budget)
        budget -= share.tokens
        yield share


def _chunk(session: Session, most: int) -> Share:
    tokens = min(session.unsent, session.to_landmark, most)
    return Share(session, tokens, ends=tokens == session.unsent)
