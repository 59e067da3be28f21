"""The breakdown of frames: what the room logs is what the profile reads."""

import logging
from typing import cast

import pytest

from bench.profile import frames
from cli.logs import JsonFormatter
from protos import peer_pb2
from protos.lanes import DECODE, PREFILL, Lane
from room.schedule import FramePlan, Share
from room.session import Session
from room.tuning import Tuning

SESSION = cast(Session, None)
"""Nothing here looks into it."""


def test_frames_are_read_from_the_rooms_own_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    tuning = Tuning(["a", "b"], 0, lambda: now)

    def travel(step: int, lane: Lane, took: float, *stages: tuple[int, int]) -> None:
        nonlocal now
        tuning.sent(step, FramePlan(lane, (Share(SESSION, 1, ends=True),)))
        now += took
        tuning.came_back(step, [peer_pb2.StageTime(waited_us=w, computed_us=c) for w, c in stages], running=1)

    with caplog.at_level(logging.DEBUG, "pooled.room"):
        travel(1, DECODE, 0.100, (1000, 20000), (2000, 30000))
        travel(2, PREFILL, 0.100, (1000, 20000), (2000, 30000))
        travel(3, DECODE, 0.100)  # failed
    log = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    (frame,) = frames(f'{log}\n{{"message": "another"}}\n')
    assert (frame.waited, frame.computed) == ((1.0, 2.0), (20.0, 30.0))
    assert frame.took == pytest.approx(100, abs=0.01)
    assert frame.rest == pytest.approx(47, abs=0.01)
