"""The thread that torch lives in: loads slices, and computes frames in the order they come."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from peer.errors import BadInput, PeerError
from protos import peer_pb2
from protos.lanes import DECODE, LANES, PREFILL, Lane
from protos.masks import MaskBook

if TYPE_CHECKING:
    from peer.step import Engine

log = logging.getLogger("pooled.peer")

MOST_WAITING = 1024
"""Frames that wait in a lane; a sound room has a few on their way."""

T = TypeVar("T")
Outcome = peer_pb2.Frame | peer_pb2.FrameResult | peer_pb2.FrameFault


@dataclass(frozen=True)
class Task:
    """A frame that can be computed: everything it needs is here."""

    frame: peer_pb2.Frame
    plan: peer_pb2.SamplingPlan | None
    arrived_at: float = field(default_factory=time.perf_counter)


class Worker:
    """One thread; `deliver` is called on it with what came of each frame."""

    def __init__(self, deliver: Callable[[Outcome], None]) -> None:
        self._deliver = deliver
        self._masks = {lane: MaskBook() for lane in LANES}
        self._engine: Engine | None = None
        self._epoch = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._lanes: dict[int, deque[Task]] = {DECODE: deque(), PREFILL: deque()}
        self._prefill_next = False
        self._step_began: float | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pooled-compute", daemon=True)
        self._thread.start()

    @property
    def step_seconds(self) -> float:
        """How long the frame that is computed now has taken so far; 0 when there is none."""
        began = self._step_began
        return 0.0 if began is None else time.perf_counter() - began

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run `function` on the thread, before any frame that waits."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        with self._changed:
            self._calls.append(run)
            self._changed.notify()
        return future

    def serve(self, engine: "Engine | None", epoch: int) -> None:
        """Compute the frames of `epoch` from now on, with `engine`. To be called on the thread."""
        with self._changed:
            self._engine, self._epoch = engine, epoch
            for waiting in self._lanes.values():
                waiting.clear()

    def submit(self, task: Task) -> None:
        """Queue a frame; frames of other epochs are dropped when their turn comes."""
        with self._changed:
            if len(self._lanes[task.frame.lane]) >= MOST_WAITING:
                log.warning("a frame too many was dropped")
                return
            self._lanes[task.frame.lane].append(task)
            self._changed.notify()

    def learn_mask(self, lane: Lane, mask: peer_pb2.TokenMask) -> None:
        """Remember a mask that came on a lane, for the plans that come on it later."""
        self._masks[lane].add(mask.hash, mask.bits)

    def stop(self) -> None:
        """End the thread after what it is doing now."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._calls or any(self._lanes.values()))
                if self._stopped:
                    return
                call = self._calls.popleft() if self._calls else None
                task = self._next_task() if call is None else None
            if call is not None:
                call()
            elif task is not None and task.frame.epoch == self._epoch and self._engine is not None:
                self._deliver(self._compute(self._engine, task))

    def _next_task(self) -> Task:
        """Decode before prefill, but by turns while both wait, so that neither starves the other."""
        decode, prefill = self._lanes[DECODE], self._lanes[PREFILL]
        take_prefill = bool(prefill) and (self._prefill_next or not decode)
        self._prefill_next = not take_prefill and bool(prefill)
        return (prefill if take_prefill else decode).popleft()

    def _compute(self, engine: "Engine", task: Task) -> Outcome:
        self._step_began = time.perf_counter()
        upstream = False
        waited = self._step_began - task.arrived_at
        try:
            return engine.run(task.frame, task.plan, self._masks[task.frame.lane], waited_us=int(waited * 1e6))
        except PeerError as error:
            reason, upstream = str(error), isinstance(error, BadInput)
        except Exception as error:
            # Whatever a frame does to torch must cost that frame only. Its text could quote tensors, so name its kind.
            log.exception("a frame could not be computed")
            reason = f"{type(error).__name__} while computing"
        finally:
            self._step_began = None
        return peer_pb2.FrameFault(epoch=task.frame.epoch, step=task.frame.step, reason=reason, upstream=upstream)
