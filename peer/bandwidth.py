"""Measuring the link from one peer to the next: frames of padding take the way of prefill frames, straight or through
the room, and the later peer clocks how far apart they come. No clock is compared with another machine's.
"""

from collections.abc import Iterator
from itertools import pairwise

from protos import peer_pb2, room_pb2
from protos.lanes import PREFILL

PADDING = 32 << 10
"""Bytes of one probe."""

TRAIN, TRAINS = 4, 3
"""Probes clocked together, and how often: a train spans many segments of TCP, and the quickest train counts, since
whatever else the machines do only makes one slower."""


def probes(epoch: int) -> Iterator[peer_pb2.Frame]:
    """What to send: a first probe that starts the clock, then the trains."""
    last = TRAIN * TRAINS
    for at in range(last + 1):
        probe = peer_pb2.Probe(at=at, last=last, padding=bytes(PADDING))
        yield peer_pb2.Frame(epoch=epoch, lane=PREFILL, probe=probe)


class LinkMeter:
    """Clocks the probes of one epoch as they come."""

    def __init__(self) -> None:
        self._epoch = 0
        self._came: list[float] = []

    def heard(self, frame: peer_pb2.Frame, now: float) -> room_pb2.LinkRate | None:
        """`now` in seconds. What to tell the room, once the last probe is here and none was lost."""
        if frame.epoch != self._epoch or frame.probe.at == 0:
            self._epoch, self._came = frame.epoch, []
        if frame.probe.at == len(self._came) <= TRAIN * TRAINS:
            self._came.append(now)
        if frame.probe.at < frame.probe.last or len(self._came) <= TRAIN * TRAINS:
            return None
        marks = self._came[::TRAIN]
        quickest = min(after - before for before, after in pairwise(marks))
        return room_pb2.LinkRate(epoch=frame.epoch, bytes_per_second=int(TRAIN * PADDING / max(quickest, 1e-6)))
