import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from peer import link
from peer.errors import NoLink, PortTaken
from peer.link import Link, LinkService
from peer.pacing import Pacer
from protos import peer_pb2, peer_pb2_grpc, room_pb2
from protos.certificate import Certificate
from protos.invite import Invite, is_loopback
from protos.lanes import LANES
from protos.serving import new_server
from tests.one_loop import anyio_backend, one_loop  # noqa: F401

pytestmark = pytest.mark.anyio

CERTIFICATE = Certificate.made()
ROOM = Invite("127.0.0.1", 7070, "ABC234", "k", CERTIFICATE.fingerprint)


def answered(frame: peer_pb2.Frame) -> peer_pb2.LinkReply:
    return peer_pb2.LinkReply(epoch=frame.epoch, lane=frame.lane, probe=frame.probe.number)


@asynccontextmanager
async def listening(take=answered) -> AsyncIterator[tuple[LinkService, str]]:
    service = LinkService(take)
    server = new_server()
    peer_pb2_grpc.add_PeerServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', CERTIFICATE.server_credentials())}"
    await server.start()
    try:
        yield service, address
    finally:
        await server.stop(0)


def towards(token: str) -> room_pb2.Assignment:
    return room_pb2.Assignment(epoch=1, next_token=token, next_certificate=CERTIFICATE.der)


async def test_frames_reach_the_next_peer_lane_by_lane_in_order_and_are_answered() -> None:
    got: list[peer_pb2.Frame] = []
    replies: asyncio.Queue[peer_pb2.LinkReply] = asyncio.Queue()

    def take(frame: peer_pb2.Frame) -> peer_pb2.LinkReply:
        if not frame.probe.number:
            got.append(frame)
        return peer_pb2.LinkReply(lane=frame.lane, hop=frame.hop, probe=frame.probe.number)

    async with listening(take) as (service, address):
        await service.expect("secret")
        following = await Link.open(address, towards("secret"), 1, Pacer(), replies.put_nowait)
        for hop in range(1, 21):
            following.send(peer_pb2.Frame(hop=hop, lane=LANES[hop % 2]))
        said = [await asyncio.wait_for(replies.get(), 60) for _ in range(20)]
        for lane in LANES:
            assert [frame.hop for frame in got if frame.lane == lane] == [
                reply.hop for reply in said if reply.lane == lane
            ]
            assert len({frame.hop for frame in got if frame.lane == lane}) == 10
        await following.close()


async def test_the_token_may_be_told_to_either_end_first() -> None:
    async with listening() as (service, address):
        opening = asyncio.create_task(Link.open(address, towards("late"), 1, Pacer(), lambda reply: None))
        await asyncio.sleep(0.1)
        assert not opening.done()
        await service.expect("late")
        await (await opening).close()


async def test_a_caller_without_the_token_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.3)
    got: list[peer_pb2.Frame] = []
    async with listening(got.append) as (service, address):
        await service.expect("secret")
        with pytest.raises(NoLink):
            await Link.open(address, towards("guess"), 1, Pacer(), lambda reply: None)
        assert got == []


async def test_a_ticket_opens_each_lane_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same peer comes again with the next one, also while it does not know that its first stream is still open."""
    async with listening() as (service, address):
        await service.expect("secret")
        first = await Link.open(address, towards("secret"), 2, Pacer(), lambda reply: None)
        with monkeypatch.context() as hurried:
            hurried.setattr(link, "LINK_PATIENCE", 0.3)
            for overheard in (1, 2):
                with pytest.raises(NoLink):
                    await Link.open(address, towards("secret"), overheard, Pacer(), lambda reply: None)
        second = await Link.open(address, towards("secret"), 3, Pacer(), lambda reply: None)
        assert not first.ended.is_set()
        await second.close()
        await first.close()


async def test_a_lane_has_few_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.5)
    async with listening() as (service, address):
        await service.expect("secret")
        attempts = range(1, link.MOST_STREAMS + 1)
        links = [
            await Link.open(address, towards("secret"), number, Pacer(), lambda reply: None) for number in attempts
        ]
        with pytest.raises(NoLink):
            await Link.open(address, towards("secret"), 10, Pacer(), lambda reply: None)
        for each in links:
            await each.close()
        monkeypatch.setattr(link, "LINK_PATIENCE", 10.0)
        await (await Link.open(address, towards("secret"), 11, Pacer(), lambda reply: None)).close()


@pytest.mark.parametrize("presented", ["", ".", "1", "1.", "9" * 5000 + ".x", "-1.x", "\u0661.x".encode().hex()])
async def test_what_is_no_ticket(monkeypatch: pytest.MonkeyPatch, presented: str) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.3)
    monkeypatch.setattr(link, "ticket", lambda *_: presented)
    async with listening() as (_, address):
        with pytest.raises(NoLink):
            await Link.open(address, towards("secret"), 1, Pacer(), lambda reply: None)


async def test_a_frame_of_another_lane_ends_the_stream() -> None:
    async with listening() as (service, address):
        await service.expect("secret")
        following = await Link.open(address, towards("secret"), 1, Pacer(), lambda reply: None)
        following._lanes[LANES[0]].put(peer_pb2.Frame(lane=LANES[1], hop=1))
        await asyncio.wait_for(following.ended.wait(), 60)
        await following.close()


async def test_a_peer_with_another_certificate_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.5)
    async with listening() as (_, address):
        assignment = towards("secret")
        assignment.next_certificate = Certificate.made().der
        with pytest.raises(NoLink):
            await Link.open(address, assignment, 1, Pacer(), lambda reply: None)


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.1)
    async with listening() as (_, address):
        pass
    with pytest.raises(NoLink):
        await Link.open(address, towards("x"), 1, Pacer(), lambda reply: None)


async def test_towards_a_room_on_loopback_nothing_but_loopback_is_told() -> None:
    assert await link.own_addresses(ROOM) == ["127.0.0.1"]


async def test_through_a_tunnel_no_loopback_is_told() -> None:
    """It is this end of the tunnel's, and means nothing to others."""
    own = await link.own_addresses(replace(ROOM, by_way_of="wss://room.example/"))
    assert not any(is_loopback(address) or "%" in address for address in own)
    assert len(own) <= link.MOST_ADDRESSES


def test_a_peer_listens_where_it_is_told_to_and_says_so_when_it_cannot() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(PortTaken, match="--listen"):
            link.listen_at(server, f"127.0.0.1:{taken.getsockname()[1]}", CERTIFICATE)
        assert link.listen_anywhere(server, ["192.0.2.1"], CERTIFICATE) == []  # an address of nobody: the room relays
    shared = link.listen_anywhere(server, ["127.0.0.1", "::1"], CERTIFICATE)
    assert {address.rpartition(":")[0] for address in shared} == {"127.0.0.1", "[::1]"}
    assert len({address.rpartition(":")[2] for address in shared}) == 1
    address = link.listen_at(server, "127.0.0.1:0", CERTIFICATE)
    assert address == f"127.0.0.1:{address.rpartition(':')[2]}" != "127.0.0.1:0"
    server.stop(0)
