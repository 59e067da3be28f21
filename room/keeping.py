"""Keeps on disk, as it changes, what the next run of a room takes over."""

import asyncio
import logging
from typing import Any, Never

import anyio

from room.door import Door
from room.errors import CannotSave
from room.room import Room
from room.store import Kept, Store

log = logging.getLogger("pooled.room")

_EVERY = 0.5
"""Seconds."""


class Keeper:
    """Saves a room's places and deals, and its invites; nothing where there is no store."""

    def __init__(self, store: Store | None, room: Room, door: Door) -> None:
        self._store = store
        self._room = room
        self._door = door
        self._saving = asyncio.Lock()
        self._kept: Kept | None = None  # as saved last
        self._invites: list[dict[str, Any]] | None = None

    async def save(self) -> None:
        """Save what changed since it was saved last. Raises CannotSave."""
        if self._store is None:
            return
        async with self._saving:
            kept, invites = self._room.kept, self._door.book.kept
            if kept != self._kept:
                await asyncio.to_thread(self._store.save, kept)
                self._kept = kept
            if invites != self._invites:
                await asyncio.to_thread(self._store.save_invites, invites)
                self._invites = invites

    async def keep_saving(self) -> Never:
        """A disk that is full, say, ends no answer: it is told once, and tried again."""
        fails = False
        while True:
            await anyio.sleep(_EVERY)
            try:
                await self.save()
            except CannotSave as error:
                if not fails:
                    log.warning("%s; the room goes on, and tries again", error)
                fails = True
            else:
                if fails:
                    log.info("the room's state is saved again")
                fails = False
