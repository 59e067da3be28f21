"""Weights on their way through the room, from one peer to another that does not reach it.

The taker asks the room as it would ask the giver. The room has the giver make a call of its own, since peers only ever
dial out, and passes on what comes by it: a part at a time, so that a slow taker slows the giver down, and seldom while
answers run, since frames share the room's line.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from protos import room_pb2, weights_pb2
from protos.contents import PART
from room.errors import InvalidValue, PeerSilent, UnknownErrand
from room.members import Member

MOST_ERRANDS = 4
"""That run at once; others wait for their turn."""

BEGUN_WITHIN = 5.0
"""Seconds for a giver to call."""

REST = 2.0
"""Seconds between two parts while answers run, of all errands together."""


@dataclass(eq=False)
class _Errand:
    """One thing that one peer is asked to give."""

    giver: Member
    asked: weights_pb2.Asked
    way_in: MemoryObjectSendStream[weights_pb2.Given]
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, given: weights_pb2.Given) -> None:
        """Raise InvalidValue for what was not asked for."""
        kind = given.WhichOneof("payload")
        asked_for_parts = self.asked.HasField("read")
        if kind != ("part" if asked_for_parts else "have") or len(given.part.data) > PART:
            raise InvalidValue("given", f"a peer gives what it is asked for, in parts of {PART} bytes at most")


class Relay:
    """All that peers give through the room now."""

    def __init__(self, answering: Callable[[], bool]) -> None:
        """`answering` tells whether answers run."""
        self._answering = answering
        self._errands: dict[str, _Errand] = {}
        """By their numbers."""
        self._numbers = count(1)
        self._places = asyncio.Semaphore(MOST_ERRANDS)
        self._line = asyncio.Lock()

    async def fetch(self, giver: Member, asked: weights_pb2.Asked) -> AsyncGenerator[weights_pb2.Given, None]:
        """What `giver` gives, unchecked, each part once it may go on. Raises PeerSilent."""
        async with self._places:
            way_in, way_out = anyio.create_memory_object_stream[weights_pb2.Given]()
            number, errand = next(self._numbers), _Errand(giver, asked, way_in)
            self._errands[str(number)] = errand
            giver.outbox.put(room_pb2.ToMember(errand=room_pb2.Errand(number=number)))
            try:
                async for given in _arriving(errand, way_out):
                    if asked.HasField("read"):
                        await self._turn()
                    yield given
            finally:
                del self._errands[str(number)]
                way_in.close()
                way_out.close()

    async def carry(
        self, giver: Member, number: str, given: AsyncIterator[weights_pb2.Given]
    ) -> AsyncIterator[weights_pb2.Asked]:
        """Tell `giver` what it is asked for, then pass on what it gives. Raises UnknownErrand, InvalidValue."""
        errand = self._errands.get(number)
        if errand is None or errand.giver is not giver or errand.begun.is_set():
            raise UnknownErrand()
        errand.begun.set()
        yield errand.asked
        with errand.way_in:
            async for each in given:
                errand.check(each)
                try:
                    await errand.way_in.send(each)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the taker has gone
                    return

    async def _turn(self) -> None:
        async with self._line:
            if self._answering():
                await asyncio.sleep(REST)


async def _arriving(
    errand: _Errand, way_out: MemoryObjectReceiveStream[weights_pb2.Given]
) -> AsyncIterator[weights_pb2.Given]:
    try:
        async with asyncio.timeout(BEGUN_WITHIN):
            await errand.begun.wait()
    except TimeoutError as error:
        raise PeerSilent(errand.giver.name) from error
    async for given in way_out:
        yield given
