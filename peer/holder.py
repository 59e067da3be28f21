"""The slice a peer holds, kept across deals and reconnects, and the thread that computes with it."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from peer.errors import DiskFailed
from peer.progress import LoadReport
from peer.worker import Outcome, Task, Worker
from protos import peer_pb2, room_pb2
from protos.lanes import Lane

if TYPE_CHECKING:
    from peer.kv import KvPool
    from peer.membership import Lent
    from peer.spread import Layers
    from peer.step import Engine
    from peer.supply import Supply

T = TypeVar("T")


@dataclass(frozen=True)
class _Key:
    """What makes two slices the same."""

    manifest: str
    start: int
    end: int
    quant: room_pb2.Quant.ValueType

    @classmethod
    def of(cls, wanted: room_pb2.Assignment | room_pb2.Prepare) -> "_Key":
        return cls(wanted.manifest.hex(), wanted.start, wanted.end, wanted.quant)


class Holder:
    """Loads what the room deals and computes with it. One slice at a time: memory is lent once."""

    def __init__(self, lent: "Lent", supply: "Supply") -> None:
        self._lent = lent
        self._supply = supply
        self._deliver: Callable[[Outcome], None] = _nowhere
        self._worker = Worker(lambda outcome: self._deliver(outcome), lent.turns)
        self._key: _Key | None = None
        self._slice: Layers | None = None
        self._engine: Engine | None = None
        self._epoch = 0
        self._layer_seconds = 0.0
        self._checked = ""  # the manifest of the model whose architecture was tried out: once is enough

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

    async def load(self, assignment: room_pb2.Assignment, report: LoadReport) -> room_pb2.SliceReady:
        """Hold the assignment's slice with a pool of pages; what to tell the room of it.

        The pages are fresh, unless those of the deal before are to be kept and are still there. Nothing is read when it
        is the slice held already. Raises PeerError.
        """
        # Nothing is kept while another slice is loaded: memory is lent once.
        keeps = _Key.of(assignment) == self._key and 0 < assignment.keeps == self._epoch
        pools = self._engine.pools if keeps and self._engine is not None else ()
        slice = await self._hold(_Key.of(assignment), report)
        return await self._call(lambda: self._serve(slice, assignment, pools))

    async def prepare(self, wanted: room_pb2.Prepare, report: LoadReport) -> room_pb2.Prepared:
        """Hold a slice without serving it; what to tell the room of it. Raises PeerError."""
        await self._hold(_Key.of(wanted), report)
        return room_pb2.Prepared(start=wanted.start, end=wanted.end, layer_seconds=self._layer_seconds)

    async def audit(self, wanted: room_pb2.Audit) -> room_pb2.Audited:
        """Compare what another peer computed with what the slice held here makes of it. Raises PeerError."""
        return await self._call(lambda: self._audit(wanted))

    async def release(self) -> None:
        """Stop computing and free the KV; the weights stay for the next deal."""
        await self._call(self._serve_nothing)

    def use_wire(self, choice: room_pb2.WireChoice) -> None:
        """Pass frames of that deal on in another form from now on."""
        if self._engine is not None and choice.epoch == self._epoch:
            self._engine.wire = choice.wire

    def stop(self) -> None:
        self._worker.stop()

    async def _call(self, work: Callable[[], T]) -> T:
        """Run something on the compute thread."""
        return await asyncio.wrap_future(self._worker.call(work))

    def _serve(self, slice: "Layers", assignment: room_pb2.Assignment, kept: "Sequence[KvPool]") -> room_pb2.SliceReady:
        from peer.step import Engine

        pools = kept or self._new_pools(slice, assignment)
        self._engine = Engine(slice, *pools)
        self._engine.wire, self._engine.most_tokens = assignment.wire, assignment.max_frame_tokens
        self._epoch = assignment.epoch
        self._worker.serve(self._engine, self._epoch)
        return room_pb2.SliceReady(
            epoch=assignment.epoch,
            weight_bytes=slice.weight_bytes,
            pages=min(pools[0].pages, assignment.pages),
            position_limit=slice.position_limit or 0,
            layer_seconds=self._layer_seconds,
            kept=bool(kept),
        )

    def _new_pools(self, slice: "Layers", assignment: room_pb2.Assignment) -> "Sequence[KvPool]":
        """One for each part, all with as many pages as fit beside every part's weights."""
        from peer.kv import KV_DTYPES, KvPool
        from peer.memory import fitting_pages

        dtype, pages = KV_DTYPES.get(assignment.kv, slice.dtype), assignment.pages
        left = []
        for part in slice.parts:
            lent = sum(share.bytes for share in self._lent.shares if share.device == part.device)
            fixed = part.weight_bytes + (assignment.state_slots + 2) * part.layout.slot_bytes
            page_bytes = part.layout.page_bytes(dtype)
            pages = fitting_pages(pages, assignment.least_pages, page_bytes, lent, fixed, part.device)
            left.append((lent - fixed, page_bytes))
        # What the pages leave is for activations too.
        packs = [(bytes - pages * page_bytes) // 2 for bytes, page_bytes in left]
        return [
            KvPool(part, pages, assignment.state_slots, dtype, packs=most)
            for part, most in zip(slice.parts, packs, strict=True)
        ]

    async def _hold(self, key: _Key, report: LoadReport) -> "Layers":
        """The slice, loaded if it is not the one held. What was served before is served no longer."""
        await self._call(self._serve_nothing)
        if key != self._key or self._slice is None:
            self._key = self._slice = None
            source = await self._supply.opened(key.manifest)
            await self._call(lambda: self._check(key, source))
            source = await self._supply.obtain(key.manifest, key.start, key.end, report)
            self._slice = await self._call(lambda: self._read(key, source, report))
            self._key = key
        return self._slice

    def _audit(self, wanted: room_pb2.Audit) -> room_pb2.Audited:
        from peer.audit import difference

        held = self._slice
        if held is None or (held.start, held.end) != (wanted.start, wanted.end):
            return room_pb2.Audited(number=wanted.number)
        found = difference(held, wanted.ids, wanted.came, wanted.gave)
        return room_pb2.Audited(number=wanted.number, computed=True, difference=found)

    def _check(self, key: _Key, source: str) -> None:
        from peer.selfcheck import self_check

        if self._checked != key.manifest:
            self_check(source)
            self._checked = key.manifest

    def _read(self, key: _Key, source: str, report: LoadReport) -> "Layers":
        from peer import spread

        try:
            slice = spread.load(
                source,
                key.start,
                key.end,
                self._lent.shares,
                dtype=self._lent.dtype,
                quant=key.quant,
                progress=report.loaded,
            )
        except OSError as error:
            raise DiskFailed(
                f"layers {key.start} to {key.end - 1} of {source} cannot be loaded ({error.strerror}); free "
                f"some space in {tempfile.gettempdir()}, or name another folder with TMPDIR, and join again"
            ) from error
        self._layer_seconds = slice.layer_seconds()
        return slice

    def _serve_nothing(self) -> None:
        self._engine = None  # it holds the pages
        self._worker.serve(None, 0)


def _nowhere(outcome: Outcome) -> None:
    """Frames computed while nobody is connected are lost: the room has given them up."""
