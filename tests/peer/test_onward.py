import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from peer import bandwidth, link, onward
from peer.inward import Inward
from peer.link import LinkService
from peer.onward import Onward
from peer.pacing import Pacer
from protos import peer_pb2, peer_pb2_grpc, room_pb2
from protos.certificate import Certificate
from protos.lanes import DECODE
from protos.serving import new_server
from tests.one_loop import anyio_backend, one_loop  # noqa: F401
from tests.proxy import SlowLink

pytestmark = pytest.mark.anyio

CERTIFICATE = Certificate.made()
RETRY = onward.RETRY
GUARD = 60.0
"""Seconds after which what has not come never will."""


class Hop:
    """Two neighbours: a way through a link that can be made bad, and one through a room in this process."""

    def __init__(self, relay_delay: float = 0.0) -> None:
        self.relay_delay = relay_delay
        self.relayed = 0
        self.came: list[int] = []
        self.states: asyncio.Queue[room_pb2.LinkState] = asyncio.Queue()
        self._inward = Inward()
        self._inward.begin(1)
        self._hop = 0
        self._whole = asyncio.Event()

    async def direct(self, is_direct: bool) -> room_pb2.LinkState:
        """Wait until frames go that way."""
        async with asyncio.timeout(GUARD):
            while (state := await self.states.get()).direct is not is_direct:
                pass
        return state

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self._hop += 1
            self._whole.clear()
            self.onward.send(peer_pb2.Frame(epoch=1, step=self._hop, lane=DECODE))

    async def all_came(self) -> None:
        async with asyncio.timeout(GUARD):
            await self._whole.wait()
        await asyncio.sleep(0.05)
        assert self.came == list(range(1, self._hop + 1))

    def relay(self, frame: peer_pb2.Frame) -> None:
        self.relayed += 1
        asyncio.get_running_loop().call_later(self.relay_delay, self._from_room, frame)

    def _from_room(self, frame: peer_pb2.Frame) -> None:
        reply = self.take(frame)
        if reply.probe:
            asyncio.get_running_loop().call_later(self.relay_delay, self.onward.replied, reply)

    def take(self, frame: peer_pb2.Frame) -> peer_pb2.LinkReply:
        if frame.probe.number:
            return peer_pb2.LinkReply(epoch=1, lane=frame.lane, probe=frame.probe.number)
        self.came += [each.step for each in self._inward.take(frame)]
        if len(self.came) >= self._hop:
            self._whole.set()
        return peer_pb2.LinkReply(epoch=1, lane=frame.lane, hop=self._inward.came(frame.lane))

    @asynccontextmanager
    async def running(self, delay: float = 0.0) -> AsyncIterator[SlowLink]:
        server = new_server()
        service = LinkService(self.take)
        await service.expect("token")
        peer_pb2_grpc.add_PeerServicer_to_server(service, server)
        port = server.add_secure_port("127.0.0.1:0", CERTIFICATE.server_credentials())
        await server.start()
        with SlowLink(port, delay=delay) as slow:
            assignment = room_pb2.Assignment(
                epoch=1,
                # The first one leads nowhere.
                next_addresses=["127.0.0.1:9", f"127.0.0.1:{slow.port}"],
                next_token="token",
                next_certificate=CERTIFICATE.der,
            )
            self.onward = Onward(assignment, Pacer(), self.relay, self.states.put_nowait)
            running = asyncio.create_task(self.onward.run())
            try:
                yield slow
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await server.stop(0)


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onward, "RETRY", 0.2)
    monkeypatch.setattr(onward, "SILENCE", GUARD)


async def test_frames_go_straight_where_that_works() -> None:
    hop = Hop(relay_delay=0.1)
    async with hop.running():
        state = await hop.direct(True)
        assert state.round_trip > 0
        assert hop.onward.settled.is_set()
        before = hop.relayed
        hop.send(50)
        await hop.all_came()
        assert hop.relayed == before


@pytest.mark.parametrize("how", ["cut", "hole"])
async def test_the_way_changes_over_under_running_frames(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, nothing comes twice or out of order: first by the broken way, then the room, then straight."""
    hop = Hop(relay_delay=0.1)
    if how == "hole":
        monkeypatch.setattr(onward, "SILENCE", 0.3)
    async with hop.running() as slow:
        hop.send(10)
        await hop.direct(True)
        hop.send(10)
        if how == "hole":
            slow.hole = True
        else:
            slow.cut()
        hop.send(10)
        await hop.direct(False)
        hop.send(10)
        await hop.all_came()
        slow.hole = False
        slow.cut()
        await hop.direct(True)
        hop.send(10)
        await hop.all_came()


async def test_the_room_is_used_where_the_straight_way_is_slower() -> None:
    hop = Hop()
    async with hop.running(delay=0.1):
        state = await hop.direct(False)
        assert state.round_trip < 0.2  # which the straight way cannot have
        hop.send(5)
        await hop.all_came()
        assert hop.onward._link is None


@asynccontextmanager
async def unreachable(hop: Hop) -> AsyncIterator[None]:
    """The next peer has no address."""
    hop.onward = Onward(room_pb2.Assignment(epoch=1), Pacer(), hop.relay, hop.states.put_nowait)
    running = asyncio.create_task(hop.onward.run())
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_an_address_the_room_relays() -> None:
    hop = Hop()
    async with unreachable(hop):
        assert (await hop.direct(False)).bytes_per_second > 0
        hop.send(3)
        await hop.all_came()


async def test_a_way_that_could_not_be_measured_at_first_is_told_of_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hop = Hop(relay_delay=0.2)
    monkeypatch.setattr(bandwidth, "PATIENCE", 0.1)
    async with unreachable(hop):
        await hop.onward.settled.wait()
        assert hop.states.empty()
        hop.relay_delay = 0.0
        monkeypatch.setattr(bandwidth, "PATIENCE", 60.0)
        assert (await hop.direct(False)).bytes_per_second > 0


def test_a_way_that_opens_is_used_within_30_s() -> None:
    """Also where it opens just after a try that comes to nothing has begun."""
    tried, measured = link.LINK_PATIENCE, bandwidth.PATIENCE
    assert tried + RETRY + tried + measured <= 30
