"""Weights of peers that others do not reach, through a room that has none: checked like any others, and bounded."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from peer.errors import WeightsMissing
from peer.giving import give
from peer.pacing import Pacer
from peer.progress import LoadReport
from peer.sources import Way
from protos import dial, room_pb2, weights_pb2
from protos.contents import PART, Locate, Place
from protos.room_pb2_grpc import RoomStub
from protos.weights_pb2_grpc import WeightsStub
from room import relay
from room.invites import PEERS
from tests.attacks.rig import VERSION, Guarded, Joining, eventually, guarded, refusal
from tests.peer.sites import Pinned, flip, supply
from tests.room.fakes import open_room

pytestmark = pytest.mark.anyio


@dataclass
class Peer:
    """A member that nobody can dial."""

    joining: Joining
    way: Way
    share_token: str


async def member(room: Guarded) -> Peer:
    joining = Joining(await room.stub(), room[PEERS])
    welcome = (await joining.enter()).welcome
    metadata = (*dial.credentials(room[PEERS], VERSION, joining.identity.id), (dial.MEMBER, welcome.token))
    way = Way(room.invite.address, await dial.pinned(room.invite), metadata)
    return Peer(joining, way, welcome.share_token)


async def errand_of(peer: Peer) -> int:
    """The number of the next thing that it is asked to give."""
    while not (said := await peer.joining.hear()).HasField("errand"):
        pass
    return said.errand.number


@asynccontextmanager
async def holder(room: Guarded, locate: Locate, pacer: Pacer | None = None) -> AsyncIterator[Peer]:
    """A peer that gives what `locate` knows as often as the room asks."""
    peer = await member(room)
    found = room.room.roster.get(peer.joining.identity.id)
    assert found is not None
    found.held = (0, 4)
    errands = []

    async def serve() -> None:
        while True:
            errands.append(asyncio.create_task(give(peer.way, await errand_of(peer), locate, pace)))

    pace = (pacer or Pacer()).paced_last
    serving = asyncio.create_task(serve())
    try:
        yield peer
    finally:
        for task in (serving, *errands):
            task.cancel()
        await asyncio.gather(serving, *errands, return_exceptions=True)


def small(model: Pinned) -> Locate:
    """What a room has whose model is on the hub only."""
    known = {model.name, *(text.sha256 for text in model.manifest.texts)}
    return lambda sha256: model.contents.locate(sha256) if sha256 in known else None


def spoilt(model: Pinned) -> Locate:
    def locate(sha256: str) -> bytes | None:
        place = model.contents.locate(sha256)
        if not isinstance(place, Place):
            return place
        with place.path.open("rb") as file:
            file.seek(place.offset)
            return flip(file.read(place.size))

    return locate


async def obtained(model: Pinned, way: Way, folder: Path) -> Counter[str]:
    with closing(supply(folder, model.room())) as mine:
        mine.way = way
        await mine.obtain(model.name, 0, 4, LoadReport())
        return mine.fetched


async def test_a_room_without_the_weights_passes_on_those_of_a_peer(model: Pinned, tmp_path: Path) -> None:
    async with guarded(open_room(), locate=small(model)) as room, holder(room, model.contents.locate):
        fetched = await obtained(model, (await member(room)).way, tmp_path)
    assert fetched["attacker through the room"] > 0.9 * model.size


async def test_who_sends_wrong_bytes_through_the_room_is_dropped_and_named(model: Pinned, tmp_path: Path) -> None:
    async with guarded(open_room(), locate=small(model)) as room, holder(room, spoilt(model)):
        taker = (await member(room)).way
        with pytest.raises(WeightsMissing, match="attacker through the room sent wrong bytes"):
            await obtained(model, taker, tmp_path / "alone")
        async with holder(room, model.contents.locate):
            fetched = await obtained(model, taker, tmp_path / "two")
    assert fetched["attacker-3 through the room"] > 0.5 * model.size


async def test_what_is_given_through_the_room_counts_as_sent(model: Pinned, tmp_path: Path) -> None:
    pacer = Pacer(1 << 40)
    counted = Counter[str]()
    pacer.delay = lambda size, now: counted.update(sent=size) or 0.0  # type: ignore[method-assign,func-returns-value]
    async with guarded(open_room(), locate=small(model)) as room, holder(room, model.contents.locate, pacer):
        fetched = await obtained(model, (await member(room)).way, tmp_path)
    assert counted["sent"] >= fetched["attacker through the room"]


async def test_strangers_and_old_tokens_are_given_nothing(model: Pinned) -> None:
    some = bytes.fromhex(model.manifest.weights[0].header.blocks[0])
    request = weights_pb2.ReadRequest(sha256=[some])
    async with (
        guarded(open_room(), locate=small(model)) as room,
        holder(room, model.contents.locate) as giver,
        await dial.open_channel(room.invite) as channel,
    ):
        token = (dial.SHARE, giver.share_token)
        stub, inside = WeightsStub(channel), (await member(room)).way.metadata
        stranger = stub.Read(request, metadata=(*dial.credentials(room[PEERS], VERSION), token))
        assert "does not know this peer" in (await refusal(stranger)).message
        made_up = stub.Read(request, metadata=(*inside, (dial.SHARE, "made up")))
        assert "does not know this peer" in (await refusal(made_up)).message
        assert isinstance(await stub.Read(request, metadata=(*inside, token)).read(), weights_pb2.Part)


class TestAPeerThatGives:
    """As it should not."""

    async def test_nothing_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(relay, "BEGUN_WITHIN", 0.1)
        async with guarded(open_room()) as room:
            giver, taker = await member(room), await member(room)
            async with dial.channel_to(taker.way.address, taker.way.certificate) as channel:
                metadata = (*taker.way.metadata, (dial.SHARE, giver.share_token))
                request = weights_pb2.HaveRequest(sha256=[b"x"])
                said = await refusal(WeightsStub(channel).Have(request, metadata=metadata))
        assert "does not give anything" in said.message

    @pytest.mark.parametrize(
        "given",
        [
            weights_pb2.Given(have=weights_pb2.HaveReply(have=[True])),
            weights_pb2.Given(part=weights_pb2.Part(data=bytes(PART + 1))),
            weights_pb2.Given(),
        ],
        ids=["another kind", "too much at once", "nothing"],
    )
    async def test_something_else_is_cut_off(self, given: weights_pb2.Given) -> None:
        async with guarded(open_room()) as room:
            giver, taker = await member(room), await member(room)
            async with dial.channel_to(taker.way.address, taker.way.certificate) as channel:
                metadata = (*taker.way.metadata, (dial.SHARE, giver.share_token))
                read = WeightsStub(channel).Read(weights_pb2.ReadRequest(sha256=[b"x"]), metadata=metadata)
                call = await self.errand(giver, await errand_of(giver), channel)
                assert isinstance(await call.read(), weights_pb2.Asked)
                await call.write(given)
                assert "gives what it is asked for" in (await refusal(call)).message
                assert await read.read() is grpc.aio.EOF

    async def test_in_another_ones_place_is_turned_away(self) -> None:
        async with guarded(open_room()) as room:
            giver, taker = await member(room), await member(room)
            async with dial.channel_to(taker.way.address, taker.way.certificate) as channel:
                metadata = (*taker.way.metadata, (dial.SHARE, giver.share_token))
                read = WeightsStub(channel).Read(weights_pb2.ReadRequest(sha256=[b"x"]), metadata=metadata)
                asked = await errand_of(giver)
                assert "nobody waits" in (await refusal(await self.errand(taker, asked, channel))).message
                call = await self.errand(giver, asked, channel)
                assert isinstance(await call.read(), weights_pb2.Asked)
                assert "nobody waits" in (await refusal(await self.errand(giver, asked, channel))).message
                read.cancel()

    async def errand(self, peer: Peer, number: int, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
        metadata = (*peer.way.metadata, (dial.ERRAND, str(number)))
        return RoomStub(channel).Give(metadata=metadata)


async def test_a_part_goes_on_once_the_one_before_is_taken_and_seldom_while_answers_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "REST", 0.05)
    room, rests = open_room(), []
    giver = room.join(room_pb2.Hello(peer_id="p", name="attic", dtype="float32", memory=1 << 30))
    answering = False
    relaying, sent = relay.Relay(lambda: rests.append(answering) or answering), []  # type: ignore[func-returns-value]

    async def parts() -> AsyncIterator[weights_pb2.Given]:
        for number in range(20):
            sent.append(number)
            yield weights_pb2.Given(part=weights_pb2.Part(content=number))

    async def carry() -> None:
        async for _ in relaying.carry(giver, "1", parts()):
            pass

    asked = weights_pb2.Asked(read=weights_pb2.ReadRequest())
    began = asyncio.get_running_loop().time()
    async with aclosing(relaying.fetch(giver, asked)) as given:
        first = asyncio.create_task(anext(given))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        carrying = asyncio.create_task(carry())
        assert (await first).part.content == 0
        assert len(sent) <= 3, "what nobody has taken yet is not read"
        answering = True
        assert [(await anext(given)).part.content for _ in range(3)] == [1, 2, 3]
        assert asyncio.get_running_loop().time() - began >= 3 * relay.REST
    await asyncio.wait_for(carrying, 10)
    assert len(sent) < 20, "a taker that has gone ends it"
    await eventually(lambda: not relaying._errands)
