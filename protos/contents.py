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


class ContentService(weights_pb2_grpc.WeightsServicer):
    """Gives what `locate` knows of to callers whom `let_in` does not end the call of."""

    def __init__(self, locate: Locate, let_in: Callable[[Context], Awaitable[object]], pace: Pace = _at_once) -> None:
        self._locate = locate
        self._let_in = let_in
        self._pace = pace

    async def Have(self, request: weights_pb2.HaveRequest, context: Context) -> weights_pb2.HaveReply:
        await self._let_in(context)
        await _check_count(len(request.sha256), context)
        return weights_pb2.HaveReply(have=[self._locate(sha256.hex()) is not None for sha256 in request.sha256])

    async def Read(self, request: weights_pb2.ReadRequest, context: Context) -> AsyncIterator[weights_pb2.Part]:
        await self._let_in(context)
        await _check_count(len(request.sha256), context)
        async for part in self._pace(self._parts(request, context)):
            yield part

    async def _parts(self, request: weights_pb2.ReadRequest, context: Context) -> AsyncIterator[weights_pb2.Part]:
        for number, sha256 in enumerate(request.sha256):
            place = self._locate(sha256.hex())
            if isinstance(place, bytes):
                for start in range(0, len(place), PART):
                    yield weights_pb2.Part(content=number, data=place[start : start + PART])
            elif place is not None:
                for start in range(0, place.size, PART):
                    data = await asyncio.to_thread(_read, place, start)
                    if data is None:
                        await _not_here(context)
                        return
                    yield weights_pb2.Part(content=number, data=data)
            else:
                await _not_here(context)


def _read(place: Place, start: int) -> bytes | None:
    """PART bytes of a content, or its rest; None when its file has gone or become shorter."""
    size = min(PART, place.size - start)
    try:
        with place.path.open("rb") as file:
            file.seek(place.offset + start)
            data = file.read(size)
    except OSError:
        return None
    return data if len(data) == size else None


async def _check_count(count: int, context: Context) -> None:
    if count > MOST_ASKED:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"ask for {MOST_ASKED} contents at most in one call")


async def _not_here(context: Context) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "this content is not here")
