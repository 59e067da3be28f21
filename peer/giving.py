"""Giving weights to a peer that does not reach this one: through the room, by a call that the room asks for."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc

from peer.sources import Way
from protos import dial, weights_pb2
from protos.contents import Locate, NotHere, Pace, have, parts
from protos.room_pb2_grpc import RoomStub

log = logging.getLogger("pooled.peer")


async def give(way: Way, number: int, locate: Locate, pace: Pace) -> None:
    """Give what the room asks for under `number`; ends early at a content that `locate` does not know."""
    asked: asyncio.Future[weights_pb2.Asked] = asyncio.get_running_loop().create_future()
    async with dial.channel_to(way.address, way.certificate) as channel:
        metadata = (*way.metadata, (dial.ERRAND, str(number)))
        call = RoomStub(channel).Give(_given(asked, locate, pace), metadata=metadata)
        try:
            async for each in call:
                if not asked.done():
                    asked.set_result(each)
        except grpc.aio.AioRpcError as error:
            log.info("weights for another peer were not taken", extra={"why": dial.refusal(error).message})
        finally:
            asked.cancel()


async def _given(
    asked: "asyncio.Future[weights_pb2.Asked]", locate: Locate, pace: Pace
) -> AsyncIterator[weights_pb2.Given]:
    wanted = await asked
    if wanted.HasField("have"):
        yield weights_pb2.Given(have=have(locate, wanted.have))
        return
    with suppress(NotHere):
        async for part in pace(parts(locate, wanted.read)):
            yield weights_pb2.Given(part=part)
