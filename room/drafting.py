"""Guesses of a draft model, where the text itself has none: what it is asked, and what comes back.

The model runs in a process of its own beside the room (peer/drafter.py) and knows of sessions what it is sent. An
answer that is to get guesses waits for them with its next frame, for no longer than PATIENCE, while others go on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING

from protos import peer_pb2, room_pb2
from protos.outbox import Outbox
from room.costs import Costs
from room.prefix import common
from room.session import Session

if TYPE_CHECKING:
    from room.chain import Chain

MOST = 8
"""Guesses asked for at once: each takes a step of the draft model, and is worth less than the one before."""

PATIENCE = 0.25
"""Seconds that an answer waits at most."""

RETRY = 10.0
"""Seconds after which one guess is asked for although none seemed worth it: what slowed the model down may be over."""

BEHIND = 16
"""Tokens that the model may have to read before it guesses; of more it reads first, and nobody waits."""

_FEW = 2
"""Tokens to read before the first guess, up to which the time that guesses took tells what they cost."""


@dataclass
class _Followed:
    """A session that the draft model reads along with."""

    session: Session
    params: peer_pb2.SamplingParams
    sent: int = 0
    """How many of its tokens the model was sent."""
    guesses: list[int] = field(default_factory=list)
    """What it guessed behind them."""
    can_guess: bool = False
    """It is through with what it was to read, and has room for this session."""
    at: float = 0.0
    """When it was asked last."""
    reads: int = 0
    wanted: int = 0

    @property
    def lacks_guesses(self) -> bool:
        """Its next frame could go, but nothing was guessed yet, nor asked for."""
        session = self.session
        return session.lacks_only_guesses and self.sent < len(session.tokens) and not session.drafts.draft(1)


class Drafting:
    """A room's side of its draft model. `vocab_size` is that of the model it guesses for."""

    def __init__(self, vocab_size: int, clock: Callable[[], float]) -> None:
        self._vocab_size = vocab_size
        self._clock = clock
        self._outbox: Outbox[room_pb2.DraftWanted] | None = None
        self._followed: dict[int, _Followed] = {}
        self._took = Costs()
        """Seconds by guesses."""
        self._asked_at = 0.0

    def __repr__(self) -> str:
        return f"<Drafting [{'on' if self._outbox else 'nobody drafts'} | {len(self._followed)} sessions]>"

    def begin(self) -> Outbox[room_pb2.DraftWanted]:
        """A draft model is here; what goes into its outbox from now on is for it alone."""
        if self._outbox is not None:
            self.end(self._outbox)
        self._outbox, self._asked_at = Outbox(), self._clock()
        return self._outbox

    def end(self, outbox: Outbox[room_pb2.DraftWanted]) -> None:
        """The model that reads this outbox is gone. Nobody waits for it."""
        outbox.close()
        if outbox is self._outbox:
            for followed in self._followed.values():
                followed.session.awaits_guesses = False
            self._outbox, self._followed, self._took = None, {}, Costs()

    def ask(self, chain: "Chain") -> None:
        """Ask for guesses where they pay and the text has none; those sessions wait.

        Of the others the model is to read what there is, however long that takes.
        """
        if self._outbox is None:
            return
        for session in chain.sessions:
            followed = self._followed.get(session.number)
            if followed is not None and not (followed.can_guess and followed.lacks_guesses):
                continue
            count = self._worth(chain, session)
            if not count:
                continue
            followed = followed or self._follow(session)
            if not followed.sent or len(session.tokens) - followed.sent > BEHIND:
                self._want(followed, 0)
            elif chain.cache.may_guess(session):
                self._want(followed, count)

    def wants_a_say(self, chain: "Chain") -> bool:
        """Whether an answer is to wait for guesses, so that the room has to see each of its tokens."""
        if self._outbox is None:
            return False
        return any(self._worth(chain, session) for session in chain.sessions if self._can_follow(session))

    def _can_follow(self, session: Session) -> bool:
        followed = self._followed.get(session.number)
        return session.decoding and (followed is None or followed.can_guess)

    def _worth(self, chain: "Chain", session: Session) -> int:
        """How many guesses the session should wait for; 0: none. Now and then one, to see whether that has changed."""
        running = max(1, sum(session.decoding for session in chain.sessions))
        count = chain.tuning.guesses_worth(
            running, self._cost, session.guessed.chance, MOST, loops=chain.passes_back and session.foreseeable
        )
        return count or int(self._clock() - self._asked_at > RETRY)

    def take(self, guesses: room_pb2.Drafted) -> None:
        """The model has guessed, or has read what it was sent."""
        followed = self._followed.get(guesses.session)
        if followed is None or guesses.length != followed.sent:
            return
        self._measure(followed)
        # Where it has no guesses it is not asked again: other sessions have taken this one's place.
        followed.can_guess = not followed.wanted or len(guesses.ids) > 0
        followed.guesses = list(takewhile(lambda token: token < self._vocab_size, guesses.ids))
        followed.session.guessed.take(followed.sent, followed.guesses)
        followed.session.awaits_guesses = False

    def give_up(self, session: int, length: int) -> bool:
        """Let a session go on without the guesses behind so many tokens; False when it is not waiting for them."""
        followed = self._followed.get(session)
        if followed is None or followed.sent != length or not followed.session.awaits_guesses:
            return False
        self._took.observe(followed.wanted, 2 * PATIENCE)  # or more
        followed.session.awaits_guesses = False
        return True

    def forget(self, session: Session) -> None:
        """The session has ended."""
        if self._followed.pop(session.number, None) and self._outbox is not None:
            self._outbox.put(room_pb2.DraftWanted(session=session.number, over=True))

    def _follow(self, session: Session) -> _Followed:
        params = peer_pb2.SamplingParams()
        params.CopyFrom(session.job.params)
        # Nobody counts tokens for penalties there, and nobody is told chances.
        params.repetition_penalty, params.presence_penalty, params.frequency_penalty = 1, 0, 0
        params.logprobs, params.top_logprobs = False, 0
        followed = self._followed[session.number] = _Followed(session, params)
        return followed

    def _want(self, followed: _Followed, count: int) -> None:
        """Send what is new of a session, which waits for the guesses if any are wanted."""
        session, outbox = followed.session, self._outbox
        assert outbox is not None
        start = followed.sent + common(followed.guesses, session.tokens[followed.sent :])
        wanted = room_pb2.DraftWanted(session=session.number, start=start, ids=session.tokens[start:], count=count)
        wanted.params.CopyFrom(followed.params)
        outbox.put(wanted)
        session.awaits_guesses = followed.can_guess = count > 0
        self._asked_at = self._clock() if count else self._asked_at
        followed.reads, followed.wanted, followed.at = len(session.tokens) - start, count, self._clock()
        followed.sent, followed.guesses = len(session.tokens), []

    def _cost(self, count: int) -> float:
        """Seconds that so many guesses take; infinity where nobody would wait for them, or that is not known yet."""
        seconds = self._took.of(count)
        return inf if seconds > PATIENCE or (not seconds and count > 1) else seconds

    def _measure(self, followed: _Followed) -> None:
        if followed.reads <= _FEW and followed.wanted:
            self._took.observe(followed.wanted, self._clock() - followed.at)
