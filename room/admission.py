"""The waiting line: fair between clients, with a place for everyone in it."""

from collections import Counter
from collections.abc import Iterable, Iterator

from room.session import Session

MOST_REMEMBERED = 1024
"""Clients whose latest turn is remembered, also while nothing of theirs waits."""


class Line:
    """Requests that wait for a place in the chain.

    A client's k-th request waits behind every other client's k-th: one with fifty requests does not starve one with
    a single one. Among equals it is the turn of whoever's turn came longest ago. Within a client, first come first
    served.
    """

    def __init__(self) -> None:
        self._waiting: list[Session] = []
        self._turns: dict[str, int] = {}
        """When each client's turn last came, counted in turns."""
        self._turn = 0

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

    def admit(self, session: Session) -> None:
        """It is the session's turn: it leaves the line."""
        self.leave(session)
        self._turn += 1
        self._turns.pop(session.job.client, None)
        self._turns[session.job.client] = self._turn
        if len(self._turns) > MOST_REMEMBERED:
            del self._turns[next(iter(self._turns))]

    def order(self, running: Iterable[Session]) -> list[Session]:
        """Who is next, given who runs."""
        return [session for *_, session in sorted(self._ranked(running), key=lambda each: each[:-1])]

    def _ranked(self, running: Iterable[Session]) -> Iterator[tuple[bool, int, int, int, Session]]:
        before = Counter(session.job.client for session in running)
        for session in sorted(self._waiting, key=lambda each: each.number):
            # Whoever was running already when its chain broke goes first: its caller is reading.
            client = session.job.client
            yield not session.started, before[client], self._turns.get(client, 0), session.number, session
            before[client] += 1
