import queue
import threading
from collections.abc import Iterator, Sequence

import pytest

from peer.errors import NotEnoughMemory, PeerError
from peer.turns import Turns
from peer.worker import Outcome, Task, Worker
from protos import peer_pb2
from protos.lanes import DECODE, PREFILL, Lane

FAULTS = {66: PeerError("a clear sentence"), 77: RuntimeError("secret activations"), 88: NotEnoughMemory("lend less")}
"""By step."""


class FakeEngine:
    """Echoes frames; holds each until it may go on, so that tests decide what waits."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started: queue.Queue[list[int]] = queue.Queue()

    def run_together(self, tasks: Sequence[Task], masks: object) -> list[peer_pb2.FrameResult | Exception]:
        assert threading.current_thread().name == "pooled-compute"
        self.started.put([task.frame.step for task in tasks])
        assert self.gate.acquire(timeout=60)
        return [
            FAULTS.get(task.frame.step) or peer_pb2.FrameResult(epoch=task.frame.epoch, step=task.frame.step)
            for task in tasks
        ]


def task(step: int, lane: Lane = DECODE, epoch: int = 1, **fields: object) -> Task:
    """A frame of one segment; all of one session, so that each is computed alone, unless `fields` say otherwise."""
    segment = peer_pb2.Segment(**{"session": 1, "ids": [5], **fields})
    return Task(peer_pb2.Frame(epoch=epoch, step=step, lane=lane, segments=[segment]), None)


@pytest.fixture
def out() -> "queue.Queue[Outcome]":
    return queue.Queue()


@pytest.fixture
def worker(out: "queue.Queue[Outcome]") -> Iterator[Worker]:
    made = Worker(out.put, Turns(None))
    yield made
    made.stop()


@pytest.fixture
def engine(worker: Worker) -> FakeEngine:
    made = FakeEngine()
    worker.call(lambda: worker.serve(made, 1)).result(10)
    return made


def steps(out: "queue.Queue[Outcome]", count: int) -> list[int]:
    return [out.get(timeout=60).step for _ in range(count)]


def test_frames_are_computed_in_order(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
    for step in range(5):
        worker.submit(task(step))
    engine.gate.release(5)
    assert steps(out, 5) == [0, 1, 2, 3, 4]


def test_decode_and_prefill_take_turns(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
    worker.submit(task(0))
    assert engine.started.get(timeout=60) == [0]
    for step in (10, 11, 12):
        worker.submit(task(step, PREFILL))
    for step in (1, 2, 3):
        worker.submit(task(step))
    engine.gate.release(7)
    assert steps(out, 7) == [0, 1, 10, 2, 11, 3, 12]


def test_frames_of_another_epoch_are_dropped(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
    worker.submit(task(1, epoch=2))
    worker.submit(task(2))
    engine.gate.release(2)
    assert steps(out, 1) == [2]
    assert out.empty()


def test_a_new_epoch_forgets_what_waits(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
    worker.submit(task(0))
    assert engine.started.get(timeout=60) == [0]
    worker.submit(task(1))
    served = worker.call(lambda: worker.serve(engine, 2))
    engine.gate.release(3)
    served.result(10)
    worker.submit(task(2, epoch=2))
    assert steps(out, 2) == [0, 2]


def test_a_frame_that_fails_costs_that_frame_only(
    worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
) -> None:
    for step in (66, 77, 88, 1):
        worker.submit(task(step))
    engine.gate.release(4)
    refused, broken, too_large, fine = (out.get(timeout=60) for _ in range(4))
    assert isinstance(refused, peer_pb2.FrameFault)
    assert refused.reason == "a clear sentence"
    assert isinstance(broken, peer_pb2.FrameFault)
    assert broken.reason == "RuntimeError while computing"
    assert isinstance(too_large, peer_pb2.FrameFault)
    assert [each.out_of_memory for each in (refused, broken, too_large)] == [False, False, True]
    assert isinstance(fine, peer_pb2.FrameResult)


def test_calls_give_back_results_and_errors(worker: Worker) -> None:
    assert worker.call(lambda: 5).result(10) == 5
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0).result(10)


class TestTogether:
    """Which of the frames that wait are computed in one forward; they come out one by one and in order all the same."""

    @staticmethod
    def computed(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]", *tasks: Task) -> list[list[int]]:
        """The groups in which `tasks` are computed, if all wait at once."""
        worker.submit(task(0))
        assert engine.started.get(timeout=60) == [0]
        for each in tasks:
            worker.submit(each)
        engine.gate.release(1 + len(tasks))
        order = steps(out, 1 + len(tasks))
        groups = [engine.started.get(timeout=60)]
        while sum(map(len, groups)) < len(tasks):
            groups.append(engine.started.get(timeout=60))
        assert order == [0, *(step for group in groups for step in group)]
        return groups

    def test_sessions_of_their_own(self, worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
        groups = self.computed(worker, engine, out, *(task(step, session=step) for step in (1, 2, 3)))
        assert groups == [[1, 2, 3]]

    def test_the_same_session_waits_for_itself(
        self, worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
    ) -> None:
        tasks = task(1, session=1), task(2, session=2), task(3, session=1), task(4, session=4)
        assert self.computed(worker, engine, out, *tasks) == [[1, 2], [3, 4]]

    def test_a_short_chunk_of_a_prompt_joins_and_a_long_one_does_not(
        self, worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
    ) -> None:
        long = task(3, PREFILL, session=3, ids=[5] * 63)
        tasks = task(1, session=1), task(2, PREFILL, session=2, ids=[5] * 9), long
        assert self.computed(worker, engine, out, *tasks) == [[1, 2], [3]]

    def test_what_another_frame_leaves_is_waited_for(
        self, worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
    ) -> None:
        copying = task(2, session=2, copy=peer_pb2.PageCopy(source=1, target=2))
        first = task(3, session=3, state=peer_pb2.StateSlots(read=4, write=5))
        reading = task(4, session=4, state=peer_pb2.StateSlots(read=5, write=6))
        assert self.computed(worker, engine, out, task(1, session=1), copying, first, reading) == [[1], [2, 3], [4]]

    def test_a_frame_that_cannot_be_computed_costs_no_other(
        self, worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
    ) -> None:
        assert self.computed(worker, engine, out, *(task(step, session=step) for step in (65, 66, 67))) == [
            [65, 66, 67]
        ]

    def test_frames_of_another_epoch_are_left_out(
        self, worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
    ) -> None:
        worker.submit(task(0))
        assert engine.started.get(timeout=60) == [0]
        for each in (task(1, session=1), task(2, session=2, epoch=9), task(3, session=3)):
            worker.submit(each)
        engine.gate.release(2)
        assert steps(out, 3) == [0, 1, 3]
