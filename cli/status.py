"""`pooled status`: what a room is doing now."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli import options
from cli.errors import failing
from cli.events import fields
from cli.knocking import admitted
from cli.loading import layers, progress
from cli.screen import printable
from protos import room_pb2
from protos.invite import Invite
from protos.progress import amount


def status(
    context: typer.Context,
    invite: options.InviteArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a room is doing.

    Its peers and their layers, the requests running and waiting, and its tokens per second.

    \b
    Examples:
      pooled status 'pooled://room.example:7070/ABC234#k=...&f=...'
      pooled status 'pooled://...' --json | jq .tokens_per_second
    """
    from bridge.errors import BridgeError

    with failing(BridgeError):
        state = asyncio.run(_state(invite))
    if as_json:
        print(json.dumps({**fields(state), "peers": [fields(peer) for peer in state.peers]}))
    else:
        _show(state, Console(highlight=False))


async def _state(invite: Invite) -> room_pb2.RoomState:
    from bridge.client import RoomClient

    invite = await admitted(invite, "client", None, lambda text: print(text, file=sys.stderr))
    async with await RoomClient.connect(invite, version=version("pooled"), asks=False) as room:
        return room.state


def _show(state: room_pb2.RoomState, console: Console) -> None:
    is_ready = "ready" if state.ready else f"not ready: {state.why}"
    for line in (
        f"Room {state.name}, {state.model} with a context of {state.ctx}: {is_ready}",
        f"{state.running} running, {state.waiting} waiting, {state.served} served",
        f"{state.tokens_per_second:.1f} tokens/s, {state.pages_free} of {state.pages} KV pages free",
        *_precision(state),
    ):
        console.print(printable(line), markup=False, soft_wrap=True)
    if state.peers:
        show_peers(state.peers, console)


def _precision(state: room_pb2.RoomState) -> Iterator[str]:
    """One line where the host has something kept in fewer bits than it comes in."""
    chosen = {"weights": state.quant, "keys and values": state.kv, "hidden states": state.wire}
    fewer = [f"{what} in {form}" for what, form in chosen.items() if form not in ("", "none", "auto")]
    if fewer:
        yield f"precision: {', '.join(fewer)}"


def show_peers(peers: Sequence[room_pb2.PeerState], console: Console) -> None:
    several = any(peer.chain > 1 for peer in peers)
    table = Table("peer", "state", "layers", "device", "weights", "lends", "uses", box=None, pad_edge=False)
    for peer in peers:
        what = peer.state
        if what == "loading":
            what = ", ".join(filter(None, (f"loading {peer.loaded:.0%}", progress(peer))))
        device = f"{peer.device} {peer.dtype}"
        held = f"{layers(peer)} of chain {peer.chain}" if several and peer.chain else layers(peer)
        cells = (peer.name, what, held, device, *map(_size, (peer.weight_bytes, peer.memory, peer.rss)))
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)
    for peer in peers:
        if peer.agreed or peer.differed:
            audited = f"{peer.name} was audited: {peer.agreed} agreed, {peer.differed} differed"
            console.print(printable(audited), markup=False, soft_wrap=True)
        if peer.with_it:
            change = f"{peer.with_it:.1f} tokens/s with {peer.name}, {peer.without_it:.1f} without it"
            console.print(printable(f"One answer should get about {change}"), markup=False, soft_wrap=True)


def _size(count: int) -> str:
    """Empty for 0: not known, or nothing yet."""
    return amount(count) if count else ""
