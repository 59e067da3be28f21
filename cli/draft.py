"""`pooled draft`: what `pooled host --draft` starts, a draft model in a process of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options
from cli.errors import failing, wrong_use
from cli.events import print_event
from cli.hosting import open_room
from cli.stopping import run_until_stopped

if TYPE_CHECKING:
    from peer.events import PeerEvent


def draft(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A directory or a GGUF file.")],
    room: Annotated[str, typer.Option("--room", metavar="CODE", help="Which room of this machine.")],
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Guess how a room's answers go on. Started by 'pooled host --draft'."""
    from peer.drafter_app import DrafterConfig, run_drafter
    from peer.errors import InvalidOption, PeerError
    from peer.threads import settle_waiting

    settle_waiting()
    with failing(PeerError), wrong_use(InvalidOption):
        config = DrafterConfig(str(model), device=device, threads=threads)
        run_until_stopped(run_drafter(config, open_room(room), _print_event))


def _print_event(event: "PeerEvent") -> None:
    print_event(event.kind, text=event.text)


def draft_command(model: str, device: str | None, threads: int | None) -> tuple[str, ...]:
    """The arguments that start it, but for the room's code."""
    given = {"device": device, "threads": threads}
    return ("draft", model, *(f"--{name}={value}" for name, value in given.items() if value is not None))
