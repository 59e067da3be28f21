"""Joins what belongs to one frame and comes by different ways, in either order.

On the last peer that is a frame with its sampling data; on the first one a frame that was sent ahead with the tokens it
waits for, which the last peer draws.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from peer.worker import Task
from protos import peer_pb2

MOST_WAITING = 1024
"""Halves kept for their other half; older ones belong to frames that were given up."""

MOST_DRAWN = 4096
"""Tokens of one frame that are kept for the next; a room runs fewer answers at a time."""

Key = tuple[int, int]
"""Epoch and step."""

First = TypeVar("First")
Second = TypeVar("Second")
T = TypeVar("T")


class Meeting(Generic[First, Second]):
    """Halves that wait for their other half."""

    def __init__(self) -> None:
        self._firsts: OrderedDict[Key, First] = OrderedDict()
        self._seconds: OrderedDict[Key, Second] = OrderedDict()

    def first(self, key: Key, half: First) -> Second | None:
        """The other half, where it is here already; else this one waits."""
        return _meet(self._firsts, self._seconds, key, half)

    def second(self, key: Key, half: Second) -> First | None:
        """The same for the other half."""
        return _meet(self._seconds, self._firsts, key, half)


class Joiner:
    """Frames and their sampling plans, on the last peer."""

    def __init__(self) -> None:
        self._halves: Meeting[Task, peer_pb2.SamplingPlan] = Meeting()

    def frame(self, frame: peer_pb2.Frame, arrived_at: float) -> Task | None:
        """The task, when nothing more is needed for it."""
        task = Task(frame, None, arrived_at)
        if not any(segment.sampled for segment in frame.segments):
            return task
        plan = self._halves.first((frame.epoch, frame.step), task)
        return None if plan is None else replace(task, plan=plan)

    def plan(self, plan: peer_pb2.SamplingPlan) -> Task | None:
        """The task, when its frame is here already."""
        task = self._halves.second((plan.epoch, plan.step), plan)
        return None if task is None else replace(task, plan=plan)


class Follower:
    """Frames that were sent ahead of their tokens, and those tokens, on the first peer."""

    def __init__(self) -> None:
        self._halves: Meeting[peer_pb2.Frame, _Came] = Meeting()

    def take(self, frame: peer_pb2.Frame) -> "Whole | None":
        """A frame, or the tokens that one waits for: the frame with its tokens, when it has all it needs."""
        now = time.perf_counter()
        if frame.HasField("drawn"):
            came = _Came(frame.drawn.ids[:MOST_DRAWN], now)
            ahead = self._halves.second((frame.epoch, frame.step), came)
            return None if ahead is None else _filled(ahead, came)
        if not frame.follows:
            return Whole(frame, now)
        found = self._halves.first((frame.epoch, frame.follows), frame)
        return None if found is None else _filled(frame, found)


@dataclass(frozen=True)
class Whole:
    """A frame that lacks no token."""

    frame: peer_pb2.Frame
    since: float
    """When its tokens were here, by `time.perf_counter`; itself it may have come later."""


@dataclass(frozen=True)
class _Came:
    ids: list[int]
    at: float


def _filled(frame: peer_pb2.Frame, came: _Came) -> Whole:
    """A segment whose token is not among those drawn stays without: it is refused where it is computed."""
    for segment in frame.segments:
        if 0 < segment.drawn <= len(came.ids):
            segment.ids.append(came.ids[segment.drawn - 1])
        segment.drawn = 0
    return Whole(frame, came.at)


def _meet(waiting: OrderedDict[Key, T], others: "OrderedDict[Key, Second]", key: Key, half: T) -> Second | None:
    other = others.pop(key, None)
    if other is None:
        waiting[key] = half
        if len(waiting) > MOST_WAITING:
            waiting.popitem(last=False)
    return other
