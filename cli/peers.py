"""`pooled peers` and `pooled redeal`: the peers of a room, for its host."""

import json
from typing import Annotated

import typer
from rich.console import Console

from cli.events import fields
from cli.hosting import RoomCode, ask_room, hand_on
from cli.screen import printable
from cli.status import show_peers
from protos import room_pb2

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As 'pooled peers' lists it.")]


@app.callback(invoke_without_command=True)
def peers(
    context: typer.Context,
    room: RoomCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the peers of your room, and who waits to be let in; allow, deny, pause, resume or remove one.

    Works on the machine where the room runs, for the user who runs it.

    \b
    Examples:
      pooled peers
      pooled peers --json | jq .name
      pooled peers allow attic
      pooled peers pause attic
    """
    if context.invoked_subcommand is not None:
        hand_on(context, room, as_json)
        return
    reply = ask_room(room, lambda host, key: host.Peers(room_pb2.PeersRequest(), metadata=key))
    if as_json:
        for each in (*reply.peers, *reply.knocks):
            print(json.dumps(fields(each)))
        return
    if reply.peers:
        show_peers(reply.peers, Console(highlight=False))
    else:
        print("no peers")
    for knock in reply.knocks:
        print(printable(f"{knock.name} waits to be let in as a {knock.side}, from {knock.address}"))


@app.command()
def pause(name: Name, room: RoomCode = None) -> None:
    """Deal a peer nothing until you resume it.

    Others take over the layers it holds; answers go on.
    """
    ask_room(room, lambda host, key: host.PausePeer(room_pb2.PeerRequest(name=name), metadata=key))
    print(f"paused {name}")


@app.command()
def resume(name: Name, room: RoomCode = None) -> None:
    """Deal to a peer again, or let one back in that you removed."""
    ask_room(room, lambda host, key: host.ResumePeer(room_pb2.PeerRequest(name=name), metadata=key))
    print(f"resumed {name}")


@app.command()
def remove(name: Name, room: RoomCode = None) -> None:
    """Put a peer out at once.

    It is not let in again until you resume it.
    """
    ask_room(room, lambda host, key: host.RemovePeer(room_pb2.PeerRequest(name=name), metadata=key))
    print(f"removed {name}")


@app.command()
def allow(name: Name, room: RoomCode = None) -> None:
    """Let in a peer or client that came without a key and waits."""
    ask_room(room, lambda host, key: host.Allow(room_pb2.PeerRequest(name=name), metadata=key))
    print(f"allowed {name}")


@app.command()
def deny(name: Name, room: RoomCode = None) -> None:
    """Turn away a peer or client that waits."""
    ask_room(room, lambda host, key: host.Deny(room_pb2.PeerRequest(name=name), metadata=key))
    print(f"denied {name}")


def redeal(room: RoomCode = None) -> None:
    """Deal the model's layers anew to all peers that are in your room.

    Answers pause while the peers load, and go on.

    \b
    Examples:
      pooled redeal
    """
    ask_room(room, lambda host, key: host.Redeal(room_pb2.RedealRequest(), metadata=key))
    print("dealt anew")
