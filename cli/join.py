"""`pooled join`: lend this machine to a room."""

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import options, values
from cli.errors import failing, wrong_use
from cli.events import print_event
from cli.keys import pressed_keys
from cli.knocking import admitted
from cli.loading import pace
from cli.screen import Screen, showing
from cli.stopping import run_until_stopped
from protos.invite import Invite
from protos.outbox import Outbox

if TYPE_CHECKING:
    from peer.config import PeerConfig
    from peer.control import Control
    from peer.events import PeerEvent, Watch

PAUSE = "p"
"""The key that has a peer rest, and serve again."""


@dataclass(frozen=True)
class Lent:
    """What a peer is told to lend, for the command lines of peers that other commands start."""

    name: str | None = None
    memory: values.Memory | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    models: Path | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        given = {name: value for name, value in vars(self).items() if value is not None}
        return ("join", "--json", *(f"--{name}={value}" for name, value in given.items()))


def local_model(model: str) -> Path | None:
    """For peers on the room's machine: where the model is, unless it is an id of the hub."""
    path = Path(model).expanduser()
    return path.absolute() if path.exists() else None


def join(
    context: typer.Context,
    invite: options.InviteArgument,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Shown in the room. Default: the host name.")] = None,
    memory: options.Memory = None,
    device: options.Device = None,
    dtype: options.DType = None,
    threads: options.Threads = None,
    listen: Annotated[
        str | None,
        typer.Option(
            parser=values.address,
            metavar="HOST:PORT",
            help="Where other peers dial in. Default: a free port of all this machine's addresses.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            parser=values.address,
            metavar="HOST:PORT",
            help="What other peers are told to dial, where it differs from --listen.",
        ),
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Where this machine may have the model already. May be given several times."),
    ] = None,
    cache: options.Cache = None,
    cache_size: Annotated[
        values.Memory | None,
        typer.Option(parser=values.size, metavar="SIZE", help="What fetched weights may take there. Default: 100GB."),
    ] = None,
    max_upload: Annotated[
        int | None,
        typer.Option(
            parser=values.rate,
            metavar="SIZE",
            help="Bytes a second that it sends at most, such as 2MB. Default: as many as the line takes.",
        ),
    ] = None,
    events: options.Events = False,
) -> None:
    """Lend this machine to a room.

    Runs until Ctrl-C or 'pooled leave': others take over its layers, then it goes, after half a minute at most. Ctrl-C
    once more ends it at once. The room deals it a slice of the model's layers, which it loads and serves. It comes back
    by itself when the connection breaks. Of the weights it fetches its own slice alone, where it is in no folder of
    --models, from other peers, the room or the hub, and keeps it for the next time.
    In a terminal, p has it rest and serve again (elsewhere: 'pooled pause').

    \b
    Examples:
      pooled join 'pooled://room.example:7070/ABC234#k=...&f=...'
      pooled join 'pooled://...' --memory 12GB --device cuda:0
      pooled join 'pooled://...' --models ~/models --cache-size 40GB
      pooled join 'pooled://...' --listen 0.0.0.0:7071 --advertise home.example:7071
      POOLED_INVITE='pooled://...' pooled join --name attic
    """
    from peer.config import PeerConfig
    from peer.control import Control
    from peer.errors import InvalidOption, PeerError
    from peer.threads import settle_waiting

    settle_waiting()
    with showing(context.obj, silent=events) as screen, failing(PeerError), wrong_use(InvalidOption):
        config = PeerConfig(
            name=name,
            memory=_bytes(memory, device),
            device=device,
            dtype=dtype,
            threads=threads,
            listen=listen,
            advertise=advertise,
            models=tuple(models or ()),
            cache=cache,
            cache_size=cache_size.size if cache_size else None,
            max_upload=max_upload,
        )
        watch = _print_event if events else partial(_tell, screen)
        control = Control()
        work = _controlled(_stay(config, invite, watch, control), control)
        run_until_stopped(work, control.leave.set)


async def _controlled(work: Coroutine[Any, Any, None], control: "Control") -> None:
    """Do the work, while signals ('pooled pause', 'pooled resume') and a key say whether to rest."""
    from peer.identity import REST, SERVE

    loop = asyncio.get_running_loop()
    for number, resting in ((REST, True), (SERVE, False)):
        loop.add_signal_handler(number, control.rest, resting)
    with pressed_keys(sys.stdin.fileno()) as keys:
        pressing = asyncio.create_task(_follow(keys, control))
        try:
            await work
        finally:
            pressing.cancel()


async def _follow(keys: Outbox[str], control: "Control") -> None:
    async for key in keys:
        if key == PAUSE:
            control.rest(not control.resting)


async def _stay(config: "PeerConfig", invite: Invite, watch: "Watch", control: "Control") -> None:
    from peer.app import run_peer
    from peer.events import PeerEvent

    asking = asyncio.create_task(admitted(invite, "peer", config.name, lambda text: watch(PeerEvent("asking", text))))
    leaving = asyncio.create_task(control.leave.wait())
    try:
        await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            await run_peer(config, await asking, watch=watch, control=control)
    finally:
        asking.cancel()
        leaving.cancel()


def _bytes(memory: values.Memory | None, device: str | None) -> int | None:
    if memory is None:
        return None
    if not memory.share:
        return memory.size
    from peer.memory import lendable, pick_devices

    return int(sum(lendable(each).bytes for each in pick_devices(device)) * memory.share)


def _print_event(event: "PeerEvent") -> None:
    print_event(**{name.replace("kind", "event"): value for name, value in asdict(event).items() if value is not None})


def _tell(screen: Screen, event: "PeerEvent") -> None:
    if event.kind == "loading":
        screen.loading("this peer", event.done, event.text, pace(event.rate, event.seconds_left))
    else:
        screen.settle()
        screen.say(event.text)
