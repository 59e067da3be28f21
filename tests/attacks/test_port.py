"""Calls over which gRPC's own server dies: here they end, and nobody else notices."""

import asyncio
import secrets

import pytest

from protos import dial, room_pb2
from tests.attacks import http2
from tests.attacks.rig import VERSION, guarded
from tests.room.fakes import open_room

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/pooled.v1.Room/\udcb1", "/" + "\udcff" * 5000, "", "/pooled.v1.Room/Nothing"])
async def test_a_method_that_is_none_ends_its_own_call_alone(path: str) -> None:
    async with guarded(open_room()) as room:
        old = await room.stub()
        watching = old.Watch(room_pb2.WatchRequest(), metadata=dial.credentials(room["clients"], VERSION))
        assert await watching.read()
        for _ in range(20):
            reader, writer = await http2.connect(room.invite.port)
            writer.write(http2.call(path, (), secrets.token_bytes(20)))
            assert await asyncio.wait_for(http2.ended(reader), 10)
            writer.transport.abort()
        for stub in (old, await room.stub()):
            metadata = dial.credentials(room["peers"], VERSION)
            assert len((await stub.Echo(room_pb2.EchoRequest(wanted=3), metadata=metadata)).padding) == 3
        assert not watching.done()
        watching.cancel()
