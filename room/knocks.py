"""Those who came without a key and wait for the host to let them in."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from room.errors import TooManyKnocks, UnknownKnock
from room.invites import Invitation, Side

MOST, MOST_OF_ONE = 64, 8
"""Who may wait at once, in all and from one address."""


@dataclass(eq=False)
class Knock:
    name: str
    side: Side
    address: str
    answer: "asyncio.Future[Invitation | None]" = field(repr=False)
    """The invite to come in by; None: the host does not want it."""


class Knocks:
    """All who wait, by a name that no other of them has."""

    def __init__(self) -> None:
        self._waiting: dict[str, Knock] = {}
        self.changed = asyncio.Event()
        """Set, and replaced by another, when somebody comes or no longer waits."""

    def __iter__(self) -> Iterator[Knock]:
        return iter(self._waiting.values())

    @contextmanager
    def waiting(self, name: str, side: Side, address: str) -> Iterator[Knock]:
        """Somebody waits as long as the block runs. Raises TooManyKnocks."""
        if len(self._waiting) >= MOST or sum(each.address == address for each in self) >= MOST_OF_ONE:
            raise TooManyKnocks()
        knock = Knock(self._free_name(name), side, address, asyncio.get_running_loop().create_future())
        self._waiting[knock.name] = knock
        self._tell()
        try:
            yield knock
        finally:
            knock.answer.cancel()
            del self._waiting[knock.name]
            self._tell()

    def __getitem__(self, name: str) -> Knock:
        """Who waits under that name and has no answer yet. Raises UnknownKnock."""
        knock = self._waiting.get(name)
        if knock is None or knock.answer.done():
            raise UnknownKnock(name)
        return knock

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._waiting:
            number += 1
            name = f"{wanted}-{number}"
        return name
