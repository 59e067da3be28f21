"""The slice a peer holds, kept across deals and reconnects, and the thread that computes with it."""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peer.errors import DiskFailed
from peer.worker import Outcome, Task, Worker
from protos import peer_pb2, room_pb2
from protos.lanes import Lane

if TYPE_CHECKING:
    from peer.membership import Lent
    from peer.slice import Slice
    from peer.step import Engine


@dataclass(frozen=True)
class _Key:
    """What makes two slices the same."""

    source: str
    revision: str
    start: int
    end: int
    quant: room_pb2.Quant.ValueType

    @classmethod
    def of(cls, wanted: room_pb2.Assignment | room_pb2.Prepare) -> "_Key":
        return cls(wanted.source, wanted.revision, wanted.start, wanted.end, wanted.quant)


class Holder:
    """Loads what the room deals and computes with it. One slice at a time: memory is lent once."""

    def __init__(self, lent: "Lent") -> None:
        self._lent = lent
        self._deliver: Callable[[Outcome], None] = _nowhere
        self._worker = Worker(lambda outcome: self._deliver(outcome))
        self._key: _Key | None = None
        self._slice: Slice | None = None
        self._engine: Engine | None = None
        self._epoch = 0
        self._layer_seconds = 0.0
        self._checked: tuple[str, str] | None = None  # the model whose architecture was tried out: once is enough

    def deliver_to(self, deliver: Callable[[Outcome], None]) -> None:
        """Where computed frames go; called on the compute thread."""
        self._deliver = deliver

    @property
    def step_seconds(self) -> float:
        """How long the frame that is computed now has taken so far."""
        return self._worker.step_seconds

    def submit(self, task: Task) -> None:
        self._worker.submit(task)

    def learn_mask(self, lane: Lane, mask: peer_pb2.TokenMask) -> None:
        self._worker.learn_mask(lane, mask)

    async def load(self, assignment: room_pb2.Assignment, progress: Callable[[float], None]) -> room_pb2.SliceReady:
        """Hold the assignment's slice with a fresh pool of pages; what to tell the room of it.

        Nothing is read when it is the slice held already. `progress` (0 to 1) is called on the compute thread.
        Raises PeerError.
        """
        return await asyncio.wrap_future(self._worker.call(lambda: self._load(assignment, progress)))

    async def prepare(self, wanted: room_pb2.Prepare, progress: Callable[[float], None]) -> room_pb2.Prepared:
        """Hold a slice without serving it; what to tell the room of it. Raises PeerError."""
        await asyncio.wrap_future(self._worker.call(lambda: self._hold(_Key.of(wanted), progress)))
        return room_pb2.Prepared(start=wanted.start, end=wanted.end, layer_seconds=self._layer_seconds)

    async def release(self) -> None:
        """Stop computing and free the KV; the weights stay for the next deal."""
        await asyncio.wrap_future(self._worker.call(self._serve_nothing))

    def use_wire(self, choice: room_pb2.WireChoice) -> None:
        """Pass frames of that deal on in another form from now on."""
        if self._engine is not None and choice.epoch == self._epoch:
            self._engine.wire = choice.wire

    def stop(self) -> None:
        self._worker.stop()

    def _load(self, assignment: room_pb2.Assignment, progress: Callable[[float], None]) -> room_pb2.SliceReady:
        from peer.kv import KV_DTYPES, KvPool
        from peer.memory import fitting_pages
        from peer.step import Engine

        slice = self._hold(_Key.of(assignment), progress)
        dtype = KV_DTYPES.get(assignment.kv, slice.dtype)
        states = (assignment.state_slots + 2) * slice.layout.slot_bytes
        pages = fitting_pages(
            assignment.pages,
            assignment.least_pages,
            slice.layout.page_bytes(dtype),
            self._lent.hello.memory,
            slice.weight_bytes + states,
            slice.device,
        )
        pool = KvPool(slice, pages, assignment.state_slots, dtype)
        self._engine = Engine(slice, pool)
        self._engine.wire = assignment.wire
        self._epoch = assignment.epoch
        self._worker.serve(self._engine, self._epoch)
        return room_pb2.SliceReady(
            epoch=assignment.epoch,
            weight_bytes=slice.weight_bytes,
            pages=pages,
            position_limit=slice.position_limit or 0,
            layer_seconds=self._layer_seconds,
        )

    def _hold(self, key: _Key, progress: Callable[[float], None]) -> "Slice":
        """The slice, loaded if it is not the one held. What was served before is served no longer."""
        from peer.selfcheck import self_check
        from peer.slice import Slice

        self._serve_nothing()
        if key != self._key or self._slice is None:
            self._key = self._slice = None
            try:
                if self._checked != (key.source, key.revision):
                    self_check(key.source, key.revision or None)
                    self._checked = key.source, key.revision
                self._slice = Slice.load(
                    key.source,
                    key.start,
                    key.end,
                    dtype=self._lent.dtype,
                    device=self._lent.device,
                    revision=key.revision or None,
                    quant=key.quant,
                    progress=progress,
                )
            except OSError as error:
                raise DiskFailed(
                    f"layers {key.start} to {key.end - 1} of {key.source} cannot be loaded ({error.strerror}); free "
                    f"some space in {tempfile.gettempdir()}, or name another folder with TMPDIR, and join again"
                ) from error
            self._key = key
            self._layer_seconds = self._slice.layer_seconds()
        return self._slice

    def _serve_nothing(self) -> None:
        self._engine = None  # it holds the pages
        self._worker.serve(None, 0)


def _nowhere(outcome: Outcome) -> None:
    """Frames computed while nobody is connected are lost: the room has given them up."""
