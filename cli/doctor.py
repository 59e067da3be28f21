"""`pooled doctor`: what works between this machine and a room, and what to do about what does not."""

import asyncio
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli import options
from cli.checks import KEY, Check, Figures, Result, check_way, installed
from cli.errors import wrong_use
from cli.extras import HOST, install
from cli.screen import printable

LENDING = "lending"
_STYLES = {Result.OK: "green", Result.FAILED: "red", Result.NOT_CHECKED: "dim"}


class Side(StrEnum):
    PEER = "peer"
    CLIENT = "client"


def doctor(
    context: typer.Context,
    invite: options.InviteArgument,
    side: Annotated[
        Side | None, typer.Option("--as", help="What this machine is to be in the room. Default: what its key is for.")
    ] = None,
    device: options.Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each check, one a line.")] = False,
) -> None:
    """Find out what works between this machine and a room.

    Which way leads to it, whether it is the room of the invite, whether versions fit and the key opens, how quick the
    way is, and what this machine would lend. Joins nothing and asks the host nothing. The exit code is 0 when all that
    is needed works, and 1 otherwise.

    \b
    Examples:
      pooled doctor 'pooled://room.example:7070/ABC234#k=...&f=...'
      pooled doctor 'pooled://...' --as peer
      pooled doctor 'pooled://...' --json | jq 'select(.result == "failed").text'
    """
    checks = asyncio.run(check_way(invite, side))
    checks.append(check_lending(device, needed=_is_to_lend(checks, side)))
    if as_json:
        for check in checks:
            said = {"check": check.name, "result": check.result, "text": check.text, "needed": check.needed}
            print(json.dumps({**said, **check.figures}))
    else:
        show(checks, Console(highlight=False))
    if any(check.needed and check.result is Result.FAILED for check in checks):
        raise typer.Exit(1)


def _is_to_lend(checks: Sequence[Check], side: Side | None) -> bool:
    """Unless told, and where the key does not say either, it is."""
    said = next(check.figures.get("side") for check in checks if check.name == KEY)
    return (side or said or Side.PEER) == Side.PEER


def check_lending(device: str | None, *, needed: bool) -> Check:
    """What `pooled join` would lend here. Takes seconds: it imports torch."""
    missing = [package for package in ("torch", "transformers", "cryptography") if installed(package) is None]
    if missing:
        text = f"this machine can serve as a bridge (pooled serve) but not lend: {' and '.join(missing)} not installed"
        return Check(LENDING, Result.FAILED, f"{text}; to lend, in the clone of Pooled: {install(HOST)}", {}, needed)
    from peer.errors import DeviceUnavailable, InvalidOption

    try:
        from peer.memory import offered

        with wrong_use(InvalidOption):
            offer = offered(device)
    except DeviceUnavailable as error:
        return Check(LENDING, Result.FAILED, str(error), {}, needed)
    except (ImportError, OSError) as error:  # a library of torch's own is missing, or for another machine
        text = f"torch is installed but cannot be loaded ({type(error).__name__}); install it anew"
        return Check(LENDING, Result.FAILED, text, {}, needed)
    figures: Figures = {"device": offer.devices, "memory": offer.bytes, "reason": offer.reason}
    if not offer.bytes:
        text = f"nothing is left to lend: {offer.text}; close what uses the memory, or lend some with --memory"
        return Check(LENDING, Result.FAILED, text, figures, needed)
    return Check(LENDING, Result.OK, f"{offer.text}; --memory of pooled join changes that", figures, needed)


def show(checks: Sequence[Check], console: Console) -> None:
    """A table for people."""
    table = Table("check", "result", "", box=None, pad_edge=False)
    for check in checks:
        result = f"[{_STYLES[check.result]}]{check.result}[/]"
        table.add_row(check.name, result, escape(printable(check.text)))
    console.print(table)
