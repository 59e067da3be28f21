"""What the host may ask of the room and have it do, over gRPC."""

from collections.abc import Callable

from protos import room_pb2, room_pb2_grpc
from room.door import Context, Door, abort
from room.errors import CallError
from room.room import Room


class HostService(room_pb2_grpc.HostServicer):
    """One servicer per room."""

    def __init__(self, room: Room, door: Door) -> None:
        self._room = room
        self._door = door

    async def Requests(self, request: room_pb2.RequestsRequest, context: Context) -> room_pb2.RequestsReply:
        await self._door.let_host_in(context)
        return room_pb2.RequestsReply(requests=self._room.requests())

    async def StopRequest(self, request: room_pb2.StopRequestRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, lambda: self._room.stop(request.number))

    async def Peers(self, request: room_pb2.PeersRequest, context: Context) -> room_pb2.PeersReply:
        await self._door.let_host_in(context)
        return room_pb2.PeersReply(peers=self._room.peers())

    async def PausePeer(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, lambda: self._room.pause(request.name))

    async def ResumePeer(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, lambda: self._room.resume(request.name))

    async def RemovePeer(self, request: room_pb2.PeerRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, lambda: self._room.remove(request.name))

    async def Redeal(self, request: room_pb2.RedealRequest, context: Context) -> room_pb2.HostReply:
        return await self._do(context, self._room.redeal)

    async def _do(self, context: Context, act: Callable[[], None]) -> room_pb2.HostReply:
        await self._door.let_host_in(context)
        try:
            act()
        except CallError as error:
            await abort(context, error)
        return room_pb2.HostReply()
