"""Clocks padding that goes to a room and back."""

import time
from typing import TYPE_CHECKING

import grpc

from protos import dial, room_pb2

if TYPE_CHECKING:
    from protos.room_pb2_grpc import RoomAsyncStub

ECHOES = 5
"""Empty ones, of which the quickest tells the round trip."""

SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 1 << 20, 1 << 20)
"""Bytes of the echoes that tell the bandwidth, of which the quickest counts. The room takes no larger ones, and TCP
gets faster from one to the next."""

LONG_ENOUGH = 1.0
"""Seconds of an echo after which no larger one would tell more."""


class Echo:
    """Calls the room, until `end`."""

    def __init__(self, room: "RoomAsyncStub", metadata: dial.Metadata, end: float) -> None:
        self._room = room
        self._metadata = metadata
        self._end = end

    async def send(self, padding: int = 0, wanted: int = 0, until: float | None = None) -> room_pb2.EchoReply:
        """Raises AioRpcError."""
        left = max((until or self._end) - time.monotonic(), 0.0)
        request = room_pb2.EchoRequest(padding=bytes(padding), wanted=wanted)
        return await self._room.Echo(request, metadata=self._metadata, timeout=left)

    async def seconds(self, padding: int = 0, wanted: int = 0, until: float | None = None) -> float:
        """That it takes. Raises AioRpcError."""
        began = time.perf_counter()
        await self.send(padding, wanted, until)
        return time.perf_counter() - began

    async def rate(self, up: bool, round_trip: float, until: float) -> float | None:
        """Bytes a second, one way, by the best of echoes that get larger; None when none came back."""
        best = None
        for size in SIZES:
            try:
                took = await (self.seconds(size, 0, until) if up else self.seconds(0, size, until))
            except grpc.aio.AioRpcError:
                return best  # the time is up, or the line broke: what came before stands
            # On a quick line an echo may take no longer than the quickest empty one did.
            best = max(best or 0.0, size / max(took - round_trip, took / 2))
            if took > LONG_ENOUGH:
                break
        return best
