"""One step of a peer: a frame comes in, goes through the slice's layers, and goes on, or ends in sampled tokens."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from peer.codec import AUTO, Wire, from_wire, to_wire
from peer.errors import BadFrame, BadInput, NotEnoughMemory, NumericFault, PeerError
from peer.kv import KvPool
from peer.memory import out_of_memory
from peer.parts import Packed, Parts
from peer.sampling import Row, sample
from peer.spread import Layers
from peer.worker import Task
from protos import peer_pb2
from protos.lanes import Lane

Passed: TypeAlias = peer_pb2.Frame | peer_pb2.FrameResult
"""What comes of a frame that could be computed."""

States: TypeAlias = Sequence[torch.Tensor | None]
"""The hidden states [rows, width] that each of some frames brought."""


class Engine:
    """Computes frames with a slice and a pool of pages. Synchronous; not for use by two threads at a time."""

    def __init__(self, slice: Layers, *pools: KvPool) -> None:
        """pools: of each of the slice's parts."""
        self.slice, self.pools = slice, pools
        self.wire: Wire = AUTO
        """In which form hidden states are passed on."""
        self.most_tokens: int | None = None
        """Of the largest frame that the deal allows; None: any."""
        self._parts = Parts(slice, pools)
        self._recurrent = any(pool.states for pool in pools)

    def __repr__(self) -> str:
        return f"<Engine {self.slice} {' '.join(map(repr, self.pools))}>"

    def run(self, frame: peer_pb2.Frame, plan: peer_pb2.SamplingPlan | None, masks: Mapping[bytes, bytes]) -> Passed:
        """Compute one frame. The last slice samples by `plan` and gives a result; the others give the next frame.

        `masks` are the allowed-token masks that have come so far, by hash. Raises BadFrame before any page is written,
        except where a mask leaves nothing to draw; then, and with NumericFault and NotEnoughMemory, the frame's own
        pages may have been, and no others.
        """
        (out,) = self.run_together([Task(frame, plan)], {frame.lane: masks})
        if isinstance(out, Exception):
            raise out
        return out

    def run_together(
        self, tasks: Sequence[Task], masks: Mapping[Lane, Mapping[bytes, bytes]]
    ) -> list[Passed | Exception]:
        """Compute frames of different sessions in one forward: for each, what `run` gives or raises.

        `masks` are by lane.
        """
        try:
            return self._run(tasks, masks)
        except Exception as error:
            # A frame that cannot be computed costs no other, so each is tried alone; unless a recurrent state has been
            # written over by now, with which none could begin again.
            if len(tasks) > 1 and (isinstance(error, BadFrame) or not self._recurrent):
                return [out for task in tasks for out in self.run_together([task], masks)]
            return [error for _ in tasks]

    @torch.inference_mode()
    def _run(self, tasks: Sequence[Task], masks: Mapping[Lane, Mapping[bytes, bytes]]) -> list[Passed | Exception]:
        begun = time.perf_counter()
        frames = [task.frame for task in tasks]
        for frame in frames:
            self._check_size(frame)
        packed = self._parts.pack([segment for frame in frames for segment in frame.segments])
        count = sum(map(_tokens, frames))
        came = [self._hidden(frame) for frame in frames]
        draws = [_rows(task.frame, task.plan, masks[task.frame.lane]) for task in tasks] if self.slice.last else []
        self._parts.copy_pages(packed)
        try:
            outs = self._finish(frames, draws, packed, came) if self.slice.last else self._pass(frames, packed, came)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise NotEnoughMemory(
                f"{self.slice.devices} ran out of memory on a frame of {count} tokens; lend less (--memory)"
            ) from error
        per_token = (time.perf_counter() - begun) / count
        for task, out in zip(tasks, outs, strict=True):
            if not isinstance(out, Exception):
                out.stages.extend(task.frame.stages)
                # A frame computed along with others is charged its share, so that the shares add up to the time spent.
                out.stages.add(
                    waited_us=int((begun - task.arrived_at) * 1e6), computed_us=int(per_token * task.tokens * 1e6)
                )
        return outs

    def _check_size(self, frame: peer_pb2.Frame) -> None:
        """Before anything is worked out for it. Raises BadFrame."""
        if self.most_tokens is not None and _tokens(frame) > self.most_tokens:
            raise BadFrame(f"the frame has {_tokens(frame)} tokens, but this deal's have {self.most_tokens} at most")

    def _hidden(self, frame: peer_pb2.Frame) -> torch.Tensor | None:
        """The hidden states the frame brought [rows, width]; none for the first slice. Raises BadInput."""
        slice, rows = self.slice, _tokens(frame)
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

    def _pass(self, frames: Sequence[peer_pb2.Frame], packed: Packed, came: States) -> list[Passed | Exception]:
        """Compute frames for the next slice."""
        states = self._parts.forward(packed, _joined(came))
        parts = torch.split(states, [_tokens(frame) for frame in frames])
        return [
            self._fault(part, hidden) or (_done(frame) if frame.until == self.slice.end else self._next(frame, part))
            for frame, part, hidden in zip(frames, parts, came, strict=True)
        ]

    def _next(self, frame: peer_pb2.Frame, states: torch.Tensor) -> peer_pb2.Frame:
        return peer_pb2.Frame(
            epoch=frame.epoch,
            step=frame.step,
            lane=frame.lane,
            segments=frame.segments,
            hidden=to_wire(states, self.wire),
            until=frame.until,
            audit=frame.audit,
            loops=frame.loops,
        )

    def _finish(
        self, frames: Sequence[peer_pb2.Frame], draws: Sequence[list[Row]], packed: Packed, came: States
    ) -> list[Passed | Exception]:
        """Compute frames to their end and draw their tokens."""
        hidden = _joined(came)
        if not any(draws):
            # Chunks in the middle of prompts: only their keys and values matter.
            states = self._parts.forward(packed, hidden)
            fault = self._fault(states, hidden)
            given = torch.split(states, [_tokens(frame) for frame in frames])
            return [fault or _done(frame, part) for frame, part in zip(frames, given, strict=True)]
        logits = self._parts.logits(packed, hidden, _sampled_at(frames))
        parts = torch.split(logits, [len(rows) for rows in draws])
        return [
            self._draw(frame, rows, part, hidden)
            for frame, rows, part, hidden in zip(frames, draws, parts, came, strict=True)
        ]

    def _draw(
        self, frame: peer_pb2.Frame, rows: Sequence[Row], logits: torch.Tensor, hidden: torch.Tensor | None
    ) -> Passed | PeerError:
        """One frame's tokens, from its rows of logits."""
        result = _done(frame)
        if not rows:
            return result
        fault = self._fault(logits, hidden)
        if fault is not None:
            return fault
        try:
            tokens = iter(sample(logits, rows))
        except ValueError as error:
            return BadFrame(f"a token cannot be drawn: {error}")
        for segment in frame.segments:
            if segment.sampled:
                result.segments.add(tokens=[next(tokens) for _ in range(segment.sampled)])
        return result

    def _fault(self, out: torch.Tensor, hidden: torch.Tensor | None) -> BadInput | NumericFault | None:
        """Who is to blame if `out` holds numbers that are none: this slice, or the peer whose `hidden` went in."""
        if _is_finite(out):
            return None
        if hidden is not None and not _is_finite(hidden):
            return BadInput(f"NaN or infinity came to the peer that starts at layer {self.slice.start}")
        return NumericFault(
            f"layers {self.slice.start} to {self.slice.end - 1} gave NaN or infinity in {self.slice.dtype}; "
            "let their peer join with --dtype float32, or load its weights again"
        )


def _done(frame: peer_pb2.Frame, states: torch.Tensor | None = None) -> peer_pb2.FrameResult:
    """What comes of a frame that draws no tokens, with the last slice's `states` if it is audited."""
    told = to_wire(states) if frame.audit and states is not None else None
    return peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step, hidden=told, loops=frame.loops)


def _joined(came: States) -> torch.Tensor | None:
    parts = [part for part in came if part is not None]
    return None if not parts else parts[0] if len(parts) == 1 else torch.cat(parts)


def _is_finite(out: torch.Tensor) -> bool:
    # NaN and infinity spread into a sum, the quickest of passes; a sum of finite numbers may run over, extremes do not.
    return math.isfinite(out.sum(dtype=torch.float32).item()) or bool(torch.stack(out.aminmax()).isfinite().all())


def _tokens(frame: peer_pb2.Frame) -> int:
    return sum(len(segment.ids) for segment in frame.segments)


def _sampled_at(frames: Iterable[peer_pb2.Frame]) -> list[int]:
    """The packed rows that are sampled from, in order."""
    at: list[int] = []
    end = 0
    for frame in frames:
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
