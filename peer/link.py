"""The straight way from one peer to the next, at either of its ends."""

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import grpc
import psutil
from google.protobuf.message import DecodeError

from peer.bandwidth import Prober
from peer.errors import NoLink, PortTaken, RoomLost
from peer.pacing import Pacer
from protos import dial, peer_pb2, peer_pb2_grpc, room_pb2
from protos.certificate import Certificate
from protos.invite import Invite, is_loopback
from protos.lanes import LANES, Lane, lane_name, lane_named
from protos.outbox import Outbox

log = logging.getLogger("pooled.peer")

LINK_PATIENCE = 5.0
"""Seconds to try one of the next peer's addresses."""

MOST_DIGITS = 12
"""Of a ticket's number."""

MOST_STREAMS = 2
"""Of one lane at once: the one before may linger until it is known to be dead. Each may take a message's memory."""

MOST_ADDRESSES = 8
"""At which a peer says it can be reached."""


class Link:
    """Streams of frames straight to the next peer, one per lane, each on a connection of its own."""

    def __init__(
        self,
        address: str,
        assignment: room_pb2.Assignment,
        attempt: int,
        pacer: Pacer,
        heard: Callable[[peer_pb2.LinkReply], None],
    ) -> None:
        self.ended = asyncio.Event()
        """Set when it is of no use any more."""
        self.prober = Prober(assignment.epoch, self.send)
        self._tickets = {lane: ticket(assignment.next_token, lane, attempt) for lane in LANES}
        self._pacer = pacer
        self._heard = heard
        self._lanes: dict[Lane, Outbox[peer_pb2.Frame]] = {lane: Outbox() for lane in LANES}
        self._channels = {lane: dial.channel_to(address, assignment.next_certificate) for lane in LANES}
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        address: str,
        assignment: room_pb2.Assignment,
        attempt: int,
        pacer: Pacer,
        heard: Callable[[peer_pb2.LinkReply], None],
    ) -> Self:
        """A link to the assignment's next peer at HOST:PORT, on which something has gone there and back on each lane.

        `attempt` counts those of this assignment from 1. `heard` is told what has come to the next peer. Raises NoLink.
        """
        link = cls(address, assignment, attempt, pacer, heard)
        try:
            async with asyncio.timeout(LINK_PATIENCE):
                await asyncio.gather(*(channel.channel_ready() for channel in link._channels.values()))
                link._tasks = [asyncio.create_task(link._stream(lane)) for lane in LANES]
                await asyncio.gather(*(link.prober.echo(lane) for lane in LANES))
        except TimeoutError as error:
            await link.close()
            raise NoLink(f"the next peer does not answer at {address}") from error
        except BaseException:
            await link.close()
            raise
        return link

    def send(self, frame: peer_pb2.Frame) -> None:
        self._lanes[frame.lane].put(frame)

    async def close(self) -> None:
        for outbox in self._lanes.values():
            outbox.close()  # lets gRPC's writers of these streams come to their end
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    async def _stream(self, lane: Lane) -> None:
        metadata = ((dial.LINK, self._tickets[lane]), (dial.LANE, lane_name(lane)))
        call = peer_pb2_grpc.PeerStub(self._channels[lane]).Link(
            self._pacer.paced(self._lanes[lane]), metadata=metadata
        )
        try:
            async for reply in call:
                if reply.probe:
                    self.prober.heard(reply.probe)
                else:
                    self._heard(reply)
        except grpc.RpcError as error:
            log.info("a straight way to the next peer broke", extra={"why": str(error)[:200]})
        self.ended.set()


async def own_addresses(invite: Invite) -> list[str]:
    """This machine's addresses for peers elsewhere: the one towards the room first. Only that one where it is loopback.

    Raises RoomLost when there is no way to the room.
    """
    if invite.by_way_of:  # what leads to the room is loopback, wherever the room is
        return _interfaces()
    towards = await own_address_towards(invite.host, invite.port)
    return [towards] if is_loopback(towards) else list(dict.fromkeys([towards, *_interfaces()]))


def _interfaces() -> list[str]:
    """The addresses of all interfaces but loopback, and but those that need the name of an interface beside them."""
    of_all = [address for addresses in psutil.net_if_addrs().values() for address in addresses]
    found = (each.address for each in of_all if each.family in (socket.AF_INET, socket.AF_INET6))
    return [address for address in found if "%" not in address and not is_loopback(address)][:MOST_ADDRESSES]


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


def listen_anywhere(server: grpc.aio.Server, hosts: Sequence[str], certificate: Certificate) -> list[str]:
    """Listen on a free port that all of `hosts`, addresses of this machine, share; HOST:PORT of each.

    Where there is no such port there are none: the room relays.
    """
    everywhere = ["[::]:0", "0.0.0.0:0"] if len(hosts) > 1 else [f"{_bracketed(host)}:0" for host in hosts]
    for address in everywhere:
        with contextlib.suppress(PortTaken):
            port = listen_at(server, address, certificate).rpartition(":")[2]
            return [f"{_bracketed(host)}:{port}" for host in hosts]
    return []


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class LinkService(peer_pb2_grpc.PeerServicer):
    """Takes frames from the peer before this one, which must present what the room told both ends.

    `take` gets each frame and gives what to answer.
    """

    def __init__(self, take: Callable[[peer_pb2.Frame], peer_pb2.LinkReply]) -> None:
        self._take = take
        self._token = ""
        self._latest = dict.fromkeys(LANES, 0)
        self._streams = dict.fromkeys(LANES, 0)
        self._expected = asyncio.Condition()

    async def expect(self, token: str) -> None:
        """Let in whoever presents tickets of `token`, each once, and nobody else."""
        async with self._expected:
            self._token, self._latest = token, dict.fromkeys(LANES, 0)
            self._expected.notify_all()

    async def Link(
        self, request_iterator: AsyncIterator[peer_pb2.Frame], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[peer_pb2.LinkReply]:
        said = {key: str(value) for key, value in (context.invocation_metadata() or ())}
        lane = lane_named(said.get(dial.LANE, ""))
        if lane is None or not await self._is_expected(said.get(dial.LINK, ""), lane):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this peer does not expect frames from the caller")
        if self._streams[lane] >= MOST_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this lane has too many streams already")
        self._streams[lane] += 1
        try:
            async for frame in request_iterator:
                if frame.lane != lane:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this frame belongs to another lane")
                yield self._take(frame)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no frame")
        finally:
            self._streams[lane] -= 1

    async def _is_expected(self, presented: str, lane: Lane) -> bool:
        """Whether the ticket is right and newer than all before; the two ends may hear of the token in either order."""
        digits = presented.partition(".")[0]
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < MOST_DIGITS else 0

        def known() -> bool:
            right = bool(self._token) and secrets.compare_digest(
                presented.encode(), ticket(self._token, lane, number).encode()
            )
            return right and number > self._latest[lane]

        async with self._expected:
            try:
                async with asyncio.timeout(LINK_PATIENCE):
                    await self._expected.wait_for(known)
            except TimeoutError:
                return False
            self._latest[lane] = number
        return True


def ticket(token: str, lane: Lane, number: int) -> str:
    """What opens a lane once: the number of the attempt, from 1, under a token that only room and both ends know."""
    mac = hmac.new(token.encode(), f"{lane_name(lane)} {number}".encode(), "sha256")
    return f"{number}.{mac.hexdigest()}"
