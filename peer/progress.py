"""How far a peer is with a slice, from its first byte fetched to its last one loaded."""

import asyncio
from collections.abc import Callable

from protos.progress import Meter

FETCHING = 0.7
"""The share of fetching in the whole, where there is something to fetch."""


TELL_EVERY = 0.5
"""Seconds between two times that somebody is told of it."""


async def keep_telling(tell: Callable[[], None]) -> None:
    """Tell now and then every TELL_EVERY seconds, until cancelled."""
    while True:
        tell()
        await asyncio.sleep(TELL_EVERY)


class LoadReport:
    """Written by what fetches and loads, in any thread; read by who tells of it."""

    def __init__(self) -> None:
        self._meter = Meter(0)
        self._low, self._high = 0.0, 0.0

    def fetching(self, total: int) -> Meter:
        """Bytes are to come; the meter counts them."""
        self._meter, self._low, self._high = Meter(total), self._high, FETCHING
        return self._meter

    def loading(self, total: int) -> None:
        """Bytes are to be read into memory; `loaded` says how far that is."""
        self._meter, self._low, self._high = Meter(total), self._high, 1.0

    def loaded(self, share: float) -> None:
        """0 to 1."""
        self._meter.reach(int(share * self._meter.total))

    @property
    def done(self) -> float:
        """Of all, 0 to 1."""
        return self._low + (self._high - self._low) * self._meter.share

    @property
    def rate(self) -> float:
        """Bytes a second, of late."""
        return self._meter.rate

    @property
    def seconds_left(self) -> float | None:
        """Until what is done now is done; None while that is not known."""
        return self._meter.seconds_left
