"""Starts a draft model beside a room and has it guess until the room ends."""

import asyncio
from collections.abc import AsyncIterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version as installed
from typing import TYPE_CHECKING

import grpc

from peer.errors import RoomLost
from peer.events import PeerEvent, Watch
from peer.threads import usable
from protos import dial, room_pb2
from protos.host_key import HostKey
from protos.outbox import Outbox
from protos.room_pb2_grpc import HostStub

if TYPE_CHECKING:
    from peer.drafter import Drafter

MOST_CTX = 8192
"""Tokens of a session; longer ones get no guesses."""

MOST_SESSIONS = 32

SHARE = 8
"""Sessions take at most this part of the memory that is free: peers that start later want the rest."""


@dataclass(frozen=True)
class DrafterConfig:
    model: str
    """A directory or a GGUF file."""
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    """Of torch; None: as many as can run at once."""


async def run_drafter(config: DrafterConfig, host_key: HostKey, watch: Watch) -> None:
    """Guess for the room until cancelled. Raises RoomLost when it ends, or another PeerError."""
    with ThreadPoolExecutor(1, "pooled-compute") as thread:  # torch keeps a team of threads for each that calls it
        drafter = await asyncio.get_running_loop().run_in_executor(thread, _load, config)
        try:
            async with await dial.open_channel(host_key.invite) as channel:
                watch(PeerEvent("drafting", "the draft model is loaded"))
                await _Connection(drafter, thread).serve(channel, host_key)
        except (dial.Unreachable, dial.WrongCertificate) as error:
            raise RoomLost(str(error)) from error


class _Connection:
    """Pumps between the room and the thread that computes."""

    def __init__(self, drafter: "Drafter", thread: ThreadPoolExecutor) -> None:
        self._drafter, self._thread = drafter, thread
        self._wanted: list[room_pb2.DraftWanted] = []
        self._came = asyncio.Event()
        self._outbox: Outbox[room_pb2.Drafted] = Outbox()

    async def serve(self, channel: grpc.aio.Channel, host_key: HostKey) -> None:
        """Raises RoomLost."""
        credentials = host_key.credentials(installed("pooled"))
        call = HostStub(channel).Draft(aiter(self._outbox), metadata=credentials)
        reading, computing = asyncio.create_task(self._read(call)), asyncio.create_task(self._compute())
        try:
            await asyncio.wait({reading, computing}, return_when=asyncio.FIRST_COMPLETED)
            await (computing if computing.done() else reading)
        finally:
            self._outbox.close()
            reading.cancel()
            computing.cancel()
            await asyncio.gather(reading, computing, return_exceptions=True)

    async def _read(self, call: AsyncIterable[room_pb2.DraftWanted]) -> None:
        try:
            async for wanted in call:
                self._wanted.append(wanted)
                self._came.set()
        except grpc.aio.AioRpcError as error:
            raise RoomLost(dial.refusal(error).message) from error
        raise RoomLost("the room wants no more guesses")

    async def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            self._came.clear()
            while self._wanted or self._drafter.busy:
                wanted, self._wanted = self._wanted, []
                for guesses in await loop.run_in_executor(self._thread, self._drafter.step, wanted):
                    self._outbox.put(guesses)


def _load(config: DrafterConfig) -> "Drafter":
    """Load the whole model. Takes seconds: it imports torch. Raises PeerError."""
    import torch

    from peer.drafter import Drafter
    from peer.kv import PAGE
    from peer.memory import free_now, pick_device, pick_dtype
    from peer.selfcheck import self_check
    from peer.slice import Slice

    torch.set_num_threads(config.threads or usable(torch.get_num_threads()))
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    layers = self_check(config.model).config.num_hidden_layers
    slice = Slice.load(config.model, 0, layers, dtype=dtype, device=device)
    ctx = min(MOST_CTX, slice.config.max_position_embeddings)
    taken = ctx // PAGE * slice.layout.page_bytes(dtype)
    return Drafter(slice, ctx, max(1, min(MOST_SESSIONS, free_now(device) // SHARE // taken)))
