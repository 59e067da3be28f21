import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc
import pytest

from peer import link
from peer.config import PeerConfig
from peer.errors import InvalidOption, PortTaken
from peer.link import LinkService, NextPeer
from protos import dial, peer_pb2, peer_pb2_grpc, room_pb2
from protos.certificate import Certificate
from protos.lanes import LANES

pytestmark = pytest.mark.anyio

CERTIFICATE = Certificate.made()


@asynccontextmanager
async def listening(take) -> AsyncIterator[tuple[LinkService, str]]:
    service = LinkService(take)
    server = grpc.aio.server(options=dial.SERVER_OPTIONS)
    peer_pb2_grpc.add_PeerServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', CERTIFICATE.server_credentials())}"
    await server.start()
    try:
        yield service, address
    finally:
        await server.stop(0)


def towards(address: str, token: str) -> room_pb2.Assignment:
    return room_pb2.Assignment(next_address=address, next_token=token, next_certificate=CERTIFICATE.der)


async def test_frames_reach_the_next_peer_lane_by_lane_in_order() -> None:
    got: asyncio.Queue[peer_pb2.Frame] = asyncio.Queue()
    async with listening(got.put_nowait) as (service, address):
        await service.expect("secret")
        following = await NextPeer.dial(towards(address, "secret"), lambda: None)
        assert following is not None
        for step in range(20):
            following.send(peer_pb2.Frame(step=step, lane=LANES[step % 2]))
        frames = [await asyncio.wait_for(got.get(), 10) for _ in range(20)]
        for lane in LANES:
            steps = [frame.step for frame in frames if frame.lane == lane]
            assert steps == sorted(steps)
            assert len(steps) == 10
        await following.close()


async def test_the_token_may_be_told_to_either_end_first() -> None:
    got: asyncio.Queue[peer_pb2.Frame] = asyncio.Queue()
    async with listening(got.put_nowait) as (service, address):
        following = await NextPeer.dial(towards(address, "late"), lambda: None)
        assert following is not None
        following.send(peer_pb2.Frame(step=1, lane=LANES[0]))
        await asyncio.sleep(0.05)
        assert got.empty()
        await service.expect("late")
        assert (await asyncio.wait_for(got.get(), 10)).step == 1
        await following.close()


async def test_a_caller_without_the_token_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.1)
    got: list[peer_pb2.Frame] = []
    broken = asyncio.Event()
    async with listening(got.append) as (service, address):
        await service.expect("secret")
        following = await NextPeer.dial(towards(address, "guess"), broken.set)
        assert following is not None
        following.send(peer_pb2.Frame(step=1, lane=LANES[0]))
        await asyncio.wait_for(broken.wait(), 10)
        assert got == []
        await following.close()


async def test_a_token_opens_each_lane_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.5)
    got: asyncio.Queue[peer_pb2.Frame] = asyncio.Queue()
    broken: asyncio.Queue[None] = asyncio.Queue()
    async with listening(got.put_nowait) as (service, address):
        await service.expect("secret")
        following = await NextPeer.dial(towards(address, "secret"), lambda: None)
        assert following is not None
        for lane in LANES:
            following.send(peer_pb2.Frame(step=1, lane=lane))
            assert (await asyncio.wait_for(got.get(), 10)).lane == lane
        second = await NextPeer.dial(towards(address, "secret"), lambda: broken.put_nowait(None))
        assert second is not None
        second.send(peer_pb2.Frame(step=2, lane=LANES[0]))
        for _ in LANES:
            await asyncio.wait_for(broken.get(), 10)
        assert got.empty()
        await second.close()
        await following.close()


async def test_a_peer_with_another_certificate_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.5)
    async with listening(lambda frame: None) as (_, address):
        assignment = towards(address, "secret")
        assignment.next_certificate = Certificate.made().der
        assert await NextPeer.dial(assignment, lambda: None) is None


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINK_PATIENCE", 0.1)
    async with listening(lambda frame: None) as (_, address):
        pass
    assert await NextPeer.dial(towards(address, "x"), lambda: None) is None


async def test_own_address_towards_loopback_is_loopback() -> None:
    assert await link.own_address_towards("127.0.0.1", 7070) == "127.0.0.1"


def test_a_peer_listens_where_it_is_told_to_and_says_so_when_it_cannot() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(PortTaken, match="--listen"):
            link.listen_at(server, f"127.0.0.1:{taken.getsockname()[1]}", CERTIFICATE)
        assert link.listen_anywhere(server, "192.0.2.1", CERTIFICATE) == ""  # an address of nobody: the room relays
    address = link.listen_at(server, "127.0.0.1:0", CERTIFICATE)
    assert address == f"127.0.0.1:{address.rpartition(':')[2]}" != "127.0.0.1:0"
    server.stop(0)


def test_an_advertised_address_leads_to_one_that_is_named() -> None:
    with pytest.raises(InvalidOption, match="--listen"):
        PeerConfig(advertise="home.example:7071")
