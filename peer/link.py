"""The way from one peer to the next: straight where it can be reached, through the room where not."""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from peer.errors import PortTaken, RoomLost
from protos import dial, peer_pb2, peer_pb2_grpc, room_pb2
from protos.certificate import Certificate
from protos.lanes import LANES, Lane, lane_name, lane_named
from protos.outbox import Outbox

log = logging.getLogger("pooled.peer")

LINK_PATIENCE = 5.0
"""Seconds to try the next peer's address before the room relays."""

Lanes = dict[Lane, Outbox[peer_pb2.Frame]]


class NextPeer:
    """Streams of frames to the next peer, one per lane, each on a connection of its own."""

    def __init__(self, lanes: Lanes, channels: list[grpc.aio.Channel], tasks: list["asyncio.Task[None]"]) -> None:
        self._lanes = lanes
        self._channels = channels
        self._tasks = tasks

    def send(self, frame: peer_pb2.Frame) -> None:
        self._lanes[frame.lane].put(frame)

    async def close(self) -> None:
        for outbox in self._lanes.values():
            outbox.close()  # lets gRPC's writers of these streams come to their end
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    @classmethod
    async def dial(cls, assignment: room_pb2.Assignment, broken: Callable[[], None]) -> "NextPeer | None":
        """Connect to the assignment's next peer; None when it cannot be reached.

        `broken` is called when an open stream ends, other than by `close`.
        """
        channels = [dial.channel_to(assignment.next_address, assignment.next_certificate) for _ in LANES]
        try:
            async with asyncio.timeout(LINK_PATIENCE):
                await asyncio.gather(*(channel.channel_ready() for channel in channels))
        except TimeoutError:
            for channel in channels:
                await channel.close()
            return None
        lanes: Lanes = {lane: Outbox() for lane in LANES}
        tasks = [
            asyncio.create_task(_stream(channel, lane, lanes[lane], assignment.next_token, broken))
            for channel, lane in zip(channels, LANES, strict=True)
        ]
        return cls(lanes, channels, tasks)


async def own_address_towards(host: str, port: int) -> str:
    """This machine's address as `host` sees it: where the peer before this one may reach it. Sends nothing."""
    loop = asyncio.get_running_loop()
    try:
        family, kind, _, _, target = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    except OSError as error:
        raise RoomLost(f"the name {host} leads nowhere") from error
    with socket.socket(family, kind) as probe:
        try:
            probe.connect(target)
        except OSError as error:
            raise RoomLost(f"there is no way to {host}") from error
        return str(probe.getsockname()[0])


def listen_at(server: grpc.aio.Server, address: str, certificate: Certificate) -> str:
    """Listen on HOST:PORT, where port 0 is any free one; the address with its port. Raises PortTaken."""
    try:
        port = server.add_secure_port(address, certificate.server_credentials())
    except RuntimeError as error:
        raise PortTaken(
            f"cannot listen on {address} for other peers: it is in use, or not this machine's; "
            "name another with --listen"
        ) from error
    return f"{address.rpartition(':')[0]}:{port}"


def listen_anywhere(server: grpc.aio.Server, host: str, certificate: Certificate) -> str:
    """Listen on a free port of `host`, an address of this machine; HOST:PORT, or '' where that is not possible."""
    with contextlib.suppress(PortTaken):  # then the room relays
        return listen_at(server, f"[{host}]:0" if ":" in host else f"{host}:0", certificate)
    return ""


async def _stream(
    channel: grpc.aio.Channel,
    lane: Lane,
    outbox: Outbox[peer_pb2.Frame],
    token: str,
    broken: Callable[[], None],
) -> None:
    metadata = ((dial.LINK, token), (dial.LANE, lane_name(lane)))
    call = peer_pb2_grpc.PeerStub(channel).Link(aiter(outbox), metadata=metadata)
    try:
        await call.read()  # the later peer never answers: this ends when the stream does
    except grpc.RpcError as error:
        log.warning("link to the next peer broke", extra={"why": str(error)[:200]})
    broken()


class LinkService(peer_pb2_grpc.PeerServicer):
    """Takes frames from the peer before this one, which must present what the room told both ends."""

    def __init__(self, take: Callable[[peer_pb2.Frame], None]) -> None:
        self._take = take
        self._token = ""
        self._unused: set[Lane] = set()
        self._expected = asyncio.Condition()

    async def expect(self, token: str) -> None:
        """Let in whoever presents `token`, on each lane once, and nobody else."""
        async with self._expected:
            self._token, self._unused = token, set(LANES)
            self._expected.notify_all()

    async def Link(
        self, request_iterator: AsyncIterator[peer_pb2.Frame], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[peer_pb2.LinkReply]:
        said = {key: str(value) for key, value in (context.invocation_metadata() or ())}
        lane = lane_named(said.get(dial.LANE, ""))
        if lane is None or not await self._is_expected(said.get(dial.LINK, ""), lane):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this peer does not expect frames from the caller")
        async for frame in request_iterator:
            self._take(frame)
        return
        yield  # makes this a generator; nothing is ever answered

    async def _is_expected(self, token: str, lane: Lane) -> bool:
        """Whether the token is right, and not used; the two ends of a link may hear of it in either order."""

        def known() -> bool:
            return bool(token) and secrets.compare_digest(token.encode(), self._token.encode()) and lane in self._unused

        async with self._expected:
            try:
                async with asyncio.timeout(LINK_PATIENCE):
                    await self._expected.wait_for(known)
            except TimeoutError:
                return False
            self._unused.remove(lane)
        return True
