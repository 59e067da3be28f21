"""A peer: joins a room, loads what it is dealt, and computes frames until it is cancelled."""

import asyncio
import logging
import platform
import random
from importlib.metadata import version as installed
from typing import TYPE_CHECKING

from peer.config import PeerConfig
from peer.control import Control
from peer.errors import RoomLost, RoomUnreachable
from peer.events import PeerEvent, Watch
from peer.holder import Holder
from peer.identity import Identity, claim
from peer.membership import Lent, Membership, check_invite
from peer.pacing import Pacer
from peer.threads import usable
from peer.turns import Turns
from protos import room_pb2
from protos.invite import Invite
from protos.machine import machine_id
from protos.tunnel import TunnelFailed, reached

if TYPE_CHECKING:
    from peer.supply import Supply

log = logging.getLogger("pooled.peer")

RECONNECT_FOR = 600.0
"""Seconds a peer tries to come back to a room it was in."""

LEAVE_WITHIN = 30.0
"""Seconds a peer waits at most for others to take over."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds between two tries, doubling."""

MAX_NAME = 64


async def run_peer(config: PeerConfig, invite: Invite, *, watch: Watch, control: Control) -> None:
    """Serve in a room until cancelled, or until `control` says leave and others have taken over (LEAVE_WITHIN at most).

    Comes back by itself, with its slice still loaded, when the room restarts or the way to it breaks.
    Raises RoomUnreachable (nobody answers), RoomRefused (wrong key, unknown code, other protocol), or another
    PeerError (a device that is not there, ...).
    """
    try:
        async with reached(invite) as near:
            await _stay(Stay(config, near, watch, control), watch, control)
    except TunnelFailed as error:
        raise RoomUnreachable(str(error)) from error


async def _stay(stay: "Stay", watch: Watch, control: Control) -> None:
    staying, asked = asyncio.create_task(stay.run()), asyncio.create_task(control.leave.wait())
    following = asyncio.create_task(stay.follow())
    try:
        await asyncio.wait({staying, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not staying.done() and stay.leave():
            watch(PeerEvent("leaving", "handing over to others; once more to leave at once"))
            await asyncio.wait({staying}, timeout=LEAVE_WITHIN)
        if staying.done():
            await staying
    finally:
        for task in (staying, asked, following):
            task.cancel()
        await asyncio.gather(staying, asked, following, return_exceptions=True)


class Stay:
    """A peer's time in a room: one membership after the other."""

    def __init__(self, config: PeerConfig, invite: Invite, watch: Watch, control: Control) -> None:
        self._config = config
        self._invite = invite
        self._watch = watch
        self._control = control
        self._membership: Membership | None = None

    async def run(self) -> None:
        """Until the room lets it go. Raises PeerError."""
        config, name = self._config, (self._config.name or platform.node() or "peer")[:MAX_NAME]
        with claim(name, self._invite.code) as identity:
            await self._check_invite(identity)
            lent = await asyncio.to_thread(_what_to_lend, config, name, identity)
            supply = await asyncio.to_thread(_supply, config)
            hint = "; --memory changes that" if config.memory is None else ""
            self._watch(PeerEvent("lending", f"lending {lent.offer}{hint}"))
            holder = Holder(lent, supply)
            try:
                await self._come_back(lent, holder, supply)
            finally:
                holder.stop()
                supply.close()

    async def _check_invite(self, identity: Identity) -> None:
        try:
            await check_invite(self._invite, installed("pooled"), identity.id)
        except RoomLost as lost:
            raise RoomUnreachable(f"{lost}; is the room running, and is the invite the newest?") from lost

    def leave(self) -> bool:
        """Ask to be let go; False when there is no room to ask."""
        if self._membership is None or not self._membership.welcomed:
            return False
        self._membership.leave()
        return True

    async def follow(self) -> None:
        """Tell the room whenever the volunteer wants to rest or to serve again, until cancelled."""
        while True:
            await self._control.changed()
            resting = self._control.resting
            self._watch(PeerEvent("resting", "resting; others take over" if resting else "ready to serve again"))
            if self._membership is not None:
                self._membership.rest(resting)

    async def _come_back(self, lent: Lent, holder: Holder, supply: "Supply") -> None:
        """One membership after the other, with growing pauses while the room is away."""
        loop = asyncio.get_running_loop()
        lost_at = loop.time()
        pause = SHORTEST_PAUSE
        while True:
            self._membership = membership = Membership(lent, holder, supply, self._invite, self._watch)
            membership.rest(self._control.resting)
            try:
                await membership.run()
            except RoomLost as lost:
                self._membership = None
                if membership.leaving:
                    return
                if membership.welcomed:
                    lost_at, pause = loop.time(), SHORTEST_PAUSE
                if loop.time() - lost_at > RECONNECT_FOR:
                    raise RoomUnreachable(f"{lost}; it did not come back in {RECONNECT_FOR / 60:.0f} minutes") from lost
                self._watch(PeerEvent("reconnecting", f"{lost}; trying again"))
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(pause * 2, LONGEST_PAUSE)


def _supply(config: PeerConfig) -> "Supply":
    from peer.copies import Copies
    from peer.store import LIMIT, Store, default_folder
    from peer.supply import Supply

    store = Store(config.cache or default_folder(), LIMIT if config.cache_size is None else config.cache_size)
    store.check()
    return Supply(store, Copies(config.models))


def _what_to_lend(config: PeerConfig, name: str, identity: Identity) -> Lent:
    """Look at the machine. Takes seconds: it imports torch."""
    import torch
    import transformers

    from peer.memory import offered

    cores = usable(torch.get_num_threads())
    torch.set_num_threads(config.threads or cores)
    offer = offered(config.device, config.dtype, config.memory)
    hello = room_pb2.Hello(
        name=name,
        device=offer.devices,
        dtype=str(offer.dtype).removeprefix("torch."),
        memory=offer.bytes,
        machine=machine_id(),
        torch_version=torch.__version__,
        transformers_version=transformers.__version__,
        forwarded=config.advertise is not None,
    )
    return Lent(
        hello,
        offer.shares,
        offer.dtype,
        offer.text,
        installed("pooled"),
        identity,
        config.listen,
        config.advertise,
        Pacer(config.max_upload),
        Turns.among(torch.get_num_threads(), cores) if offer.shares[0].device.type == "cpu" else Turns(None),
    )
