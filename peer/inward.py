"""Puts what comes from the peer before this one back in order: frames may change over from one way to the other."""

import logging

from protos import peer_pb2
from protos.lanes import LANES, Lane

log = logging.getLogger("pooled.peer")

MOST_EARLY = 256
"""Frames of a lane that wait for earlier ones; a sound chain has a few on their way."""


def may_come(frame: peer_pb2.Frame, *, first: bool) -> bool:
    """Whether the peer before may send this straight; the last one sends nothing but tokens to the `first`."""
    return frame.HasField("probe") or frame.HasField("drawn") is first


class Inward:
    """One hop's frames by their numbers, lane by lane: each once, and none before those sent ahead of it."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """A new deal: numbers count anew, and frames of others are dropped."""
        self._epoch = epoch
        self._came = dict.fromkeys(LANES, 0)
        self._early: dict[Lane, dict[int, peer_pb2.Frame]] = {lane: {} for lane in LANES}

    def take(self, frame: peer_pb2.Frame) -> list[peer_pb2.Frame]:
        """The frames whose turn it is now that this one has come."""
        if not frame.hop:
            return [frame]
        if frame.epoch != self._epoch or frame.hop <= self._came[frame.lane]:
            return []
        if frame.hop > self._came[frame.lane] + MOST_EARLY:
            log.debug("a frame far too early was dropped")
            return []
        early = self._early[frame.lane]
        early[frame.hop] = frame
        turn = []
        while (following := early.pop(self._came[frame.lane] + 1, None)) is not None:
            self._came[frame.lane] += 1
            turn.append(following)
        return turn

    def came(self, lane: Lane) -> int:
        """The number up to which all frames have come."""
        return self._came[lane]
