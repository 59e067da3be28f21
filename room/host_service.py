"""What the host may ask of the room and have it do, over gRPC."""

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

    async def StopRequest(self, request: room_pb2.StopRequestRequest, context: Context) -> room_pb2.StopRequestReply:
        await self._door.let_host_in(context)
        try:
            self._room.stop(request.number)
        except CallError as error:
            await abort(context, error)
        return room_pb2.StopRequestReply()
