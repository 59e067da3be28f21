"""Measuring a way from one peer to the next, straight or through the room: frames of padding take it, the later peer
answers each at once, and this end clocks the answers. No clock is compared with another machine's.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from protos import peer_pb2
from protos.lanes import PREFILL, Lane

PADDING = 32 << 10
"""Bytes of one probe."""

TRAIN, TRAINS = 4, 3
"""Probes clocked together, and how often: a train spans many segments of TCP, and the quickest train counts, since
whatever else the machines do only makes one slower."""

ECHOES = 5
"""Empty probes, one after the other, of which the quickest tells the round trip."""

PATIENCE = 10.0
"""Seconds that all of it may take."""


class Measured(NamedTuple):
    round_trip: float
    """Seconds."""
    bytes_per_second: int

    def crossing(self, size: int) -> float:
        """Seconds until `size` bytes are over."""
        return self.round_trip / 2 + size / self.bytes_per_second


class Prober:
    """Sends probes along one way. `heard` is to be called for each that was answered."""

    def __init__(
        self, epoch: int, send: Callable[[peer_pb2.Frame], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._epoch = epoch
        self._send = send
        self._clock = clock
        self._number = 0
        self._waiting: dict[int, asyncio.Future[float]] = {}

    def heard(self, number: int) -> None:
        """Answers to probes that nobody waits for any more count for nothing."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(self._clock())

    async def echo(self, lane: Lane = PREFILL) -> float:
        """Seconds there and back of an empty probe."""
        began = self._clock()
        return await self._probe(lane, 0) - began

    async def measure(self) -> Measured:
        """Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            round_trip = min([await self.echo() for _ in range(ECHOES)])
            # The first one starts the clock.
            came = await asyncio.gather(*(self._probe(PREFILL, PADDING) for _ in range(TRAIN * TRAINS + 1)))
        return Measured(round_trip, rate(came))

    async def _probe(self, lane: Lane, padding: int) -> float:
        self._number += 1
        number = self._number
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        probe = peer_pb2.Probe(number=number, padding=bytes(padding))
        self._send(peer_pb2.Frame(epoch=self._epoch, lane=lane, probe=probe))
        try:
            came: float = await waiting
            return came
        finally:
            self._waiting.pop(number, None)


def rate(came: list[float]) -> int:
    """Bytes per second, by when (in seconds) each of the probes of all trains came, the one before them first."""
    quickest = min(after - before for before, after in pairwise(came[::TRAIN]))
    return int(TRAIN * PADDING / max(quickest, 1e-6))
