"""The peers of a room: who is here, in which state, and when one counts as lost. Free of I/O: time comes in."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from protos import peer_pb2, room_pb2
from protos.lanes import LANES, Lane
from protos.masks import MaskBook
from protos.outbox import Outbox
from room.deal import Offer

LOST_AFTER = 10.0
"""Seconds without a word after which a peer is lost."""

LOST_AFTER_LOADING = 60.0
"""The same while it loads: reading gigabytes can hold up its heartbeats."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class State(StrEnum):
    JOINED = "joined"  # here, with no slice dealt to it
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # could not load what it was dealt


@dataclass(eq=False)
class Member:
    """One peer's membership, from its Hello to the end of its Join stream."""

    hello: room_pb2.Hello
    name: str
    heard_at: float
    joined_at: int
    """Rank of arrival."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)
    state: State = State.JOINED
    why: str = ""
    """Why it failed."""
    outbox: Outbox[room_pb2.ToMember] = field(default_factory=Outbox, repr=False)
    lanes: dict[Lane, Outbox[peer_pb2.ToPeer]] = field(
        default_factory=lambda: {lane: Outbox() for lane in LANES}, repr=False
    )
    masks: dict[Lane, MaskBook] = field(default_factory=lambda: {lane: MaskBook() for lane in LANES}, repr=False)
    """What it has been sent, by lane."""
    loaded: float = 0.0
    direct: bool = False
    weight_bytes: int = 0
    rss: int = 0

    @property
    def id(self) -> str:
        return self.hello.peer_id

    @property
    def offer(self) -> Offer:
        return Offer(self.id, self.hello.memory, DTYPE_BYTES[self.hello.dtype])

    def silent_too_long(self, now: float) -> bool:
        allowed = LOST_AFTER_LOADING if self.state is State.LOADING else LOST_AFTER
        return now - self.heard_at > allowed

    def close(self) -> None:
        """End all its streams."""
        self.outbox.close()
        for lane in self.lanes.values():
            lane.close()


class Roster:
    """All members by peer id and by token. A peer seen twice is one peer: the newer membership replaces the older."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._members: dict[str, Member] = {}
        self._arrivals = 0

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

    def add(self, hello: room_pb2.Hello, now: float) -> Member:
        self._arrivals += 1
        member = Member(hello, self._free_name(hello), now, self._arrivals)
        self._members[member.id] = member
        return member

    def remove(self, member: Member) -> None:
        if member in self:
            del self._members[member.id]

    def candidates(self) -> list[Member]:
        """Who can be dealt layers: the host's own peers first (the room's first hop is then local), then by arrival."""
        willing = (member for member in self if member.state is not State.FAILED)
        return sorted(willing, key=lambda each: (each.hello.machine != self._machine, each.joined_at))

    def _free_name(self, hello: room_pb2.Hello) -> str:
        """The name it asks for, with a number behind it when another peer has it."""
        taken = {member.name for member in self if member.id != hello.peer_id}
        wanted = hello.name or "peer"
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}-{number}"
        return name
