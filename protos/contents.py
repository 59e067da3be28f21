"""Serving contents by their SHA-256, as rooms and peers do alike for those that load a model."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from protos import weights_pb2, weights_pb2_grpc

PART = 1 << 20
"""Bytes that are read and sent at a time."""

MOST_ASKED = 1 << 20
"""Contents that one call may ask about."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Place:
    """Where a content lies."""

    path: Path
    offset: int
    size: int


Locate = Callable[[str], Place | bytes | None]
"""From a SHA-256 in hexadecimal to the content, or to where it lies."""

Pace = Callable[[AsyncIterable[weights_pb2.Part]], AsyncIterator[weights_pb2.Part]]
"""The same parts, each when it may go out."""


def _at_once(parts: AsyncIterable[weights_pb2.Part]) -> AsyncIterator[weights_pb2.Part]:
    return aiter(parts)


class NotHere(Exception):
    """A content is not here, or no longer."""

    def __init__(self) -> None:
        super().__init__("this content is not here")


def have(locate: Locate, request: weights_pb2.HaveRequest) -> weights_pb2.HaveReply:
    """Of each content, whether it is here."""
    return weights_pb2.HaveReply(have=[locate(sha256.hex()) is not None for sha256 in request.sha256])


async def parts(locate: Locate, request: weights_pb2.ReadRequest) -> AsyncIterator[weights_pb2.Part]:
    """The contents, PART bytes at a time. Raises NotHere."""
    for number, sha256 in enumerate(request.sha256):
        place = locate(sha256.hex())
        if place is None:
            raise NotHere()
        for start in range(0, len(place) if isinstance(place, bytes) else place.size, PART):
            yield weights_pb2.Part(content=number, data=await _read(place, start))


class ContentService(weights_pb2_grpc.WeightsServicer):
    """Gives what `locate` knows of to callers whom `let_in` does not end the call of."""

    def __init__(self, locate: Locate, let_in: Callable[[Context], Awaitable[object]], pace: Pace = _at_once) -> None:
        self._locate = locate
        self._let_in = let_in
        self._pace = pace

    async def Have(self, request: weights_pb2.HaveRequest, context: Context) -> weights_pb2.HaveReply:
        await self._let_in(context)
        await check_count(len(request.sha256), context)
        return have(self._locate, request)

    async def Read(self, request: weights_pb2.ReadRequest, context: Context) -> AsyncIterator[weights_pb2.Part]:
        await self._let_in(context)
        await check_count(len(request.sha256), context)
        try:
            async for part in self._pace(parts(self._locate, request)):
                yield part
        except NotHere as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))


async def _read(place: Place | bytes, start: int) -> bytes:
    """PART bytes of a content, or its rest. Raises NotHere when its file has gone or become shorter."""
    if isinstance(place, bytes):
        return place[start : start + PART]
    return await asyncio.to_thread(_read_file, place, start, min(PART, place.size - start))


def _read_file(place: Place, start: int, size: int) -> bytes:
    try:
        with place.path.open("rb") as file:
            file.seek(place.offset + start)
            data = file.read(size)
    except OSError as error:
        raise NotHere() from error
    if len(data) < size:
        raise NotHere()
    return data


async def check_count(count: int, context: Context) -> None:
    """End a call that asks for too much."""
    if count > MOST_ASKED:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"ask for {MOST_ASKED} contents at most in one call")
