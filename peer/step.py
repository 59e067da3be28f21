"""One step of a peer: a frame comes in, goes through the slice's layers, and goes on, or ends in sampled tokens."""

import time
from collections.abc import Mapping

import torch

from peer.attention import PagedKernel
from peer.batch import Batch
from peer.codec import AUTO, Wire, from_wire, to_wire
from peer.errors import BadFrame, BadInput, NotEnoughMemory, NumericFault
from peer.kv import PAGE, KvPool
from peer.sampling import Row, sample
from peer.slice import Slice
from protos import peer_pb2


class Engine:
    """Computes frames with a slice and a pool of pages. Synchronous; not for use by two threads at a time."""

    def __init__(self, slice: Slice, pool: KvPool) -> None:
        self.slice, self.pool = slice, pool
        self.wire: Wire = AUTO
        """In which form hidden states are passed on."""
        self._kernel = PagedKernel(pool.device, pool.dtype, PAGE)

    def __repr__(self) -> str:
        return f"<Engine {self.slice} {self.pool}>"

    @torch.inference_mode()
    def run(
        self,
        frame: peer_pb2.Frame,
        plan: peer_pb2.SamplingPlan | None,
        masks: Mapping[bytes, bytes],
        *,
        waited_us: int = 0,
    ) -> peer_pb2.Frame | peer_pb2.FrameResult:
        """Compute one frame. The last slice samples by `plan` and gives a result; the others give the next frame.

        `masks` are the allowed-token masks that have come so far, by hash. Raises BadFrame before any page is written,
        except where a mask leaves nothing to draw; then, and with NumericFault and NotEnoughMemory, the frame's own
        pages may have been, and no others.
        """
        begun = time.perf_counter()
        batch = Batch(frame.segments, self.slice, self.pool, self._kernel)
        hidden = self._hidden(frame, len(batch.ids))
        batch.copy_pages()
        out: peer_pb2.Frame | peer_pb2.FrameResult
        try:
            out = (
                self._finish(frame, plan, masks, batch, hidden) if self.slice.last else self._pass(frame, batch, hidden)
            )
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(
                f"{self.pool.device} ran out of memory on a frame of {len(batch.ids)} tokens; lend less (--memory)"
            ) from error
        out.stages.extend(frame.stages)
        out.stages.add(waited_us=waited_us, computed_us=int((time.perf_counter() - begun) * 1e6))
        return out

    def _hidden(self, frame: peer_pb2.Frame, rows: int) -> torch.Tensor | None:
        """The hidden states the frame brought [rows, width]; none for the first slice. Raises BadFrame."""
        slice = self.slice
        if slice.first:
            if frame.HasField("hidden"):
                raise BadInput("hidden states came to the peer that holds layer 0; send it token ids only")
            return None
        if not frame.HasField("hidden"):
            raise BadInput(f"no hidden states came to the peer that starts at layer {slice.start}")
        if (frame.hidden.rows, frame.hidden.width) != (rows, slice.hidden_size):
            raise BadInput(
                f"the frame's hidden states are [{frame.hidden.rows}, {frame.hidden.width}] but its tokens and this "
                f"model make [{rows}, {slice.hidden_size}]"
            )
        try:
            return from_wire(frame.hidden, slice.dtype, slice.device)
        except BadFrame as error:
            raise BadInput(str(error)) from error

    def _pass(self, frame: peer_pb2.Frame, batch: Batch, hidden: torch.Tensor | None) -> peer_pb2.Frame:
        """Compute the frame for the next slice."""
        out = self.slice.forward(batch, batch.ids, batch.positions, hidden)
        self._check_finite(out, hidden)
        return peer_pb2.Frame(
            epoch=frame.epoch,
            step=frame.step,
            lane=frame.lane,
            segments=frame.segments,
            hidden=to_wire(out, self.wire),
        )

    def _finish(
        self,
        frame: peer_pb2.Frame,
        plan: peer_pb2.SamplingPlan | None,
        masks: Mapping[bytes, bytes],
        batch: Batch,
        hidden: torch.Tensor | None,
    ) -> peer_pb2.FrameResult:
        """Compute the frame to its end and draw its tokens."""
        rows = _rows(frame, plan, masks)
        result = peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step)
        if not rows:
            # A chunk in the middle of a prompt: only its keys and values matter.
            self._check_finite(self.slice.forward(batch, batch.ids, batch.positions, hidden), hidden)
            return result
        at = torch.tensor(_sampled_at(frame), device=self.slice.device)
        logits = self.slice.logits(batch, batch.ids, batch.positions, hidden, at)
        self._check_finite(logits, hidden)
        try:
            tokens = iter(sample(logits, rows))
        except ValueError as error:
            raise BadFrame(f"a token cannot be drawn: {error}") from error
        for segment in frame.segments:
            if segment.sampled:
                result.segments.add(tokens=[next(tokens) for _ in range(segment.sampled)])
        return result

    def _check_finite(self, out: torch.Tensor, hidden: torch.Tensor | None) -> None:
        if not _is_finite(out):
            if hidden is not None and not _is_finite(hidden):
                raise BadInput(f"NaN or infinity came to the peer that starts at layer {self.slice.start}")
            raise NumericFault(
                f"layers {self.slice.start} to {self.slice.end - 1} gave NaN or infinity in {self.slice.dtype}; "
                "let their peer join with --dtype float32, or load its weights again"
            )


def _is_finite(out: torch.Tensor) -> bool:
    # The extremes of one pass: NaN spreads into both.
    return bool(torch.stack(out.aminmax()).isfinite().all())


def _sampled_at(frame: peer_pb2.Frame) -> list[int]:
    """The packed rows that are sampled from, in order."""
    at: list[int] = []
    end = 0
    for segment in frame.segments:
        end += len(segment.ids)
        at.extend(range(end - segment.sampled, end))
    return at


def _rows(frame: peer_pb2.Frame, plan: peer_pb2.SamplingPlan | None, masks: Mapping[bytes, bytes]) -> list[Row]:
    """How to draw from each sampled position, in order. Raises BadFrame."""
    sampled = [segment for segment in frame.segments if segment.sampled]
    if not sampled:
        return []
    if plan is None or (plan.epoch, plan.step) != (frame.epoch, frame.step):
        raise BadFrame(f"no sampling plan came for step {frame.step} of epoch {frame.epoch}; send it before the frame")
    if len(plan.specs) != len(sampled):
        raise BadFrame(f"the sampling plan holds {len(plan.specs)} specs for {len(sampled)} sampled segments")
    return [
        row for segment, spec in zip(sampled, plan.specs, strict=True) for row in _segment_rows(segment, spec, masks)
    ]


def _segment_rows(segment: peer_pb2.Segment, spec: peer_pb2.SamplingSpec, masks: Mapping[bytes, bytes]) -> list[Row]:
    if len(spec.masks) not in (0, segment.sampled):
        raise BadFrame(
            f"session {segment.session} has {len(spec.masks)} masks for {segment.sampled} sampled positions; "
            "give one for each, or none"
        )
    hashes = list(spec.masks) or [b""] * segment.sampled
    if any(name and name not in masks for name in hashes):
        raise BadFrame(f"a mask of session {segment.session} has not come; send masks before the plan that names them")
    ids = list(segment.ids)
    first = len(ids) - segment.sampled
    return [
        Row(
            spec=spec,
            index=index,
            position=segment.start + first + index + 1,
            drafted=ids[first + 1 : first + index + 1],
            mask=masks[name] if name else None,
        )
        for index, name in enumerate(hashes)
    ]
