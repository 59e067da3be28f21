"""The gRPC servers that rooms and peers listen with."""

from typing import cast

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

from protos.dial import SERVER_OPTIONS


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """Ends calls of methods that are not registered, unread.

    gRPC's own decodes the method's name of such a call in the one loop that takes calls, and the loop dies when the
    name is not UTF-8: whoever reached the port could shut it. The core finds registered methods by their bytes.
    """

    async def _request_call(self) -> None:
        while True:  # a call is cancelled when nobody holds its state
            await super()._request_call()


class _Server(_server.Server):
    def __init__(self) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Calls(self._loop, None, (), (), tuple(SERVER_OPTIONS), None)


def new_server() -> grpc.aio.Server:
    """A server for generated services, with the options that links of ours need. Unknown methods end as CANCELLED."""
    return cast(grpc.aio.Server, _Server())
