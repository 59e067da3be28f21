"""Driving a chain of slices as the room and the network would, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

from peer import spread
from peer.kv import KvPool
from peer.linear import NONE, Quant
from peer.memory import Share
from peer.step import Engine
from protos import peer_pb2

GREEDY = peer_pb2.SamplingSpec(params=peer_pb2.SamplingParams(top_p=1, repetition_penalty=1))


@dataclass
class Session:
    """What the room keeps of one."""

    number: int
    pages: Sequence[tuple[int, int]]
    """Runs (first, count)."""
    done: int = 0
    ids: list[int] = field(default_factory=list)

    def segment(self, ids: Sequence[int], sampled: int = 0, state: tuple[int, int] | None = None) -> peer_pb2.Segment:
        """The next tokens; state slots by default are one slot of the session's own."""
        own = self.number + 1
        read, write = state or (own if self.done else 0, own)
        segment = peer_pb2.Segment(
            session=self.number,
            start=self.done,
            ids=ids,
            pages=[peer_pb2.PageRun(first=first, count=count) for first, count in self.pages],
            sampled=sampled,
            state=peer_pb2.StateSlots(read=read, write=write),
        )
        self.done += len(ids)
        self.ids.extend(ids)
        return segment


class Chain:
    """Engines one after the other; frames between them go through bytes."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.step = 0
        self.logits = torch.empty(0)
        """Of the last frame, [sampled rows, vocabulary]."""
        last = engines[-1].slice.parts[-1]
        head = last.logits

        def keeping(*args: object) -> torch.Tensor:
            self.logits = head(*args)
            return self.logits

        last.logits = keeping

    @classmethod
    def load(
        cls,
        source: Path,
        cuts: Sequence[int],
        *,
        pages: int = 12,
        state_slots: int = 4,
        dtypes: Sequence[torch.dtype] | None = None,
        quant: Quant = NONE,
        kv: torch.dtype | None = None,
        devices: int = 1,
    ) -> "Chain":
        """Slices between the `cuts`, in float32 unless `dtypes` say otherwise.

        Each lies on several `devices`, as far as it knows; all are the CPU.
        """
        shares = [Share(torch.device("cpu"), 1 << 30)] * devices
        engines = []
        for at, (start, end) in enumerate(pairwise(cuts)):
            dtype = dtypes[at] if dtypes else torch.float32
            slice = spread.load(str(source), start, end, shares, dtype=dtype, quant=quant)
            engines.append(Engine(slice, *(KvPool(part, pages, state_slots, kv) for part in slice.parts)))
        return cls(engines)

    def run(
        self,
        segments: Sequence[peer_pb2.Segment],
        specs: Sequence[peer_pb2.SamplingSpec] | None = None,
        masks: Mapping[bytes, bytes] | None = None,
    ) -> peer_pb2.FrameResult:
        """Send one frame all the way through."""
        self.step += 1
        frame = peer_pb2.Frame(epoch=1, step=self.step, lane=peer_pb2.LANE_DECODE, segments=segments)
        sampled = sum(1 for segment in segments if segment.sampled)
        plan = peer_pb2.SamplingPlan(epoch=1, step=self.step, specs=[GREEDY] * sampled if specs is None else specs)
        for engine in self.engines:
            out = engine.run(peer_pb2.Frame.FromString(frame.SerializeToString()), plan, masks or {})
            if isinstance(out, peer_pb2.FrameResult):
                return out
            frame = out
        raise AssertionError("the last engine passed the frame on")


def greedy(chain: Chain, session: Session, prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens after `prompt`, fed one by one."""
    fed: Sequence[int] = prompt
    answer: list[int] = []
    while len(answer) < count:
        result = chain.run([session.segment(fed, sampled=1)])
        answer.append(result.segments[0].tokens[0].id)
        fed = answer[-1:]
    return answer
