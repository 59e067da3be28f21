"""The waiting line: fair between clients, with a place for everyone in it."""

from collections import Counter
from collections.abc import Iterable, Iterator

from room.session import Session


class Line:
    """Requests that wait for a place in the chain.

    A client's k-th request waits behind every other client's k-th: one with fifty requests does not starve one with
    a single one. Within a client, first come first served.
    """

    def __init__(self) -> None:
        self._waiting: list[Session] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, session: Session) -> bool:
        return session in self._waiting

    def waiting_of(self, client: str) -> int:
        return sum(session.job.client == client for session in self._waiting)

    def join(self, session: Session) -> None:
        self._waiting.append(session)

    def leave(self, session: Session) -> None:
        if session in self._waiting:
            self._waiting.remove(session)

    def order(self, running: Iterable[Session]) -> list[Session]:
        """Who is next, given who runs."""
        return [session for _, _, _, session in sorted(self._ranked(running), key=lambda each: each[:3])]

    def _ranked(self, running: Iterable[Session]) -> Iterator[tuple[bool, int, int, Session]]:
        before = Counter(session.job.client for session in running)
        for session in sorted(self._waiting, key=lambda each: each.number):
            # Whoever was running already when its chain broke goes first: its caller is reading.
            yield not session.started, before[session.job.client], session.number, session
            before[session.job.client] += 1
