"""`pooled leave`: take this machine's peer out of its room, in good order."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import Failed

if TYPE_CHECKING:
    from peer.identity import RunningPeer

WITHIN = 40.0
"""Seconds to wait for the peer to end: it has half a minute to hand over."""


Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Which peer, where several run on this machine.")]


def own_peer(name: str | None) -> "tuple[str, RunningPeer]":
    """The peer of this user that runs here, by its name where there are several. Raises Failed."""
    from peer.identity import running_peers

    peers = running_peers()
    if not peers:
        raise Failed("no peer of yours runs on this machine")
    if name is None and len(peers) > 1:
        raise Failed(f"several peers run on this machine; name one: {_listed(peers)}")
    chosen = name or next(iter(peers))
    if chosen not in peers:
        raise Failed(f"no peer {chosen} of yours runs on this machine; there is {_listed(peers)}")
    return chosen, peers[chosen]


def _listed(peers: "dict[str, RunningPeer]") -> str:
    return ", ".join(f"{name} (in room {peer.room})" for name, peer in peers.items())


def leave(name: Name = None) -> None:
    """Take this machine's peer out of its room.

    Others take over its layers, then it ends: within half a minute, also where nobody can.

    \b
    Examples:
      pooled leave
      pooled leave attic
    """
    from peer.identity import ask_to_leave, wait_ended

    chosen, peer = own_peer(name)
    ask_to_leave(peer)
    if not wait_ended(chosen, WITHIN):
        raise Failed(f"{chosen} has not ended in {WITHIN:.0f} s; end process {peer.process.pid} yourself")
    print(f"{chosen} has left room {peer.room}")
