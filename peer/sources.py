"""Where weights can come from: other peers that hold them, the room, and the hub.

All are asked alike: which of some pieces they have, and for the bytes of some. What comes is for the caller to check.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import grpc
from huggingface_hub import get_async_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from peer.errors import SourceFailed
from protos import dial, room_pb2, room_pb2_grpc, weights_pb2, weights_pb2_grpc
from protos.contents import PART
from protos.manifest import Manifest, Piece

log = logging.getLogger("pooled.peer")

PATIENCE = 3.0
"""Seconds that another peer gets to answer the first time."""

SILENCE = 20.0
"""Seconds without a byte after which a source counts as broken."""

PEER, ROOM, HUB, THROUGH_ROOM = range(4)
"""In this order sources are asked. What comes from a peer through the room takes the host's line twice, which carries
frames too, while the hub's is nobody's here: it is for peers that the hub gives nothing."""

_PARTIAL_CONTENT = 206

_HTTP_ERRORS: tuple[type[Exception], ...] = (*HfHubHTTPError.__mro__[:2], OSError)
"""Those of the hub's library, and of its HTTP client, which changes with the library's version."""


@dataclass(frozen=True)
class Wanted:
    """Bytes that are to be fetched."""

    piece: Piece
    file: str
    """Where the manifest has them."""


class Source(Protocol):
    """One place that may have weights."""

    @property
    def name(self) -> str:
        """As people know it."""

    @property
    def tier(self) -> int:
        """Lower ones are asked first."""

    @property
    def lanes(self) -> int:
        """How many reads at once it is asked for."""

    async def have(self, wanted: Sequence[Wanted]) -> list[bool]:
        """Of each, whether it can be read here. Raises SourceFailed."""

    def read(self, wanted: Sequence[Wanted]) -> AsyncGenerator[tuple[int, bytes], None]:
        """Bytes as they come, each with its place among those wanted. Raises SourceFailed."""


class Remote:
    """A room or a peer."""

    def __init__(
        self, name: str, tier: int, channel: grpc.aio.Channel, metadata: dial.Metadata, *, lanes: int = 2
    ) -> None:
        self.name, self.tier, self.lanes = name, tier, lanes
        self._stub = weights_pb2_grpc.WeightsStub(channel)
        self._metadata = metadata

    async def have(self, wanted: Sequence[Wanted]) -> list[bool]:
        request = weights_pb2.HaveRequest(sha256=_names(wanted))
        try:
            reply = await self._stub.Have(request, metadata=self._metadata, timeout=SILENCE)
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from error
        if len(reply.have) != len(wanted):
            raise SourceFailed(f"{self.name} answered something else than what was asked")
        return list(reply.have)

    async def read(self, wanted: Sequence[Wanted]) -> AsyncGenerator[tuple[int, bytes], None]:
        call = self._stub.Read(weights_pb2.ReadRequest(sha256=_names(wanted)), metadata=self._metadata)
        try:
            while True:
                # The call itself is to end when nothing comes, so a timeout may cancel it.
                async with asyncio.timeout(SILENCE):
                    part = await call.read()
                if not isinstance(part, weights_pb2.Part):  # the end
                    return
                yield part.content, part.data
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from error
        except TimeoutError:
            raise SourceFailed(f"{self.name} fell silent") from None
        finally:
            call.cancel()

    def _failed(self, error: grpc.aio.AioRpcError) -> SourceFailed:
        return SourceFailed(f"{self.name}: {dial.refusal(error).message}")


class Hub:
    """The repository on the hub that the manifest names."""

    name, tier, lanes = "the hub", HUB, 4

    def __init__(self, repository: str, commit: str) -> None:
        self._repository, self._commit = repository, commit

    async def have(self, wanted: Sequence[Wanted]) -> list[bool]:
        return [True] * len(wanted)

    async def read(self, wanted: Sequence[Wanted]) -> AsyncGenerator[tuple[int, bytes], None]:
        at = 0
        try:
            async with get_async_session() as session:
                for run in _runs(wanted):
                    url = hf_hub_url(self._repository, run[0].file, revision=self._commit)
                    first, last = run[0].piece.offset, run[-1].piece.offset + run[-1].piece.size - 1
                    headers = {**build_hf_headers(), "Range": f"bytes={first}-{last}"}
                    async with session.stream("GET", url, headers=headers, follow_redirects=True) as reply:
                        hf_raise_for_status(reply)
                        if reply.status_code != _PARTIAL_CONTENT:
                            raise SourceFailed("the hub sends files only as a whole")
                        async for number, data in _divided(reply.aiter_bytes(PART), run):
                            yield at + number, data
                    at += len(run)
        except _HTTP_ERRORS as error:
            raise SourceFailed(f"the hub: {str(error).strip().partition(chr(10))[0]}") from error


def _runs(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Pieces that follow each other in a file together: each run is one request."""
    run: list[Wanted] = []
    for each in wanted:
        if run and (run[-1].file, run[-1].piece.offset + run[-1].piece.size) != (each.file, each.piece.offset):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


async def _divided(chunks: AsyncIterator[bytes], run: Sequence[Wanted]) -> AsyncIterator[tuple[int, bytes]]:
    """The bytes of a run, each with the place in it of the piece that it belongs to."""
    number, left = 0, run[0].piece.size
    async for chunk in chunks:
        while chunk and number < len(run):
            yield number, chunk[:left]
            chunk, left = chunk[left:], left - len(chunk[:left])
            if not left and (number := number + 1) < len(run):
                left = run[number].piece.size


def _names(wanted: Sequence[Wanted]) -> list[bytes]:
    return [bytes.fromhex(each.piece.sha256) for each in wanted]


@dataclass(frozen=True)
class Way:
    """How this peer reaches the others of its room."""

    address: str
    """The room's."""
    certificate: bytes | None
    """What the room shows there; None: plain text."""
    metadata: dial.Metadata
    """Of a member."""

    @asynccontextmanager
    async def room(self) -> AsyncIterator[Remote]:
        """The room alone."""
        async with dial.channel_to(self.address, self.certificate) as channel:
            yield Remote("the room", ROOM, channel, self.metadata)

    @asynccontextmanager
    async def sources(self, manifest: Manifest) -> AsyncIterator[list[Source]]:
        """All that may have weights of a model, for as long as they are read from."""
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(dial.channel_to(self.address, self.certificate))
            found: list[Source] = [Remote("the room", ROOM, channel, self.metadata)]
            if manifest.repository is not None and manifest.commit is not None:
                found.append(Hub(manifest.repository, manifest.commit))
            try:
                reply = await room_pb2_grpc.RoomStub(channel).Holders(
                    room_pb2.HoldersRequest(), metadata=self.metadata, timeout=SILENCE
                )
            except grpc.aio.AioRpcError as error:
                log.warning("the room does not say who has weights", extra={"why": dial.refusal(error).message})
                yield found
                return
            yield [*await asyncio.gather(*(self._reached(each, channel, stack) for each in reply.holders)), *found]

    async def _reached(self, holder: room_pb2.Holder, room: grpc.aio.Channel, stack: AsyncExitStack) -> Source:
        """A peer that holds weights: straight, where that is possible."""
        token = (dial.SHARE, holder.token)
        if holder.address:
            channel = await stack.enter_async_context(dial.channel_to(holder.address, holder.certificate))
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await channel.channel_ready()
                return Remote(holder.name, PEER, channel, (token,))
        return Remote(f"{holder.name} through the room", THROUGH_ROOM, room, (*self.metadata, token), lanes=1)
