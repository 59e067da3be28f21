"""Calls over which gRPC's own server dies: here they end, and nobody else notices."""

import asyncio
import secrets
import struct
from dataclasses import replace

import pytest

from protos import dial, room_pb2
from tests.attacks import http2
from tests.attacks.rig import VERSION, guarded
from tests.room.fakes import open_room

pytestmark = pytest.mark.anyio

BEGUN = struct.pack(">?I", False, 60 << 20) + bytes(1000)
"""Of a message of 60 MiB."""


@pytest.mark.parametrize("path", ["/pooled.v1.Room/\udcb1", "/" + "\udcff" * 5000, "", "/pooled.v1.Room/Nothing"])
async def test_a_method_that_is_none_ends_its_own_call_alone(path: str) -> None:
    async with guarded(open_room()) as room:
        old = await room.stub()
        watching = old.Watch(room_pb2.WatchRequest(), metadata=dial.credentials(room["clients"], VERSION))
        assert await watching.read()
        for _ in range(20):
            reader, writer = await http2.connect(room.invite.port)
            writer.write(http2.call(path, (), secrets.token_bytes(20)))
            assert await asyncio.wait_for(http2.ended(reader), 60)
            writer.transport.abort()
        for stub in (old, await room.stub()):
            metadata = dial.credentials(room["peers"], VERSION)
            assert len((await stub.Echo(room_pb2.EchoRequest(wanted=3), metadata=metadata)).padding) == 3
        assert not watching.done()
        watching.cancel()


@pytest.mark.parametrize("key", ["", "guess"])
@pytest.mark.parametrize("method", ["Room/Generate", "Room/Watch", "Room/Holders", "Host/NewInvite", "Weights/Have"])
async def test_what_a_stranger_sends_is_not_waited_for(method: str, key: str) -> None:
    """gRPC's own server takes all of a request, 64 MiB and three times over, before its servicer hears of the call."""
    async with guarded(open_room()) as room:
        reader, writer = await http2.connect(room.invite.port)
        metadata = dial.credentials(replace(room.invite, key=key), VERSION)
        writer.write(http2.call(f"/pooled.v1.{method}", metadata, BEGUN))
        assert await asyncio.wait_for(http2.ended(reader), 10)
        writer.transport.abort()


async def test_what_a_member_sends_is() -> None:
    async with guarded(open_room()) as room:
        reader, writer = await http2.connect(room.invite.port)
        writer.write(http2.call("/pooled.v1.Room/Generate", dial.credentials(room["clients"], VERSION), BEGUN))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http2.ended(reader), 0.5)
        writer.transport.abort()
