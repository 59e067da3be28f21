"""A room and its peers in simulated time: stages that take time, links that delay, processors that are shared."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from protos import peer_pb2
from protos.lanes import DECODE, PREFILL
from room.session import Session
from tests.room.fakes import Clock, FakePeer, close_loop, open_room

Time = Callable[[int], float]
"""Seconds that a stage takes for a frame of so many rows."""


@dataclass
class Stage:
    peer: FakePeer
    time: Time
    lanes: dict[int, deque[tuple[float, peer_pb2.Frame]]] = field(
        default_factory=lambda: {DECODE: deque(), PREFILL: deque()}
    )
    prefill_next: bool = False
    works: bool = False
    worked: float = 0.0

    def pop(self) -> tuple[float, peer_pb2.Frame] | None:
        """Decode before prefill, by turns while both wait: as a peer's worker does."""
        decode, prefill = self.lanes[DECODE], self.lanes[PREFILL]
        take = bool(prefill) and (self.prefill_next or not decode)
        self.prefill_next = not take and bool(prefill)
        queue = prefill if take else decode
        return queue.popleft() if queue else None


class Pipeline:
    """`times` has one entry for each stage; `machines` names theirs (default: one each). `link` is seconds one way.

    From one stage to the next a row takes `crossing` seconds more, after the rows before it, and the room knows. The
    stages make `chains` chains of as many each, whose last one reaches the first `straight` or not.
    """

    def __init__(
        self,
        times: Sequence[Time],
        *,
        link: float = 0.0,
        crossing: float = 0.0,
        machines: Sequence[str] | None = None,
        chains: int = 1,
        straight: bool = True,
        **options: object,
    ) -> None:
        self.clock = Clock()
        self.link = link
        self._crossing = crossing
        self._free_at = [0.0] * len(times)  # by stage, when the link behind it is
        self._depth = len(times) // chains
        self.room = open_room(clock=self.clock, devices=self._depth, chains=chains, wire="f32", **options)
        names = machines or [f"m{at}" for at in range(len(times))]
        peers = [FakePeer(self.room, f"p{at}", machine=name) for at, name in enumerate(names)]
        for peer in peers:
            peer.load()
        for peer in peers if crossing else ():
            peer.measured(int(4 * self.room.model.shape.hidden_size / crossing))
        for first in range(0, len(peers), self._depth):
            if straight:
                close_loop(peers[first : first + self._depth])
        for peer in peers:
            peer.member.place.round_trips.append(2 * link)
            peer.first = None  # what is drawn takes its time to the first one
        self.stages = [Stage(peer, time) for peer, time in zip(peers, times, strict=True)]
        self._busy: set[str] = set()  # processors
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._drawn_at: dict[tuple[int, int], float] = {}  # by the first stage and step
        self.frames: Counter[int] = Counter()  # by lane

    def run(self, until: Callable[[], bool]) -> float:
        """Let time pass until `until`; the seconds that passed."""
        begun = self.clock.now
        self._collect()
        while not until():
            self.clock.now, _, happens = heapq.heappop(self._events)
            happens()
            self._collect()
        return self.clock.now - begun

    def _at(self, delay: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.clock.now + delay, next(self._number), happens))

    def _collect(self) -> None:
        for first in range(0, len(self.stages), self._depth):
            for frame in self.stages[first].peer.came():
                self.frames[frame.lane] += 1
                self._at(self.link, lambda first=first, frame=frame: self._arrive(first, frame))  # type: ignore[misc]

    def _arrive(self, at: int, frame: peer_pb2.Frame) -> None:
        stage = self.stages[at]
        stage.peer.ahead.append(frame)
        for whole in stage.peer.whole():
            since = self._drawn_at.get((at, whole.follows), self.clock.now)
            stage.lanes[whole.lane].append((since, whole))
        self._start()

    def _give_back(self, at: int, result: peer_pb2.FrameResult) -> None:
        """What the last stage drew goes to the first one."""
        first = at + 1 - self._depth
        peer = self.stages[first].peer

        def come() -> None:
            self._drawn_at[first, result.step] = self.clock.now
            peer.drawn[result.step] = [token.id for segment in result.segments for token in segment.tokens]
            for whole in peer.whole():
                self.stages[first].lanes[whole.lane].append((self.clock.now, whole))
            self._start()

        self._at(self.link if self._depth > 1 else 0.0, come)

    def _start(self) -> None:
        for at, stage in enumerate(self.stages):
            machine = stage.peer.hello.machine
            if machine not in self._busy and (found := stage.pop()):
                self._busy.add(machine)
                arrived, frame = found
                took = stage.time(sum(len(segment.ids) for segment in frame.segments))
                stage.worked += took
                waited = self.clock.now - arrived
                self._at(took, lambda at=at, frame=frame, waited=waited: self._done(at, frame, waited))  # type: ignore[misc]

    def _done(self, at: int, frame: peer_pb2.Frame, waited: float) -> None:
        stage = self.stages[at]
        self._busy.discard(stage.peer.hello.machine)
        stage.peer.time = stage.time
        out = stage.peer.compute(frame)
        stages = out.result.stages if out.HasField("result") else out.relay.stages
        stages[-1].waited_us = int(waited * 1e6)
        if out.HasField("result"):
            if frame.loops:
                self._give_back(at, out.result)
            self._at(self.link, lambda: self.room.arrived(stage.peer.member, out))
        else:
            rows = sum(len(segment.ids) for segment in frame.segments)
            self._free_at[at] = max(self._free_at[at], self.clock.now) + self._crossing * rows
            crossed = self._free_at[at] - self.clock.now
            self._at(crossed + self.link, lambda: self._arrive(at + 1, out.relay))
        self._start()

    def pace(self, sessions: Sequence[Session], seconds: float, warm: float = 0.0) -> float:
        """Tokens a second that `sessions` take together over so many seconds, after `warm` seconds."""
        end = self.clock.now + warm
        self.run(lambda: self.clock.now >= end)
        before, begun = sum(len(session.tokens) for session in sessions), self.clock.now
        self.run(lambda: self.clock.now >= begun + seconds)
        return (sum(len(session.tokens) for session in sessions) - before) / (self.clock.now - begun)
