"""Joins a frame with its sampling data on the last peer: they come by different ways, in either order."""

from collections import OrderedDict
from typing import TypeVar

from peer.worker import Task
from protos import peer_pb2

MOST_WAITING = 1024
"""Halves kept for their other half; older ones belong to frames that were given up."""

T = TypeVar("T")
Key = tuple[int, int]


class Joiner:
    def __init__(self) -> None:
        self._frames: OrderedDict[Key, peer_pb2.Frame] = OrderedDict()
        self._plans: OrderedDict[Key, peer_pb2.SamplingPlan] = OrderedDict()

    def frame(self, frame: peer_pb2.Frame) -> Task | None:
        """The task, when nothing more is needed for it."""
        if not any(segment.sampled for segment in frame.segments):
            return Task(frame, None)
        plan = self._plans.pop((frame.epoch, frame.step), None)
        if plan is not None:
            return Task(frame, plan)
        _keep(self._frames, (frame.epoch, frame.step), frame)
        return None

    def plan(self, plan: peer_pb2.SamplingPlan) -> Task | None:
        """The task, when its frame is here already."""
        frame = self._frames.pop((plan.epoch, plan.step), None)
        if frame is not None:
            return Task(frame, plan)
        _keep(self._plans, (plan.epoch, plan.step), plan)
        return None


def _keep(waiting: OrderedDict[Key, T], key: Key, half: T) -> None:
    waiting[key] = half
    if len(waiting) > MOST_WAITING:
        waiting.popitem(last=False)
