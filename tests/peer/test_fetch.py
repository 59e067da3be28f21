"""Fetching from several places: who is asked for what, and what happens when one breaks off or lies."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import DiskFailed, SourceFailed, WeightsMissing
from peer.fetch import TRIES, fetch
from peer.sources import Wanted
from protos.manifest import BLOCK, Piece, digest

pytestmark = pytest.mark.anyio

CONTENTS = [bytes([number]) * (1000 + number) for number in range(40)]
WANTED = [
    Wanted(Piece(digest(content), 2000 * number, len(content)), "model.safetensors")
    for number, content in enumerate(CONTENTS)
]


@dataclass
class FakeSource:
    name: str
    tier: int = 0
    lanes: int = 2
    has: Sequence[int] = tuple(range(len(CONTENTS)))
    lies_at: int = -1
    """The piece it sends wrong."""
    breaks_after: int = 1 << 60
    """Pieces it sends before it breaks off, each time it is asked."""
    absent: bool = False
    sent: list[int] = field(default_factory=list)

    async def have(self, wanted: Sequence[Wanted]) -> list[bool]:
        if self.absent:
            raise SourceFailed(f"{self.name}: nobody answers")
        return [WANTED.index(each) in self.has for each in wanted]

    async def read(self, wanted: Sequence[Wanted]) -> AsyncGenerator[tuple[int, bytes], None]:
        for place, each in enumerate(wanted):
            number = WANTED.index(each)
            assert number in self.has, "it was asked for what it does not have"
            if place == self.breaks_after:
                raise SourceFailed(f"{self.name} broke off")
            content = bytearray(CONTENTS[number])
            if number == self.lies_at:
                content[-1] ^= 1
            for start in range(0, len(content), 600):
                await asyncio.sleep(0)
                yield place, bytes(content[start : start + 600])
            self.sent.append(number)


@dataclass
class Taken:
    got: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, wanted: Wanted, data: bytes) -> bool:
        if digest(data) != wanted.piece.sha256:
            return False
        self.got[wanted.piece.sha256] = data
        return True

    @property
    def all(self) -> bool:
        return self.got == {digest(content): content for content in CONTENTS}


def nothing(count: int) -> None: ...


async def test_what_one_place_has_comes_from_it() -> None:
    taken, counted = Taken(), []
    fetched = await fetch(WANTED, [FakeSource("room")], taken, counted.append)
    assert taken.all
    assert sum(counted) == fetched.by_source["room"] == sum(map(len, CONTENTS))


async def test_peers_go_before_the_room_and_share_what_they_have() -> None:
    a, b, room = FakeSource("a", has=range(30)), FakeSource("b", has=range(10, 30)), FakeSource("room", tier=1)
    taken = Taken()
    fetched = await fetch(WANTED, [room, a, b], taken, nothing)
    assert taken.all
    assert sorted(room.sent) == list(range(30, 40)), "only what no peer has"
    assert fetched.by_source["b"] > 0
    assert abs(fetched.by_source["a"] - fetched.by_source["b"]) < 12_000


async def test_one_that_sends_a_wrong_byte_is_asked_no_more_and_named() -> None:
    liar, room, taken = FakeSource("liar", lies_at=7, lanes=1), FakeSource("room", tier=1), Taken()
    fetched = await fetch(WANTED, [liar, room], taken, nothing)
    assert taken.all
    assert fetched.liars == ["liar"]
    assert 7 in room.sent


async def test_when_all_lie_it_is_refused_and_they_are_named() -> None:
    sources = [FakeSource("attic", lies_at=7), FakeSource("the room", tier=1, lies_at=7)]
    with pytest.raises(WeightsMissing, match=r"attic sent wrong bytes of model.safetensors; the room sent wrong"):
        await fetch(WANTED, sources, Taken(), nothing)


async def test_one_that_breaks_off_is_tried_again_and_then_left() -> None:
    weak, room, taken = FakeSource("weak", lanes=1, breaks_after=3), FakeSource("room", tier=1), Taken()
    await fetch(WANTED, [weak, room], taken, nothing)
    assert taken.all
    assert len(weak.sent) == TRIES * 3


async def test_one_that_does_not_answer_is_not_needed() -> None:
    taken = Taken()
    await fetch(WANTED, [FakeSource("gone", absent=True), FakeSource("room", tier=1)], taken, nothing)
    assert taken.all


async def test_what_nobody_has_is_told() -> None:
    with pytest.raises(WeightsMissing, match=r"nobody has the right bytes of .* \(gone: nobody answers"):
        await fetch(WANTED, [FakeSource("gone", absent=True), FakeSource("room", has=range(39))], Taken(), nothing)


class Babbler(FakeSource):
    async def read(self, wanted: Sequence[Wanted]) -> AsyncGenerator[tuple[int, bytes], None]:
        while True:
            yield 0, bytes(BLOCK)


class Shuffler(FakeSource):
    async def read(self, wanted: Sequence[Wanted]) -> AsyncGenerator[tuple[int, bytes], None]:
        yield len(wanted) + 5, b"x"


@pytest.mark.parametrize("kind", [Babbler, Shuffler])
async def test_more_than_was_asked_for_is_not_kept_in_memory(kind: type[FakeSource]) -> None:
    taken = Taken()
    fetched = await fetch(WANTED, [kind("odd"), FakeSource("room", tier=1)], taken, nothing)
    assert taken.all
    assert "odd" in fetched.liars


async def test_a_disk_that_is_full_ends_it_at_once() -> None:
    def full(wanted: Wanted, data: bytes) -> bool:
        raise DiskFailed("full")

    before = asyncio.all_tasks()
    with pytest.raises(DiskFailed):
        await fetch(WANTED, [FakeSource("room"), FakeSource("other")], full, nothing)
    assert asyncio.all_tasks() == before, "readers are left behind"


@given(data=st.data())
def test_as_long_as_somebody_honest_has_each_piece_all_come(data: st.DataObject) -> None:
    numbers = st.integers(0, len(CONTENTS) - 1)
    sources = [
        FakeSource(
            f"s{at}",
            tier=data.draw(st.integers(0, 2)),
            lanes=data.draw(st.integers(1, 3)),
            has=sorted(data.draw(st.sets(numbers))),
            lies_at=data.draw(st.one_of(st.just(-1), numbers)),
            breaks_after=data.draw(st.integers(0, 5)),
            absent=data.draw(st.booleans()),
        )
        for at in range(data.draw(st.integers(0, 4)))
    ]
    honest = FakeSource("honest", tier=data.draw(st.integers(0, 2)))
    taken = Taken()
    asyncio.run(fetch(WANTED, [*sources, honest], taken, nothing))
    assert taken.all
