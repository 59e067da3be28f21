"""Which pages and state slots the sessions of a chain hold, and what is kept of those that ended."""

from collections.abc import Sequence

from protos import peer_pb2
from room.pages import PAGE, PagePool, as_pages, as_runs, pages_for
from room.prefix import Found, PrefixTree, common
from room.session import Session
from room.states import StateSlots

LEAST_SHARED = 4
"""Tokens from which on a common beginning counts. Any two prompts of a template have its first few in common."""

LEAST_AWAITED = 64
"""Tokens that are worth waiting for another session to compute them."""

EVICTED_AT_ONCE = 8
"""Pages given back when one is needed, so that who grows page by page finds the next ones free, in a row."""


class Cache:
    """Gives sessions pages as they grow, and lets them go on from what is held of their tokens already."""

    def __init__(self, pages: int, state_slots: int, max_running: int) -> None:
        self._max_running = max_running
        self.pool = PagePool(pages)
        self.slots = StateSlots(state_slots)
        self.prefixes = PrefixTree(self.pool, self.slots)
        self._sessions: list[Session] = []

    def __repr__(self) -> str:
        return f"<Cache [{len(self._sessions)} sessions | {self.pool} {self.prefixes}]>"

    @property
    def free_pages(self) -> int:
        """Pages a session can have: free ones, and those kept only because they may be asked for again."""
        return self.pool.free + self.prefixes.unpinned

    # ------------------------------------------------------------ in

    def enter(self, session: Session) -> bool:
        """Give the session pages for the tokens it has, if every other can grow by a page then; else False.

        What is held of its tokens is not computed again.
        """
        session.behind = None
        for found in self._starts(session.tokens):
            if self._enter(session, found):
                self._sessions.append(session)
                return True
        return False

    @property
    def _hybrid(self) -> bool:
        return self.slots.count > 0

    def awaits(self, session: Session) -> bool:
        """Whether a running session is about to compute so much of what this one needs that waiting for it pays.

        Or one that has ended, frames of which are on their way, is about to leave something for this one.
        """
        if session.behind is None or not (self._computes(session.behind) or self._leaves(session.behind)):
            session.behind = next((other for other in self._sessions if self._is_worth(session, other)), None)
        return session.behind is not None

    def promises(self, session: Session) -> int:
        """How many of the session's tokens are held, or will be once a running session is through with its prompt."""
        found = self._find(session.tokens).length
        awaited = len(session.job.prompt) if self.awaits(session) else 0
        return max(found if found >= LEAST_AWAITED else 0, awaited)

    def _computes(self, other: Session) -> bool:
        """Whether it is still at its prompt; others can use what it computes once it is through with that."""
        return other in self._sessions and not other.decoding

    def _leaves(self, other: Session) -> bool:
        return other in self._sessions and other.ended and other.in_flight > 0 and not other.spoilt

    def _is_worth(self, session: Session, other: Session) -> bool:
        if self._leaves(other) and not self._hybrid:
            return common(session.tokens, other.tokens) - self._find(session.tokens).length >= LEAST_SHARED
        if not self._computes(other) or session.tokens[:LEAST_AWAITED] != other.tokens[:LEAST_AWAITED]:
            return False
        usable = common(session.tokens, other.tokens)
        if self._hybrid:
            usable = max((mark for mark in other.job.landmarks if mark <= usable), default=0)
        saved = usable - self._find(session.tokens).length
        return saved >= LEAST_AWAITED and saved >= other.unsent // 2

    def _find(self, tokens: Sequence[int]) -> Found:
        return self.prefixes.find_state(tokens) if self._hybrid else self.prefixes.find(tokens)

    def _starts(self, tokens: Sequence[int]) -> list[Found]:
        """From what a session can go on, best first."""
        found = self._find(tokens)
        if found.length < LEAST_SHARED:
            return [Found([])]
        # Where memory is short, the page or the state that would be read may be the one that is needed.
        return [found, Found([])] if self._hybrid else [found, Found(found.path)]

    def _enter(self, session: Session, found: Found) -> bool:
        """Let the session go on from what was found, if memory for the rest can be had.

        Of a page that it needs only the start of, or that others use, it gets a copy; else it writes on in that page.
        """
        path, source = found.path, found.partial
        if source and found.tokens == len(source.ids) and not source.full and not source.pins:
            path, source = [*path, source], None
        self.prefixes.pin(path)
        session.path, session.source, session.snapshot = path, source, found.snapshot
        self._pin_sources(session)
        lacking = pages_for(len(session.tokens)) - len(path)
        slot = self.slots.take() if self._hybrid else 0
        if slot is None or self.free_pages < lacking + len(self._sessions):
            self._drop_sources(session)
            self.prefixes.unpin(path)
            if slot:
                self.slots.give(slot)
            session.rewind()
            return False
        session.slot = slot
        session.keep_in([node.page for node in path])
        self._add_pages(session, lacking)
        session.sent = session.entered = found.length
        return True

    def grow(self, session: Session) -> bool:
        """See to it that the session has pages for all its tokens; False when there are too few.

        Where pages are free it gets one ahead.
        """
        tokens = len(session.tokens)
        ahead = pages_for(min(tokens + PAGE, session.most_tokens)) - len(session.pages)
        if 0 < ahead <= self.pool.free:
            self._add_pages(session, ahead)
        lacking = pages_for(tokens) - len(session.pages)
        if lacking > self.free_pages:
            return False
        self._add_pages(session, lacking)
        return True

    def _add_pages(self, session: Session, count: int) -> None:
        """Give the session `count` more pages. There must be that many in `free_pages`."""
        if count <= 0:
            return
        if self.pool.free < count:
            self.prefixes.evict(max(count - self.pool.free, EVICTED_AT_ONCE))
        runs = self.pool.allocate(count, session.pages[-1] if session.pages else -1)
        assert runs is not None
        session.keep_in([*session.pages, *as_pages(runs)])

    def may_guess(self, session: Session) -> bool:
        """Whether a frame with guesses can be undone: a hybrid model's state needs a second slot for that."""
        if self._hybrid and not session.second and self._spares_slots():
            session.second = self.slots.take() or 0
        return not self._hybrid or session.second > 0

    def guesses(self, session: Session) -> None:
        """The session's next frame holds guesses."""
        if self._hybrid:
            session.doubt = session.sent

    def copy(self, session: Session) -> peer_pb2.PageCopy | None:
        """What the session's next frame has to copy, if anything."""
        if session.source is None or not session.untouched:
            return None
        return peer_pb2.PageCopy(source=session.source.page, target=session.pages[session.entered // PAGE])

    def state(self, session: Session) -> peer_pb2.StateSlots | None:
        """Which slots the session's next frame reads and writes; None unless the model is hybrid.

        At a landmark it goes on in another slot, where slots are to spare, so that what it had there is kept.
        """
        if not self._hybrid:
            return None
        if session.untouched:
            return peer_pb2.StateSlots(read=session.snapshot.slot if session.snapshot else 0, write=session.slot)
        if session.doubt is not None:
            return peer_pb2.StateSlots(read=session.slot, write=session.second)
        read = session.slot
        if session.sent in session.job.landmarks and self._spares_slots() and (other := self.slots.take()):
            session.kept.append((session.sent, read))
            session.slot = other
        return peer_pb2.StateSlots(read=read, write=session.slot)

    def _spares_slots(self) -> bool:
        """Whether each session that may come finds a slot to write, and one to read, besides the one that is taken."""
        return self.slots.available > 2 * (self._max_running - len(self._sessions))

    # ------------------------------------------------------------ out

    def share(self, session: Session) -> None:
        """Let others use what is computed of the session. All its frames must be back."""
        before = session.path
        path = self.prefixes.adopt(session.tokens[: session.sent], session.pages, before)
        held = [node.page for node in path]
        # Where another page holds the same tokens, that one is used from now on.
        replaced = set(session.pages[: len(path)]) - {*held, *(node.page for node in before)}
        self.pool.release(as_runs(sorted(replaced)))
        session.path = path
        session.keep_in([*held, *session.pages[len(path) :]])
        for position, slot in session.kept:
            self.prefixes.keep_state(session.tokens[:position], slot)
        session.kept = []
        self._drop_sources(session)

    def leave(self, session: Session) -> None:
        """Keep what is computed for whoever asks the same again, and free the rest. All its frames must be back."""
        if session.doubt is not None:
            session.sent = session.doubt
        if session.second:
            self.slots.give(session.second)
        if session.slot and not session.untouched and not session.spoilt:
            session.kept.append((session.sent, session.slot))
        elif session.slot:
            self.slots.give(session.slot)
        if session.source and session.untouched:  # no frame has taken the copy along
            session.sent = len(session.path) * PAGE
        if not session.spoilt:
            self.share(session)
        for _, slot in session.kept:
            self.slots.give(slot)
        self._drop_sources(session)
        shared = {node.page for node in session.path}
        self.pool.release(as_runs(sorted(set(session.pages) - shared)))
        self.prefixes.unpin(session.path)
        self._sessions.remove(session)
        session.rewind()

    def forget(self) -> None:
        """Keep nothing of what no session uses now."""
        self.prefixes.evict(self.prefixes.unpinned)

    def _pin_sources(self, session: Session) -> None:
        if session.source:
            self.prefixes.pin([session.source])
        if session.snapshot:
            self.slots.pin(session.snapshot)

    def _drop_sources(self, session: Session) -> None:
        """The session needs what it went on from no longer."""
        if session.source:
            self.prefixes.unpin([session.source])
        if session.snapshot:
            self.slots.unpin(session.snapshot)
        session.source = session.snapshot = None
