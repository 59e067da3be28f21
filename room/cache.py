"""Which pages the sessions of a chain hold, and what is kept of those that ended."""

from protos import peer_pb2
from room.pages import PAGE, PagePool, as_pages, as_runs, pages_for
from room.prefix import Found, PrefixTree
from room.session import Session

LEAST_SHARED = 4
"""Tokens from which on a common beginning counts. Any two prompts of a template have its first few in common."""

EVICTED_AT_ONCE = 8
"""Pages given back when one is needed, so that who grows page by page finds the next ones free, in a row."""


class Cache:
    """Gives sessions pages as they grow, and lets them go on from what is held of their tokens already."""

    def __init__(self, pages: int, state_slots: int) -> None:
        self.pool = PagePool(pages)
        self.prefixes = PrefixTree(self.pool)
        self._hybrid = state_slots > 0
        self._slots = list(range(state_slots, 0, -1))
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
        if self._hybrid and not self._slots:
            return False
        # A recurrent state cannot be cut back to where a prefix ends.
        found = Found([]) if self._hybrid else self.prefixes.find(session.tokens)
        if found.length < LEAST_SHARED:
            found = Found([])
        # Where pages are short, the one that would be copied may be the one that is needed.
        if not (self._enter(session, found) or (found.partial and self._enter(session, Found(found.path)))):
            return False
        session.slot = self._slots.pop() if self._hybrid else 0
        self._sessions.append(session)
        return True

    def _enter(self, session: Session, found: Found) -> bool:
        """Let the session go on from what was found, if pages for the rest can be had.

        Of a page that it needs only the start of, or that others use, it gets a copy; else it writes on in that page.
        """
        path, source = found.path, found.partial
        if source and found.tokens == len(source.ids) and not source.full and not source.pins:
            path, source = [*path, source], None
        pinned = [*path, source] if source else path
        self.prefixes.pin(pinned)
        held = [node.page for node in path]
        lacking = pages_for(len(session.tokens)) - len(held)
        if self.free_pages < lacking + len(self._sessions):
            self.prefixes.unpin(pinned)
            return False
        session.path, session.source = path, source
        session.keep_in(held)
        self._add_pages(session, lacking)
        session.sent = found.length
        if source:
            session.copy = peer_pb2.PageCopy(source=source.page, target=session.pages[len(path)])
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
        """As many pages can be had."""
        if count <= 0:
            return
        if self.pool.free < count:
            self.prefixes.evict(max(count - self.pool.free, EVICTED_AT_ONCE))
        runs = self.pool.allocate(
            count,
            after=session.pages[-1] if session.pages else -1,
            growth=_growth(session, len(session.pages) + count),
            growing={other.pages[-1] + 1: _growth(other, len(other.pages)) for other in self._sessions if other.pages},
        )
        assert runs is not None
        session.keep_in([*session.pages, *as_pages(runs)])

    # ------------------------------------------------------------ out

    def share(self, session: Session) -> None:
        """Let others use what is computed of the session. All its frames must be back."""
        if self._hybrid:
            return
        before = session.path
        path = self.prefixes.adopt(session.tokens[: session.sent], session.pages, before)
        held = [node.page for node in path]
        # Where another page holds the same tokens, that one is used from now on.
        replaced = set(session.pages[: len(path)]) - {*held, *(node.page for node in before)}
        self.pool.release(as_runs(sorted(replaced)))
        session.path = path
        session.keep_in([*held, *session.pages[len(path) :]])
        self._drop_source(session)

    def leave(self, session: Session) -> None:
        """Keep what is computed for whoever asks the same again, and free the rest. All its frames must be back."""
        if session.copy:  # no frame has taken it along
            session.sent = len(session.path) * PAGE
        if not session.spoilt:
            self.share(session)
        self._drop_source(session)
        shared = {node.page for node in session.path}
        self.pool.release(as_runs(sorted(set(session.pages) - shared)))
        self.prefixes.unpin(session.path)
        if session.slot:
            self._slots.append(session.slot)
        self._sessions.remove(session)
        session.rewind()

    def _drop_source(self, session: Session) -> None:
        if session.source:
            self.prefixes.unpin([session.source])
            session.source = None


def _growth(session: Session, pages: int) -> int:
    """Pages the session may want beyond its first `pages`."""
    return max(pages_for(session.most_tokens) - pages, 0)
