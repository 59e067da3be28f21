"""Tells the host who asks to be let in, and takes the answer as a key press where there is a terminal."""

import sys
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

import anyio
import grpc

from cli.events import fields, print_event
from cli.keys import is_ours, pressed_keys
from cli.screen import Screen, as_argument
from protos import dial, room_pb2
from protos.host_key import HostKey
from protos.room_pb2_grpc import HostStub

if TYPE_CHECKING:
    from protos.room_pb2_grpc import HostAsyncStub

ALLOW, DENY = "a", "d"


class Gate:
    """One room's. With `events` it tells programs, who answer by `pooled peers allow` and `deny`."""

    def __init__(self, host_key: HostKey, screen: Screen, *, events: bool) -> None:
        self._host_key = host_key
        self._metadata = host_key.credentials(version("pooled"))
        self._screen = screen
        self._events = events
        self._waiting: list[room_pb2.KnockState] = []

    async def run(self) -> None:
        """Until cancelled, or until the room ends."""
        with pressed_keys(_stdin()) as keys:
            async with await dial.open_channel(self._host_key.invite) as channel, anyio.create_task_group() as group:
                host = HostStub(channel)
                group.start_soon(self._watch, host)
                async for key in keys:
                    if key in (ALLOW, DENY) and self._waiting:
                        await self._answer(host, key, self._waiting[0].name)

    async def _watch(self, host: "HostAsyncStub") -> None:
        with suppress(grpc.aio.AioRpcError):  # the room ends, which others tell
            async for reply in host.Knocks(room_pb2.KnocksRequest(), metadata=self._metadata):
                known = {knock.name for knock in self._waiting}
                self._waiting = list(reply.knocks)
                for knock in self._waiting:
                    if knock.name not in known:
                        self._tell(knock)

    async def _answer(self, host: "HostAsyncStub", key: str, name: str) -> None:
        call = host.Allow if key == ALLOW else host.Deny
        try:
            await call(room_pb2.PeerRequest(name=name), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:  # it has gone, or another answered
            self._screen.say(dial.refusal(error).message)

    def _tell(self, knock: room_pb2.KnockState) -> None:
        if self._events:
            print_event("asking", **fields(knock))
            return
        press = f"press {ALLOW} to allow it, {DENY} to deny it, or run: " if is_ours(_stdin()) else ""
        who = f"{knock.name} asks to come in as a {knock.side}, from {knock.address}"
        self._screen.say(f"{who}: {press}pooled peers allow {as_argument(knock.name)}")


def _stdin() -> int:
    """Its descriptor; -1 where there is none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return -1
