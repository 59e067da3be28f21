"""What a peer passes on to the next one: straight where that works and is not slower, through the room where not.

It changes over when a way comes or goes, also in the middle of an answer. Frames are numbered, and what went straight
is kept until the next peer has said that it came; when the straight way breaks or falls silent, what was not heard of
goes through the room. The next peer puts frames in order and drops what comes twice (peer/inward.py).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

from peer.bandwidth import Measured, Prober
from peer.errors import NoLink
from peer.link import Link
from peer.pacing import Pacer
from protos import peer_pb2, room_pb2
from protos.lanes import LANES, Lane

log = logging.getLogger("pooled.peer")

RETRY, RETRY_SLOWER = 5.0, 60.0
"""Seconds between two tries to reach the next peer straight, the second where it was reached and found slower."""

SILENCE = 2.0
"""Seconds without a word about what went straight, beyond what it takes by what was measured, until that way counts as
broken."""

COMPARED = 64 << 10
"""Bytes of a frame by which ways are compared: between a decode frame of many sessions and a prefill chunk."""

BIAS = 1.25
"""How much slower the straight way may be: it costs the room nothing."""

_UNHURRIED = 4
"""How many times longer than measured frames may take before they count as lost."""


class Onward:
    """The way to the next peer of one deal. `relay` sends a frame through the room; `report` tells the room."""

    def __init__(
        self,
        assignment: room_pb2.Assignment,
        pacer: Pacer,
        relay: Callable[[peer_pb2.Frame], None],
        report: Callable[[room_pb2.LinkState], None],
    ) -> None:
        self.settled = asyncio.Event()
        """Set once it is known whether the next peer can be reached straight."""
        self._assignment = assignment
        self._pacer = pacer
        self._relay = relay
        self._report = report
        self._relayed = Prober(assignment.epoch, relay)
        self._by_relay: Measured | None = None
        self._link: Link | None = None
        self._told = False  # the room, of any way
        self._attempts = count(1)
        self._straight = Measured(0.0, 1)
        self._sent = dict.fromkeys(LANES, 0)
        self._unheard: dict[Lane, deque[peer_pb2.Frame]] = {lane: deque() for lane in LANES}
        self._timers: dict[Lane, asyncio.TimerHandle] = {}

    def send(self, frame: peer_pb2.Frame) -> bool:
        """Pass a frame on; whether it went straight."""
        self._sent[frame.lane] += 1
        frame.hop = self._sent[frame.lane]
        if self._link is None:
            self._relay(frame)
            return False
        self._unheard[frame.lane].append(frame)
        self._link.send(frame)
        if frame.lane not in self._timers:
            self._wait(frame.lane)
        return True

    def replied(self, reply: peer_pb2.LinkReply) -> None:
        """The next peer's answer to a probe that went through the room."""
        self._relayed.heard(reply.probe)

    async def run(self) -> None:
        """Find the best way, again and again, until cancelled."""
        try:
            while True:
                link = await self._reach()
                if link is not None:
                    try:
                        await self._try(link)
                    finally:
                        await link.close()
                await self._settle_for_relay()
                await asyncio.sleep(RETRY if link is None or link.ended.is_set() else RETRY_SLOWER)
        finally:
            self._stop_timers()

    async def _reach(self) -> Link | None:
        """A link to the first of the next peer's addresses that proves to lead there, both ways."""
        given = self._assignment
        pending = {
            asyncio.create_task(Link.open(address, given, next(self._attempts), self._pacer, self._heard))
            for address in given.next_addresses
        }
        found: list[Link] = []
        try:
            while pending and not found:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found += [task.result() for task in done if not isinstance(task.exception(), NoLink)]
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for other in found[1:]:
                await other.close()
        return found[0] if found else None

    async def _try(self, link: Link) -> None:
        """Use a straight way as long as it works, if it is worth it."""
        try:
            measured = await link.prober.measure()
        except TimeoutError:
            return
        by_relay = await self._measured_relay()
        if by_relay is not None and measured.crossing(COMPARED) > BIAS * by_relay.crossing(COMPARED):
            log.info("the straight way to the next peer is slower than the room", extra=measured._asdict())
            return
        self._link, self._straight = link, measured
        self._tell(measured, direct=True)
        await link.ended.wait()
        self._fall_back()
        self._tell(by_relay or measured, direct=False)

    async def _measured_relay(self) -> Measured | None:
        """The way through the room; None when it does not work now."""
        if self._by_relay is None:
            try:
                self._by_relay = await self._relayed.measure()
            except TimeoutError:
                log.warning("nothing comes back from the next peer through the room")
        return self._by_relay

    async def _settle_for_relay(self) -> None:
        measured = await self._measured_relay()
        if measured is not None and not self._told:
            self._tell(measured, direct=False)
        self.settled.set()

    def _tell(self, measured: Measured, *, direct: bool) -> None:
        self._told = True
        self._report(
            room_pb2.LinkState(
                epoch=self._assignment.epoch,
                direct=direct,
                bytes_per_second=measured.bytes_per_second,
                round_trip=measured.round_trip,
            )
        )
        self.settled.set()

    def _fall_back(self) -> None:
        """From the straight way to the room, with what may not have come."""
        self._link = None
        self._stop_timers()
        for unheard in self._unheard.values():
            for frame in unheard:
                self._relay(frame)
            unheard.clear()

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _heard(self, reply: peer_pb2.LinkReply) -> None:
        """What went straight has come."""
        unheard = self._unheard.get(reply.lane)
        if reply.epoch != self._assignment.epoch or unheard is None:
            return
        while unheard and unheard[0].hop <= reply.hop:
            unheard.popleft()
        timer = self._timers.pop(reply.lane, None)
        if timer is not None:
            timer.cancel()
        if unheard:
            self._wait(reply.lane)

    def _wait(self, lane: Lane) -> None:
        size = sum(len(frame.hidden.data) for frame in self._unheard[lane])
        patience = SILENCE + _UNHURRIED * size / self._straight.bytes_per_second
        self._timers[lane] = asyncio.get_running_loop().call_later(patience, partial(self._give_up, lane))

    def _give_up(self, lane: Lane) -> None:
        del self._timers[lane]
        if self._link is not None:
            log.warning("the next peer says nothing of what went to it straight")
            self._link.ended.set()
