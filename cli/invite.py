"""`pooled invite`: the invites of a room, for its host."""

import json
import re
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.events import fields
from cli.hosting import RoomCode, ask_room
from cli.screen import printable
from protos import room_pb2

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def lifetime(text: str) -> int:
    """Seconds from "90s", "30m", "24h" or "7d"."""
    match = re.fullmatch(r"(\d+)([smhd])", text.strip().lower())
    if match is None or not int(match[1]):
        raise typer.BadParameter(f"{text!r} is not a time such as 30m, 24h or 7d")
    return int(match[1]) * _UNITS[match[2]]


Expires = Annotated[
    int | None, typer.Option(parser=lifetime, metavar="TIME", help="30m, 24h, 7d: nobody new later. Default: for ever.")
]
Uses = Annotated[
    int | None, typer.Option(min=1, metavar="N", show_default=False, help="How many it lets in. Default: any number.")
]
GivenName = Annotated[str, typer.Option("--name", metavar="NAME", show_default=False, help="To list and revoke it by.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="As 'pooled invite list' shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def invites() -> None:
    """Make, list and revoke the invites of your room.

    Works on the machine where the room runs, for the user who runs it.

    \b
    Examples:
      pooled invite peer --name attic --uses 1
      pooled invite client --expires 24h
      pooled invite list
      pooled invite revoke attic
    """


@app.command()
def peer(
    expires: Expires = None, uses: Uses = None, name: GivenName = "", room: RoomCode = None, as_json: AsJson = False
) -> None:
    """Print an invite for volunteers, for 'pooled join'."""
    _make("peer", expires, uses, name, room, as_json)


@app.command()
def client(
    expires: Expires = None, uses: Uses = None, name: GivenName = "", room: RoomCode = None, as_json: AsJson = False
) -> None:
    """Print an invite for those who may ask, for 'pooled serve', 'chat' and 'status'."""
    _make("client", expires, uses, name, room, as_json)


@app.command(name="list")
def list_(room: RoomCode = None, as_json: AsJson = False) -> None:
    """List invites: for whom they are, who came in by them, and whether they still let anybody in."""
    reply = ask_room(room, lambda host, key: host.Invites(room_pb2.InvitesRequest(), metadata=key))
    if as_json:
        for invite in reply.invites:
            print(json.dumps(fields(invite)))
    else:
        _show(list(reply.invites), Console(highlight=False))


@app.command()
def revoke(name: Name, room: RoomCode = None) -> None:
    """Close an invite and put out who came in by it.

    Its peers leave the room at once; its clients' requests end with an error.
    """
    ask_room(room, lambda host, key: host.RevokeInvite(room_pb2.InviteRequest(name=name), metadata=key))
    print(f"revoked {name}")


def _make(side: str, expires: int | None, uses: int | None, name: str, room: str | None, as_json: bool) -> None:
    wanted = room_pb2.NewInviteRequest(side=side, name=name, lifetime=expires or 0, uses=uses or 0)
    made = ask_room(room, lambda host, key: host.NewInvite(wanted, metadata=key))
    if as_json:
        print(json.dumps({"name": made.name, "invites": list(made.invites)}))
    else:
        print("\n".join(made.invites))


def _show(invites: list[room_pb2.InviteState], console: Console) -> None:
    table = Table("invite", "for", "state", "came in", "inside now", "until", box=None, pad_edge=False)
    for each in invites:
        came = f"{each.guests} of {each.uses}" if each.uses else str(each.guests)
        until = datetime.fromtimestamp(each.expires).strftime("%Y-%m-%d %H:%M") if each.expires else ""
        cells = (each.name, each.side, each.state, came, str(each.inside), until)
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)
