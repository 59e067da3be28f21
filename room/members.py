"""The peers of a room: who is here, in which state, and when one counts as lost. Free of I/O: time comes in."""

import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median
from typing import Literal

from protos import peer_pb2, room_pb2
from protos.lanes import LANES, Lane
from protos.masks import MaskBook
from protos.outbox import Outbox
from room.deal import UNMEASURED, Offer
from room.forms import Forms
from room.outlook import Prospect
from room.store import KeptPlace

SUSPECT_AFTER, LOST_AFTER = 2.0, 10.0
"""Seconds without a word after which nothing new goes through a peer, and after which it is lost."""

BUSY_PATIENCE = 6.0
"""How many times longer while it loads or is in a long step: reading gigabytes can hold up its heartbeats."""

LONG_STEP = 1.0
"""Seconds on one frame from which a step counts as long."""

_MEASURED = 32
"""Latest measurements of a peer that count."""

MOST_KNOWN = 256
"""Former peers whose name and place are kept for them."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class State(StrEnum):
    """What a peer is to the room, in the words shown to people."""

    JOINING = "joining"  # here, with no slice dealt to it
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # could not load what it was dealt, or returned what is wrong
    SUSPECT = "suspect"  # silent: nothing new goes through it
    DRAINING = "draining"  # hands its layers over, since it leaves or the host paused it
    PAUSED = "paused"  # here, and dealt nothing until the host says so
    LOST = "lost"  # silent for too long, or its stream broke


Task = Literal[State.JOINING, State.LOADING, State.READY, State.FAILED]
"""How far a peer is with what it was dealt."""


Span = tuple[int, int]
"""Layers [start, end)."""


@dataclass(eq=False)
class Place:
    """What a peer has in a room beyond its membership: it is kept for the peer's return."""

    name: str
    rank: int
    """Of its first arrival."""
    paused: bool = False
    """The host wants it dealt nothing."""
    removed: bool = False
    """The host wants it out, or it returned too much that was wrong."""
    faults: int = 0
    """Frames it could not compute or returned wrong, unless their requests were to blame."""
    withheld: int = 0
    """Bytes of what it lends that are not counted on, since its device ran out of memory over a frame."""
    agreed: int = 0
    """Audits in which another holder of its layers got the same."""
    differed: int = 0
    aside: bool = False
    """After a fault: dealt nothing as long as others hold the model."""
    own: bool = False
    """It is the peer that the room's own host started."""
    layer_times: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED), repr=False)
    """Seconds a layer that frames of one row took lately, or one that was tried out when it loaded."""
    round_trips: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED), repr=False)
    """Seconds that heartbeats took lately, there and back."""

    def took(self, layer_seconds: float) -> None:
        """One token took so long through a layer; 0: not measured."""
        if layer_seconds:
            self.layer_times.append(layer_seconds)

    @property
    def layer_seconds(self) -> float | None:
        return median(self.layer_times) if self.layer_times else None

    @property
    def hop_seconds(self) -> float:
        """One way, without what was waited for a processor."""
        return min(self.round_trips, default=0.0) / 2


@dataclass(eq=False)
class Member:
    """One peer's membership, from its Hello to the end of its Join stream."""

    hello: room_pb2.Hello
    place: Place
    heard_at: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    share_token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    """What other peers present that read weights from it."""
    task: Task = State.JOINING
    why: str = ""
    """Why it failed."""
    outbox: Outbox[room_pb2.ToMember] = field(default_factory=Outbox, repr=False)
    lanes: dict[Lane, Outbox[peer_pb2.ToPeer]] = field(
        default_factory=lambda: {lane: Outbox() for lane in LANES}, repr=False
    )
    opened: set[Lane] = field(default_factory=set, repr=False)
    """Lanes that it has opened, each once."""
    masks: dict[Lane, MaskBook] = field(default_factory=lambda: {lane: MaskBook() for lane in LANES}, repr=False)
    """What it has been sent, by lane."""
    loaded: float = 0.0
    progress: room_pb2.LoadProgress = field(default_factory=room_pb2.LoadProgress, repr=False)
    """How far it said last that it is with loading."""
    link: room_pb2.LinkState | None = None
    """The way from it to the peer after it; None: not known yet, or there is none."""
    weight_bytes: int = 0
    pages: int = 0
    """It has room for, beside its slice."""
    position_limit: int = 0
    """Of its slice; 0: none."""
    kept: bool = False
    """Its pages are still those of the deal before."""
    rss: int = 0
    step_seconds: float = 0.0
    """How long it had been at one frame when it last told."""
    held: Span | None = None
    """The slice it has loaded, also while it is dealt none."""
    preparing: Span | None = None
    """The slice it was told to load ahead of a deal."""
    leaving: bool = False
    """It asked to leave."""
    resting: bool = False
    """Its volunteer wants it dealt nothing."""
    proven: bool = True
    """Whether its libraries are known to compute as the room's do (room/versions.py)."""
    prospect: Prospect | None = field(default=None, repr=False)
    """What it would change as a part of a chain, as a spare that has loaded a slice."""
    tested: bool = False
    """Whether it was asked to compute the test frame."""
    test: tuple[float, ...] | None = field(default=None, repr=False)
    """What it made of it."""
    _presence: State | None = None  # SUSPECT, LOST; None: it is here

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def state(self) -> State:
        if self._presence is not None:
            return self._presence
        if self.task is State.FAILED or (self.place.aside and self.task is State.JOINING):
            return State.FAILED
        if self.stays:
            return self.task
        return State.DRAINING if self.leaving or self.task is not State.JOINING else State.PAUSED

    @property
    def stays(self) -> bool:
        """Whether it may keep what it was dealt: neither it nor the host wants it out of the chain."""
        return not (self.leaving or self.resting or self.place.paused)

    @property
    def dealable(self) -> bool:
        """Whether layers can be dealt to it."""
        return self.stays and self.proven and self._presence is None and self.task is not State.FAILED

    @property
    def serves(self) -> bool:
        """Whether frames can go through it now."""
        return self._presence is None and self.task is State.READY

    @property
    def id(self) -> str:
        return self.hello.peer_id

    def offer(self, forms: Forms, layer_seconds: float) -> Offer:
        """What it lends, `layer_seconds` a layer where its own speed is not known."""
        return Offer(
            self.id,
            self.hello.memory - self.place.withheld,
            DTYPE_BYTES[self.hello.dtype],
            forms,
            self.place.layer_seconds or layer_seconds,
            self.place.hop_seconds,
        )

    def beat(self, heartbeat: room_pb2.Heartbeat, now: float) -> None:
        """Its heartbeat came."""
        self.rss, self.step_seconds = heartbeat.rss, heartbeat.step_seconds
        if heartbeat.echo:
            self.place.round_trips.append(max(now - heartbeat.echo - heartbeat.since, 0.0))

    def heard(self, now: float) -> bool:
        """It spoke. True when it had been suspect; who is lost stays so, whatever still comes from it."""
        self.heard_at = now
        if self._presence is not State.SUSPECT:
            return False
        self._presence = None
        return True

    def look(self, now: float) -> State:
        """What its silence means by now."""
        if self._presence is not State.LOST:
            silence = (now - self.heard_at) / (BUSY_PATIENCE if self._is_busy else 1.0)
            suspect = State.SUSPECT if silence > SUSPECT_AFTER else None
            self._presence = State.LOST if silence > LOST_AFTER else suspect
        return self.state

    @property
    def _is_busy(self) -> bool:
        return self.task is State.LOADING or self.preparing is not None or self.step_seconds > LONG_STEP

    def lose(self) -> None:
        """It is gone: end all its streams."""
        self._presence = State.LOST
        self.close()

    def close(self) -> None:
        """End all its streams."""
        self.outbox.close()
        for lane in self.lanes.values():
            lane.close()


class Roster:
    """All members by peer id and by token. A peer seen twice is one peer: the newer membership replaces the older."""

    def __init__(self, machine: str, kept: Iterable[KeptPlace] = ()) -> None:
        self._machine = machine
        self._members: dict[str, Member] = {}
        self._places = OrderedDict((each.peer, Place(each.name, each.rank, each.paused, each.removed)) for each in kept)
        """Of all that are or were here."""
        self._arrivals = max((place.rank for place in self._places.values()), default=0)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        return isinstance(member, Member) and self._members.get(member.id) is member

    def get(self, peer: str) -> Member | None:
        return self._members.get(peer)

    def by_token(self, token: str) -> Member | None:
        return next((member for member in self if secrets.compare_digest(member.token, token)), None)

    def by_share_token(self, token: str) -> Member | None:
        return next((member for member in self if secrets.compare_digest(member.share_token, token)), None)

    def place_of(self, peer: str) -> Place | None:
        """By the peer's id."""
        return self._places.get(peer)

    def place_named(self, name: str) -> Place | None:
        return next((place for place in self._places.values() if place.name == name), None)

    @property
    def misses_some(self) -> bool:
        """Whether peers that were here are not any more."""
        return any(peer not in self._members for peer in self._places)

    @property
    def removed(self) -> list[Place]:
        """Whom the host put out."""
        return [place for place in self._places.values() if place.removed]

    @property
    def kept(self) -> tuple[KeptPlace, ...]:
        """All places, for another run of this room."""
        places = self._places.items()
        return tuple(KeptPlace(peer, place.name, place.rank, place.paused, place.removed) for peer, place in places)

    def add(self, hello: room_pb2.Hello, now: float) -> Member:
        """A new member; a peer that was here before takes back its place."""
        place = self._places.get(hello.peer_id) or self._new_place(hello)
        member = Member(hello, place, now)
        self._members[member.id] = member
        return member

    def remove(self, member: Member) -> None:
        """Its place is kept for it."""
        if member in self:
            del self._members[member.id]
            self._places.move_to_end(member.id)
            absent = [peer for peer in self._places if peer not in self._members]
            for peer in absent[: max(0, len(absent) - MOST_KNOWN)]:
                del self._places[peer]

    def candidates(self, *, aside: bool = False) -> list[Member]:
        """Who can be dealt layers: the host's own peers first (the room's first hop is then local), then by arrival."""
        willing = (member for member in self if member.dealable and (aside or not member.place.aside))
        return sorted(willing, key=lambda each: (each.hello.machine != self._machine, each.place.rank))

    def offers(self, members: Iterable[Member], forms: Forms) -> list[Offer]:
        """What they lend. Who was never measured is taken to be as quick as the others here are on average."""
        known = [seconds for member in self if (seconds := member.place.layer_seconds)]
        return [member.offer(forms, fmean(known) if known else UNMEASURED) for member in members]

    def _new_place(self, hello: room_pb2.Hello) -> Place:
        self._arrivals += 1
        place = self._places[hello.peer_id] = Place(self._free_name(hello.name or "peer"), self._arrivals)
        return place

    def _free_name(self, wanted: str) -> str:
        """The name it asks for, with a number behind it when another peer has it."""
        taken = {place.name for place in self._places.values()}
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}-{number}"
        return name
