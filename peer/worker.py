"""The thread that torch lives in: loads slices, and computes frames in the order they come."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from peer.errors import BadFrame, BadInput, NotEnoughMemory, PeerError
from peer.turns import Turns
from protos import peer_pb2
from protos.lanes import DECODE, LANES, PREFILL, Lane
from protos.masks import MaskBook

if TYPE_CHECKING:
    from peer.step import Engine

log = logging.getLogger("pooled.peer")

MOST_WAITING = 1024
"""Frames that wait in a lane; a sound room has a few on their way."""

TOGETHER = 64
"""Most tokens of several frames computed in one forward."""

T = TypeVar("T")
Outcome = peer_pb2.Frame | peer_pb2.FrameResult | peer_pb2.FrameFault


@dataclass(frozen=True)
class Task:
    """A frame that can be computed: everything it needs is here."""

    frame: peer_pb2.Frame
    plan: peer_pb2.SamplingPlan | None
    arrived_at: float = field(default_factory=time.perf_counter)

    @property
    def tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.frame.segments)


class Worker:
    """One thread; `deliver` is called on it with what came of each frame. It computes when it is its turn."""

    def __init__(self, deliver: Callable[[Outcome], None], turns: Turns) -> None:
        self._deliver = deliver
        self._turns = turns
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
                tasks = self._next_tasks() if call is None else []
            if call is not None:
                call()
            elif tasks and self._engine is not None:
                for outcome in self._compute(self._engine, tasks):
                    self._deliver(outcome)

    def _next_tasks(self) -> list[Task]:
        """The frame whose turn it is, and those that can be computed along with it.

        They are passed on as the frames they are: put into one for good, they would come back together, and the stages
        before and after would idle by turns from then on.
        """
        tasks = [self._next_task()]
        for lane in (DECODE, PREFILL):
            waiting = self._lanes[lane]
            while waiting and _go_together(tasks, waiting[0]):
                tasks.append(waiting.popleft())
        return [task for task in tasks if task.frame.epoch == self._epoch]

    def _next_task(self) -> Task:
        """Decode before prefill, but by turns while both wait, so that neither starves the other."""
        decode, prefill = self._lanes[DECODE], self._lanes[PREFILL]
        take_prefill = bool(prefill) and (self._prefill_next or not decode)
        self._prefill_next = not take_prefill and bool(prefill)
        return (prefill if take_prefill else decode).popleft()

    def _compute(self, engine: "Engine", tasks: list[Task]) -> list[Outcome]:
        self._step_began = time.perf_counter()
        try:
            with self._turns.turn():
                outs = engine.run_together(tasks, self._masks)
        finally:
            self._step_began = None
        return [_fault(task, out) if isinstance(out, Exception) else out for task, out in zip(tasks, outs, strict=True)]


def _go_together(tasks: list[Task], other: Task) -> bool:
    """Whether a frame may be computed in one forward with others that came before it.

    Not if that makes many tokens: a forward's time grows with them from there on, and the first frame would wait for
    the last. Nor if it builds on what one of the others does: the same session, a page to copy, a recurrent state.
    """
    before = [segment for task in tasks for segment in task.frame.segments]
    sessions, written = {one.session for one in before}, {one.state.write for one in before} - {0}
    return sum(task.tokens for task in tasks) + other.tokens <= TOGETHER and not any(
        one.session in sessions or one.state.read in written or one.HasField("copy") for one in other.frame.segments
    )


def _fault(task: Task, error: Exception) -> peer_pb2.FrameFault:
    reason = str(error)
    if not isinstance(error, PeerError):
        # Its text could quote tensors, so name its kind.
        log.error("a frame could not be computed", exc_info=error)
        reason = f"{type(error).__name__} while computing"
    return peer_pb2.FrameFault(
        epoch=task.frame.epoch,
        step=task.frame.step,
        reason=reason,
        # Of a frame that was sent ahead only the tokens can be wrong; the room sends none without segments.
        upstream=isinstance(error, BadInput)
        or (isinstance(error, BadFrame) and (task.frame.follows > 0 or not task.frame.segments)),
        out_of_memory=isinstance(error, NotEnoughMemory),
    )
