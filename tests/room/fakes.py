"""A room without sockets: peers that sit on the other side of its outboxes, and an answer without text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from protos import peer_pb2, room_pb2, tensor_pb2
from protos.lanes import LANES
from protos.outbox import Outbox
from room.config import RoomConfig
from room.drafts import Draft
from room.members import Member
from room.model import Model, ModelShape
from room.pages import PAGE
from room.room import Room
from room.session import Event, Job, Session

VOCAB = 997
MACHINE = "here"
MANIFEST = "0" * 64


def shape(
    layers: int = 4,
    *,
    ctx: int = 4096,
    tied: bool = False,
    hybrid: bool = False,
    params: int = 1000,
    hidden_size: int = 8,
) -> ModelShape:
    """A model of equal layers; embedding and head weigh `params` each."""
    return ModelShape(
        architecture="TestForCausalLM",
        layers=layers,
        hidden_size=hidden_size,
        vocab_size=VOCAB,
        ctx=ctx,
        tied=tied,
        layer_params=(params,) * layers,
        layer_matrices=(params * 9 // 10,) * layers,
        embed_params=params,
        head_params=0 if tied else params,
        kv_per_token=(16,) * layers,
        kv_heads=(2,) * layers,
        state_elements=(8 if hybrid else 0,) * layers,
    )


def model(layers: int = 4, **options: int | bool) -> Model:
    return Model(
        source="/model",
        revision=None,
        shape=shape(layers, **options),
        text_dir=Path("/model"),
        name="test",
        weights=("model.safetensors",),
    )


def job(
    prompt: int | Sequence[int] = 10, max_new: int = 5, *, client: str = "a", max_waiting: int = 0, first: int = 1
) -> Job:
    """A request whose prompt is given, or counts up from `first`."""
    ids = tuple(range(first, first + prompt)) if isinstance(prompt, int) else tuple(prompt)
    return Job(
        request_id="r",
        client=client,
        prompt=ids,
        max_new=max_new,
        params=peer_pb2.SamplingParams(repetition_penalty=1, top_p=1),
        max_waiting=max_waiting,
        landmarks=(max(len(ids) - 5, 0), len(ids)),
    )


class CountingAnswer:
    """Finishes after `max_new` tokens; its text is the ids."""

    def __init__(self, max_new: int) -> None:
        self.max_new = max_new
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.finished: room_pb2.FinishReason | None = None
        self.steady = True

    def feed(self, tokens: Sequence[peer_pb2.SampledToken]) -> Iterator[Event]:
        for token in tokens:
            self.completion_tokens += 1
            yield Event(text=room_pb2.TextDelta(text=f"{token.id} "))
        if self.completion_tokens >= self.max_new:
            self.finished = room_pb2.FINISH_REASON_LENGTH

    def ahead(self, guess: Sequence[int]) -> Draft:
        return Draft(tuple(guess), (None,) * (len(guess) + 1))

    def mask(self) -> bytes | None:
        return None

    def force(self) -> tuple[list[int], list[Event]]:
        return [], []


FRESH = 7
"""The fake model's state before any token."""


def digest(ids: Sequence[int], end: int) -> int:
    """A number that depends on every token of ids[:end]."""
    found = FRESH
    for at in range(end):
        found = (found * 31 + ids[at] + at) % VOCAB
    return found


def next_id(ids: Sequence[int], end: int) -> int:
    """What the fake model draws after ids[:end]."""
    return digest(ids, end)


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """The fake model's whole answer."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_id(ids, len(ids)))
    return ids[len(prompt) :]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakePeer:
    """Answers a room as a sound peer would, one message at a time, so that tests decide what happens between.

    It keeps what it is given in real pages, and notices when a session finds somebody else's tokens in its own.
    """

    def __init__(
        self, room: Room, name: str, *, memory: int = 1 << 30, machine: str = MACHINE, transformers: str = ""
    ) -> None:
        self.room = room
        self.hello = room_pb2.Hello(
            peer_id=name,
            name=name,
            dtype="float32",
            memory=memory,
            machine=machine,
            transformers_version=transformers,
        )
        self.pages: dict[int, int] = {}
        self._epoch = 0
        self.audits: list[room_pb2.Audit] = []
        self.rows: list[int] = []
        """Of each frame that it computed."""
        self.time: Callable[[int], float] = lambda rows: 0.0
        """Seconds that it says a frame of so many rows took."""
        self.states: dict[int, int] = {}
        self.first: FakePeer | None = self
        """To whom it gives at once what it draws, where it is the last one; None: nobody."""
        self.ahead: list[peer_pb2.Frame] = []
        """Frames that may lack tokens which have not come."""
        self.drawn: dict[int, list[int]] = {}
        """By step."""
        self.assignment: room_pb2.Assignment | None = None
        self.prepare: room_pb2.Prepare | None = None
        self.member: Member = room.join(self.hello)

    def hear(self) -> list[room_pb2.ToMember]:
        """Take what the room said; an assignment is remembered."""
        heard = list(drain(self.member.outbox))
        for message in heard:
            if message.HasField("assignment"):
                self.assignment = message.assignment
            elif message.HasField("released"):
                self.assignment = None
            elif message.HasField("prepare"):
                self.prepare = message.prepare
            elif message.HasField("audit"):
                self.audits.append(message.audit)
        return heard

    def load(self, *, pages: int = 0, limit: int = 0) -> None:
        self.hear()
        assert self.assignment is not None
        kept = 0 < self.assignment.keeps == self._epoch
        self._epoch = self.assignment.epoch
        if not kept:
            self.pages.clear()
        self.states.clear()
        self.ahead.clear()
        self.drawn.clear()
        if self.first is not None and self.assignment.end - self.assignment.start == self.assignment.layers:
            self.first = self
        ready = room_pb2.SliceReady(
            epoch=self.assignment.epoch,
            weight_bytes=1,
            pages=pages or self.assignment.pages,
            position_limit=limit,
            kept=kept,
        )
        self.room.heard(self.member, room_pb2.FromMember(ready=ready))

    def measured(self, bytes_per_second: int, *, direct: bool = False) -> None:
        """Its link to the next peer is that fast, and goes there straight or not."""
        assert self.assignment is not None
        link = room_pb2.LinkState(epoch=self.assignment.epoch, bytes_per_second=bytes_per_second, direct=direct)
        self.room.heard(self.member, room_pb2.FromMember(link=link))

    def prepared(self, layer_seconds: float = 0.0) -> None:
        self.hear()
        assert self.prepare is not None
        prepared = room_pb2.Prepared(start=self.prepare.start, end=self.prepare.end, layer_seconds=layer_seconds)
        self.room.heard(self.member, room_pb2.FromMember(prepared=prepared))

    def beat(self, *, echo: float = 0.0, since: float = 0.0) -> None:
        heartbeat = room_pb2.Heartbeat(rss=5, echo=echo, since=since)
        self.room.heard(self.member, room_pb2.FromMember(heartbeat=heartbeat))

    def ask_to_leave(self) -> None:
        self.room.heard(self.member, room_pb2.FromMember(leaving=room_pb2.Leaving()))

    def fail(self, reason: str) -> None:
        self.hear()
        assert self.assignment is not None
        failed = room_pb2.SliceFailed(epoch=self.assignment.epoch, reason=reason)
        self.room.heard(self.member, room_pb2.FromMember(failed=failed))

    def take(self) -> list[peer_pb2.ToPeer]:
        return [message for lane in LANES for message in drain(self.member.lanes[lane])]

    def compute(self, frame: peer_pb2.Frame) -> peer_pb2.FromPeer:
        """Write the frame's tokens into the pages; the last peer draws, another passes the frame on."""
        assert self.assignment is not None
        result = peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step, stages=frame.stages)
        rows = sum(len(segment.ids) for segment in frame.segments)
        self.rows.append(rows)
        result.stages.add(computed_us=int(self.time(rows) * 1e6))
        for segment in frame.segments:
            if segment.HasField("copy"):
                self._copy(segment.copy)
        for segment in frame.segments:
            slots = [
                page * PAGE + at
                for run in segment.pages
                for page in range(run.first, run.first + run.count)
                for at in range(PAGE)
            ]
            assert all(slot < self.assignment.pages * PAGE for slot in slots)
            for at, token in enumerate(segment.ids, segment.start):
                self.pages[slots[at]] = token
            end = segment.start + len(segment.ids)
            ids = [self.pages[slot] for slot in slots[:end]]
            if segment.HasField("state"):
                self._recur(segment.state, ids, segment.start)
            if segment.sampled:
                drawn = [next_id(ids, upto) for upto in range(end - segment.sampled + 1, end + 1)]
                result.segments.add(tokens=[peer_pb2.SampledToken(id=token) for token in drawn])
        given = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, rows=rows, width=1, data=self.hello.peer_id.encode())
        if self.assignment.end in (self.assignment.layers, frame.until):
            if frame.audit:
                result.hidden.CopyFrom(given)
            if frame.loops and self.first is not None:
                ids = [token.id for segment in result.segments for token in segment.tokens]
                self.first.drawn[frame.step] = ids
            return peer_pb2.FromPeer(result=result)
        passed = peer_pb2.Frame()
        passed.CopyFrom(frame)
        passed.hidden.CopyFrom(given)
        passed.follows = 0  # what it waited for has come
        passed.stages.append(result.stages[-1])
        return peer_pb2.FromPeer(relay=passed)

    def frames(self) -> list[peer_pb2.Frame]:
        """The frames of the deal that wait here and lack no token."""
        self.ahead += self.came()
        return self.whole()

    def came(self) -> list[peer_pb2.Frame]:
        """The frames of the deal that came since it was asked last, those sent ahead as they are."""
        epoch = self.assignment.epoch if self.assignment else 0
        return [message.frame for message in self.take() if message.frame.epoch == epoch]

    def whole(self) -> list[peer_pb2.Frame]:
        """Those of `ahead` whose tokens are there by now, with their tokens."""
        whole = [frame for frame in self.ahead if not frame.follows or frame.follows in self.drawn]
        self.ahead = [frame for frame in self.ahead if frame not in whole]
        for frame in whole:
            for segment in frame.segments:
                if segment.drawn:
                    segment.ids.append(self.drawn[frame.follows][segment.drawn - 1])
                    segment.drawn = 0
        return whole

    def _copy(self, copy: peer_pb2.PageCopy) -> None:
        for at in range(PAGE):
            source, target = copy.source * PAGE + at, copy.target * PAGE + at
            self.pages.pop(target, None)
            if source in self.pages:
                self.pages[target] = self.pages[source]

    def _recur(self, state: peer_pb2.StateSlots, ids: list[int], start: int) -> None:
        assert self.assignment is not None
        assert 0 < state.write <= self.assignment.state_slots
        assert (self.states[state.read] if state.read else FRESH) == digest(ids, start), "the state of these tokens"
        self.states[state.write] = digest(ids, len(ids))

    def work(self) -> int:
        """Compute all frames of the deal that wait here; how many there were."""
        frames = self.frames()
        for frame in frames:
            self.room.arrived(self.member, self.compute(frame))
        return len(frames)


def drain(outbox: Outbox) -> Iterator:
    while len(outbox):
        yield outbox._items.popleft()


def run_all(peers: Iterable[FakePeer], most: int = 10_000) -> int:
    """Let peers work until nothing moves; frames computed by the first."""
    peers = list(peers)
    total = 0
    for _ in range(most):
        done = [peer.work() for peer in peers]
        if not any(done):
            return total
        total += done[0]
    raise AssertionError("the room never comes to rest")


def pass_time(room: Room, clock: Clock, seconds: float, alive: Sequence[FakePeer] = ()) -> None:
    """Let time pass as it does in a room that runs; peers that are `alive` give signs of life."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(clock.now + 0.5, end)
        for peer in alive:
            peer.beat()
        room.tick()


def open_room(
    *, layers: int = 4, clock: Clock | None = None, shape_options: dict | None = None, **config: object
) -> Room:
    """Of one chain, unless told otherwise."""
    made = model(layers, **(shape_options or {}))
    return Room(RoomConfig(model="/model", **{"chains": 1, **config}), made, "ABC234", MACHINE, clock=clock or Clock())


def ready_room(
    peers: int = 2, *, memory: int = 1 << 30, straight: bool = False, **options: object
) -> tuple[Room, list[FakePeer]]:
    """A room whose chain runs over `peers` peers, of which the last one reaches the first `straight` or not."""
    room = open_room(devices=peers, **options)
    made = [FakePeer(room, f"p{number}", memory=memory) for number in range(peers)]
    for peer in made:
        peer.load()
    if straight:
        close_loop(made)
    assert room.not_ready is None
    return room, made


def close_loop(peers: Sequence[FakePeer]) -> None:
    """From now on the last of a chain's peers gives the first one what it draws."""
    peers[-1].first = peers[0]
    peers[-1].measured(10**9, direct=True)


def ask(room: Room, prompt: int | Sequence[int] = 10, max_new: int = 5, **options: object) -> Session:
    return room.submit(job(prompt, max_new, **options), CountingAnswer(max_new))


def told(session: Session) -> list[Event]:
    return list(drain(session.outbox))


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.WhichOneof("event") for event in events]


def states(room: Room) -> dict[str, str]:
    """Of the peers, by name."""
    return {peer.name: peer.state for peer in room.peers()}


def text(events: Iterable[Event]) -> list[int]:
    return [int(word) for event in events for word in event.text.text.split()]
