"""Follows a room and tells a person how far its peers have loaded, and whether it answers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import version

import grpc

from cli.errors import Failed
from cli.screen import Screen
from protos import dial, room_pb2
from protos.invite import Invite
from protos.progress import Meter
from protos.room_pb2_grpc import RoomStub
from protos.tunnel import reached

RoomState = room_pb2.RoomState

LOADING = "loading"
"""Why a room is not ready while its peers load."""


async def room_states(invite: Invite) -> AsyncGenerator[RoomState, None]:
    """The room's state now and after each change. Raises Failed when the room ends."""
    async with reached(invite) as near, await dial.open_channel(near) as channel:
        call = RoomStub(channel).Watch(room_pb2.WatchRequest(), metadata=dial.credentials(invite, version("pooled")))
        try:
            async for state in call:
                yield state
        except grpc.aio.AioRpcError as error:
            raise Failed(f"lost the room: {dial.refusal(error).message}") from error
    raise Failed("the room has closed")


async def loaded(invite: Invite, screen: Screen) -> None:
    """Wait while the room's peers load, and show how far they are. Raises Failed when the room ends."""
    teller = Teller(screen)
    async with aclosing(room_states(invite)) as states:
        async for state in states:
            teller.tell(state)
            if state.why_code != LOADING:
                break
    screen.settle()


class Teller:
    """Tells each change once, however often the same state comes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._told = ""
        self._loading = False

    def tell_loading(self, state: RoomState) -> None:
        """Show how far each peer is, from when the first one loads until all are done."""
        self._loading = self._loading or any(peer.state == "loading" for peer in state.peers)
        if self._loading:
            for peer in state.peers:
                if peer.end:
                    self._screen.loading(peer.name, peer.loaded, layers(peer), progress(peer))
        self._loading = self._loading and not state.ready

    def tell(self, state: RoomState) -> None:
        self.tell_loading(state)
        sentence = self._sentence(state)
        if sentence and sentence != self._told:
            self._screen.settle()
            self._screen.say(sentence)
            self._told = sentence

    def _sentence(self, state: RoomState) -> str:
        """What holds until something changes; nothing while peers load, which the screen shows by itself."""
        if state.ready:
            holders = ", ".join(f"{peer.name} ({layers(peer)})" for peer in state.peers if peer.end)
            return f"Ready: {state.model} with a context of {state.ctx} tokens, on {holders}."
        return "" if state.why_code == LOADING else f"Not ready: {state.why}."


def tell_reading(screen: Screen, what: str, meter: Meter) -> None:
    """Show how far reading a model's weights is."""
    screen.loading(what, meter.share, pace=pace(meter.rate, meter.seconds_left))
    if meter.share >= 1:
        screen.settle()


def progress(peer: room_pb2.PeerState) -> str:
    """The pace of a peer that loads."""
    return pace(peer.bytes_per_second, peer.seconds_left) if peer.bytes_per_second else ""


def pace(rate: float, seconds_left: float | None) -> str:
    """How fast bytes come and how long the rest takes, in words; empty while nothing has come."""
    if seconds_left is None:
        return ""
    minutes, seconds = divmod(round(seconds_left), 60)
    left = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{rate / 1e6:.1f} MB/s, {left} left"


def layers(peer: room_pb2.PeerState) -> str:
    """The slice a peer holds, in words; empty for none."""
    if peer.reserve_end:
        return f"(layers {peer.reserve_start} to {peer.reserve_end - 1})"
    return f"layers {peer.start} to {peer.end - 1}" if peer.end else ""
