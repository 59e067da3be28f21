import queue
import threading
from collections.abc import Iterator

import pytest

from peer.errors import PeerError
from peer.worker import Outcome, Task, Worker
from protos import peer_pb2
from protos.lanes import DECODE, PREFILL, Lane


class FakeEngine:
    """Echoes frames; holds each until it may go on, so that tests decide what waits."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started: queue.Queue[int] = queue.Queue()

    def run(self, frame: peer_pb2.Frame, plan: object, masks: object, *, waited_us: int) -> Outcome:
        assert threading.current_thread().name == "pooled-compute"
        self.started.put(frame.step)
        assert self.gate.acquire(timeout=10)
        if frame.step == 66:
            raise PeerError("a clear sentence")
        if frame.step == 77:
            raise RuntimeError("secret activations")
        return peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step)


def task(step: int, lane: Lane = DECODE, epoch: int = 1) -> Task:
    return Task(peer_pb2.Frame(epoch=epoch, step=step, lane=lane), None)


@pytest.fixture
def out() -> "queue.Queue[Outcome]":
    return queue.Queue()


@pytest.fixture
def worker(out: "queue.Queue[Outcome]") -> Iterator[Worker]:
    made = Worker(out.put)
    yield made
    made.stop()


@pytest.fixture
def engine(worker: Worker) -> FakeEngine:
    made = FakeEngine()
    worker.call(lambda: worker.serve(made, 1)).result(10)
    return made


def steps(out: "queue.Queue[Outcome]", count: int) -> list[int]:
    return [out.get(timeout=10).step for _ in range(count)]


def test_frames_are_computed_in_order(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
    for step in range(5):
        worker.submit(task(step))
    engine.gate.release(5)
    assert steps(out, 5) == [0, 1, 2, 3, 4]


def test_decode_and_prefill_take_turns(worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]") -> None:
    worker.submit(task(0))
    assert engine.started.get(timeout=10) == 0
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
    assert engine.started.get(timeout=10) == 0
    worker.submit(task(1))
    served = worker.call(lambda: worker.serve(engine, 2))
    engine.gate.release(3)
    served.result(10)
    worker.submit(task(2, epoch=2))
    assert steps(out, 2) == [0, 2]


def test_a_frame_that_fails_costs_that_frame_only(
    worker: Worker, engine: FakeEngine, out: "queue.Queue[Outcome]"
) -> None:
    for step in (66, 77, 1):
        worker.submit(task(step))
    engine.gate.release(3)
    refused, broken, fine = (out.get(timeout=10) for _ in range(3))
    assert isinstance(refused, peer_pb2.FrameFault)
    assert refused.reason == "a clear sentence"
    assert isinstance(broken, peer_pb2.FrameFault)
    assert broken.reason == "RuntimeError while computing"
    assert isinstance(fine, peer_pb2.FrameResult)


def test_calls_give_back_results_and_errors(worker: Worker) -> None:
    assert worker.call(lambda: 5).result(10) == 5
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0).result(10)
