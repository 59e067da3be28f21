"""Peers whose compute is a sleep, for benchmarks of what a room does with peers that have processors of their own."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

from peer.copies import Copies
from peer.identity import Identity
from peer.membership import Lent
from peer.store import Store, default_folder
from peer.supply import Supply
from peer.worker import Outcome, Task
from protos import peer_pb2, room_pb2, room_pb2_grpc
from protos.certificate import Certificate
from protos.invite import Invite
from protos.lanes import DECODE
from protos.serving import new_server
from room.app import TICK
from room.door import Door
from room.invites import PEERS, InviteBook
from room.room import Room
from room.service import RoomService

VERSION = "bench"


@asynccontextmanager
async def served(room: Room) -> AsyncIterator[Invite]:
    """Serve a room on a free port of this machine, with time passing in it."""
    certificate = Certificate.made()
    door = Door(room.code, VERSION, certificate.fingerprint, InviteBook())
    server = new_server()
    room_pb2_grpc.add_RoomServicer_to_server(RoomService(room, cast(Any, None), door), server)
    port = server.add_secure_port("127.0.0.1:0", certificate.server_credentials())
    await server.start()
    ticking = asyncio.create_task(_tick(room))
    try:
        yield Invite("127.0.0.1", port, room.code, door.book[PEERS].key, certificate.fingerprint)
    finally:
        ticking.cancel()
        room.shut_down()
        await server.stop(0)


async def _tick(room: Room) -> None:
    while True:
        await asyncio.sleep(TICK)
        room.tick()


def lent(name: str, listen: str | None = None, advertise: str | None = None) -> Lent:
    """What a peer of this name lends, on a machine of its own."""
    hello = room_pb2.Hello(name=name, dtype="float32", memory=1 << 30, machine=name)
    return Lent(hello, (), None, "", VERSION, Identity.made(), listen, advertise)


def no_weights() -> Supply:
    """Of a peer that computes without any."""
    return Supply(Store(default_folder()), Copies())


class SleepingHolder:
    """Stands in for a peer's slice: each decode frame is a sleep, one after the other; the last slice draws any tokens.

    A frame of n rows takes `flat` + n * `row` seconds; prefill takes none.
    """

    step_seconds = 0.0

    def __init__(self, flat: float, row: float = 0.0) -> None:
        self.slept = 0.0
        self.loaded = asyncio.Event()
        self._flat, self._row = flat, row
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._last = False
        self._draws: Iterator[int] = iter(lambda: secrets.randbelow(900), -1)

    def deliver_to(self, deliver: Callable[[Outcome], None]) -> None:
        self._deliver = deliver
        self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            task = await self._tasks.get()
            begun = time.perf_counter()
            await asyncio.sleep(self._flat + task.tokens * self._row if task.frame.lane == DECODE else 0.0)
            took = time.perf_counter() - begun
            self.slept += took
            self._deliver(self._computed(task, int((begun - task.arrived_at) * 1e6), int(took * 1e6)))

    def _computed(self, task: Task, waited_us: int, computed_us: int) -> Outcome:
        frame, out = task.frame, peer_pb2.Frame()
        if self._last:
            result = peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step, stages=frame.stages, loops=frame.loops)
            for segment in frame.segments:
                if segment.sampled:
                    drawn = (peer_pb2.SampledToken(id=next(self._draws)) for _ in range(segment.sampled))
                    result.segments.add(tokens=drawn)
            result.stages.add(waited_us=waited_us, computed_us=computed_us)
            return result
        out.CopyFrom(frame)
        out.stages.add(waited_us=waited_us, computed_us=computed_us)
        return out

    def submit(self, task: Task) -> None:
        self._tasks.put_nowait(task)

    async def load(self, assignment: room_pb2.Assignment, progress: Callable[[float], None]) -> room_pb2.SliceReady:
        self._last = assignment.end == assignment.layers
        self.loaded.set()
        return room_pb2.SliceReady(epoch=assignment.epoch, weight_bytes=1, pages=assignment.pages)

    async def prepare(self, wanted: room_pb2.Prepare, progress: Callable[[float], None]) -> room_pb2.Prepared:
        return room_pb2.Prepared(start=wanted.start, end=wanted.end)

    async def release(self) -> None:
        self._working.cancel()

    def use_wire(self, choice: room_pb2.WireChoice) -> None:
        pass
