"""Rooms and peers that only give weights, on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from peer.copies import Copies
from peer.sources import Way
from peer.store import Store
from peer.supply import Supply
from protos import room_pb2, room_pb2_grpc, weights_pb2, weights_pb2_grpc
from protos.certificate import Certificate
from protos.contents import ContentService, Context, Locate, Place
from protos.manifest import Manifest, digest
from protos.serving import new_server
from room import manifest
from room.model import Model, inspect
from room.weights import Contents

Spoil = Callable[[bytes], bytes]


def flip(content: bytes) -> bytes:
    """One bit of the last byte."""
    return content[:-1] + bytes([content[-1] ^ 1])


class Site(room_pb2_grpc.RoomServicer):
    """Gives what `locate` knows, and tells of `holders`."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self.address = ""
        self.certificate = Certificate.made()
        self.given = 0
        """Bytes."""
        self.spoil: Spoil | None = None
        """What it does to all contents but `sound`."""
        self.sound: set[str] = set()
        self.absent: set[str] = set()
        self.holders: list[Site] = []
        self.gave = asyncio.Event()
        """Set after each part that was given."""

    def give(self, sha256: str) -> Place | bytes | None:
        place = None if sha256 in self.absent else self._locate(sha256)
        if isinstance(place, Place):
            with place.path.open("rb") as file:
                file.seek(place.offset)
                place = file.read(place.size)
        if place is not None and self.spoil is not None and sha256 not in self.sound:
            place = self.spoil(place)
        return place

    async def Holders(self, request: room_pb2.HoldersRequest, context: Context) -> room_pb2.HoldersReply:
        holders = [
            room_pb2.Holder(name="attic", address=site.address, token="share", certificate=site.certificate.der)
            for site in self.holders
        ]
        return room_pb2.HoldersReply(holders=holders)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Site"]:
        async def let_in(context: Context) -> None: ...

        server = new_server()
        room_pb2_grpc.add_RoomServicer_to_server(self, server)
        weights_pb2_grpc.add_WeightsServicer_to_server(_Counting(self, let_in), server)
        self.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', self.certificate.server_credentials())}"
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)


class _Counting(ContentService):
    def __init__(self, site: Site, let_in: Callable[[Context], Awaitable[None]]) -> None:
        super().__init__(site.give, let_in)
        self._site = site

    async def Read(self, request: weights_pb2.ReadRequest, context: Context) -> AsyncIterator[weights_pb2.Part]:
        async for part in super().Read(request, context):
            yield part
            self._site.given += len(part.data)
            self._site.gave.set()


class Pinned:
    """A model with its manifest."""

    def __init__(self, source: Path, cache: Path) -> None:
        self.model: Model = inspect(str(source), None, cache)
        self.manifest: Manifest = manifest.make(self.model, lambda meter: None)
        self.name = digest(self.manifest.text())
        self.contents = Contents(self.model, self.manifest)

    def room(self) -> Site:
        site = Site(self.contents.locate)
        site.sound = {self.name, *(text.sha256 for text in self.manifest.texts)}
        return site

    @property
    def size(self) -> int:
        return self.manifest.size


def supply(folder: Path, room: Site, *copies: Path) -> Supply:
    """A peer's, with a cache of its own."""
    made = Supply(Store(folder), Copies(copies))
    made.way = Way(room.address, room.certificate.der, ())
    return made
