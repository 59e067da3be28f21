"""What the host may ask of the room and have it do, over gRPC."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from protos import room_pb2, room_pb2_grpc
from room import drafting
from room.door import Context, Door, abort
from room.errors import CallError, CannotSave, NotSaved
from room.invites import side_named
from room.keeping import Keeper
from room.room import Room
from room.service import pump

log = logging.getLogger("pooled.room")


class HostService(room_pb2_grpc.HostServicer):
    """One servicer per room."""

    def __init__(self, room: Room, door: Door, keeper: Keeper) -> None:
        self._room = room
        self._door = door
        self._keeper = keeper

    async def Requests(self, request: room_pb2.RequestsRequest, context: Context) -> room_pb2.RequestsReply:
        await self._door.let_host_in(context)
        return room_pb2.RequestsReply(requests=self._room.requests())

    async def StopRequest(self, request: room_pb2.StopRequestRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"stops request {request.number}", lambda: self._room.stop(request.number))

    async def Peers(self, request: room_pb2.PeersRequest, context: Context) -> room_pb2.PeersReply:
        await self._door.let_host_in(context)
        return room_pb2.PeersReply(peers=self._room.peers(), knocks=self._waiting())

    async def PausePeer(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"pauses peer {request.name}", lambda: self._room.pause(request.name))

    async def ResumePeer(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"resumes peer {request.name}", lambda: self._room.resume(request.name))

    async def RemovePeer(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"removes peer {request.name}", lambda: self._room.remove(request.name))

    async def Redeal(self, request: room_pb2.RedealRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, "deals anew", self._room.redeal)

    async def NewInvite(self, request: room_pb2.NewInviteRequest, context: Context) -> room_pb2.NewInviteReply:
        await self._door.let_host_in(context)
        try:
            invite = self._door.book.issue(
                side_named(request.side),
                request.name,
                lifetime=request.lifetime or None,
                uses=request.uses or None,
            )
            await self._keeper.save()
        except CallError as error:
            await abort(context, error)
        except CannotSave as error:
            self._door.book.withdraw(invite)
            await abort(context, NotSaved(error, "so no invite was made"))
        return room_pb2.NewInviteReply(name=invite.name, invites=map(str, self._door.texts(invite)))

    async def Invites(self, request: room_pb2.InvitesRequest, context: Context) -> room_pb2.InvitesReply:
        await self._door.let_host_in(context)
        return room_pb2.InvitesReply(invites=self._door.invites())

    async def RevokeInvite(self, request: room_pb2.InviteRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"revokes invite {request.name}", lambda: self._door.revoke(request.name))

    async def Knocks(self, request: room_pb2.KnocksRequest, context: Context) -> AsyncIterator[room_pb2.KnocksReply]:
        await self._door.let_host_in(context)
        while True:
            changed = self._door.knocks.changed
            yield room_pb2.KnocksReply(knocks=self._waiting())
            await changed.wait()

    async def Allow(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"lets {request.name} in", lambda: self._door.allow(request.name))

    async def Deny(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, f"turns {request.name} away", lambda: self._door.deny(request.name))

    def _waiting(self) -> list[room_pb2.KnockState]:
        return [room_pb2.KnockState(name=each.name, side=each.side, address=each.address) for each in self._door.knocks]

    async def Draft(
        self, request_iterator: AsyncIterator[room_pb2.Drafted], context: Context
    ) -> AsyncIterator[room_pb2.DraftWanted]:
        await self._door.let_host_in(context)
        outbox = self._room.drafting.begin()
        reader = pump(request_iterator, self._room.drafted, outbox.close)
        later = asyncio.get_running_loop().call_later
        try:
            async for wanted in outbox:
                yield wanted
                if wanted.count:
                    later(drafting.PATIENCE, self._room.draft_due, wanted.session, wanted.start + len(wanted.ids))
        finally:
            reader.cancel()
            self._room.drafter_left(outbox)

    async def _do(self, context: Context, what: str, act: Callable[[], None]) -> room_pb2.HostReply:
        await self._door.let_host_in(context)
        try:
            act()
            log.info("the host acts", extra={"what": what})
            await self._keeper.save()
        except CallError as error:
            await abort(context, error)
        except CannotSave as error:
            await abort(
                context, NotSaved(error, "it was done, but will be forgotten if the room ends before it can be written")
            )
        return room_pb2.HostReply()
