"""A room behind its real door: TLS, gRPC and all checks, with peers that compute in memory and answers of numbers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import grpc

from peer.identity import Identity
from protos import dial, room_pb2, room_pb2_grpc, weights_pb2_grpc
from protos.certificate import Certificate
from protos.contents import Locate
from protos.invite import Invite
from protos.room_pb2_grpc import RoomStub
from protos.serving import new_server
from room.door import Door
from room.host_service import HostService
from room.intake import Intake
from room.invites import Invitation, InviteBook
from room.keeping import Keeper
from room.room import Room
from room.service import RoomService
from room.store import Store
from room.weights import WeightsService
from tests.room.fakes import Clock, CountingAnswer, job

VERSION = "1"
SETTLE = 0.1
"""Seconds for gRPC's own thread to report what was cancelled: the event loop of the test must still be there."""


class Numbers:
    """Stands in for the intake: every request is a job of ten tokens."""

    async def prepare(self, request: room_pb2.GenerateRequest, ctx: int) -> tuple[Any, Any]:
        return job(10, request.max_new), CountingAnswer(request.max_new)


class Guarded:
    """A room that listens. `now` is the time of its invites, `tries` that of its patience with wrong keys."""

    def __init__(self, room: Room, port: int, door: Door, tries: Clock, channels: AsyncExitStack) -> None:
        self.room = room
        self.door = door
        self.tries = tries
        self.invite = Invite("127.0.0.1", port, door.code, "", door.fingerprint)
        self._channels = channels

    def __getitem__(self, name: str) -> Invite:
        """The invite of that name, as people paste it."""
        return replace(self.invite, key=self.door.book[name].key)

    def of(self, invitation: Invitation) -> Invite:
        return replace(self.invite, key=invitation.key)

    async def stub(self) -> RoomStub:
        """On a connection of its own."""
        channel = await self._channels.enter_async_context(await dial.open_channel(self.invite))
        return RoomStub(channel)


@asynccontextmanager
async def guarded(
    room: Room,
    *,
    certificate: Certificate | None = None,
    kept: Sequence[Invitation] = (),
    locate: Locate = {}.get,
    store: Store | None = None,
    **options: Any,
) -> AsyncIterator[Guarded]:
    """`room`, its door open; it gives what `locate` knows. `options` are the Door's."""
    certificate = certificate or Certificate.made()
    tries = Clock()
    door = Door(room.code, VERSION, certificate.fingerprint, InviteBook(kept), clock=tries, **options)
    server = new_server(door.greet)
    service = RoomService(room, cast(Intake, Numbers()), door)
    room_pb2_grpc.add_RoomServicer_to_server(service, server)
    weights = WeightsService(locate, service.let_member_in, room.roster, service.relay)
    weights_pb2_grpc.add_WeightsServicer_to_server(weights, server)
    room_pb2_grpc.add_HostServicer_to_server(HostService(room, door, Keeper(store, room, door)), server)
    port = server.add_secure_port("127.0.0.1:0", certificate.server_credentials())
    await server.start()
    try:
        async with AsyncExitStack() as channels:
            yield Guarded(room, port, door, tries, channels)
    finally:
        room.shut_down()
        await server.stop(0.5)
        await asyncio.sleep(SETTLE)


class Joining:
    """A Join call, a message at a time."""

    def __init__(self, stub: RoomStub, invite: Invite, identity: Identity | None = None) -> None:
        self.identity = identity or Identity.made()
        self._room = invite.fingerprint
        self.call = stub.Join(metadata=dial.credentials(invite, VERSION, self.identity.id))

    async def challenged(self) -> bytes:
        return (await self.hear()).challenge.nonce

    def hello(self, nonce: bytes) -> room_pb2.Hello:
        """An honest answer to the challenge."""
        return room_pb2.Hello(
            peer_id=self.identity.id,
            name="attacker",
            dtype="float32",
            memory=1 << 30,
            certificate=self.identity.certificate.der,
            public_key=self.identity.public_key,
            signature=self.identity.sign(nonce, self._room),
        )

    async def say(self, hello: room_pb2.Hello) -> room_pb2.ToMember:
        """What the room answers."""
        await self.call.write(room_pb2.FromMember(hello=hello))
        return await self.hear()

    async def enter(self) -> room_pb2.ToMember:
        """Join as an honest peer does."""
        return await self.say(self.hello(await self.challenged()))

    async def put_out(self) -> str:
        """The reason why the room ends this membership."""
        while not (message := await self.hear()).HasField("refused"):
            pass
        return message.refused.reason

    async def hear(self) -> room_pb2.ToMember:
        message = await self.call.read()
        assert isinstance(message, room_pb2.ToMember), "the stream has ended"
        return message


async def refusal(call: Any) -> dial.Refusal:
    """How the room ends a call that it does not answer."""
    try:
        answer = await call.read() if hasattr(call, "read") else await call
    except grpc.aio.AioRpcError as error:
        return dial.refusal(error)
    raise AssertionError(f"it was let in: {type(answer).__name__}")


async def eventually(look: Any, within: float = 60.0) -> None:
    """Wait until `look()` is true."""
    async with asyncio.timeout(within):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
