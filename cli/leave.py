"""`pooled leave`: take this machine's peer out of its room, in good order."""

from typing import Annotated

import typer

from cli.errors import Failed

WITHIN = 40.0
"""Seconds to wait for the peer to end: it has half a minute to hand over."""


def leave(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which peer, where several run on this machine.")
    ] = None,
) -> None:
    """Take this machine's peer out of its room.

    Others take over its layers, then it ends: within half a minute, also where nobody can.

    \b
    Examples:
      pooled leave
      pooled leave attic
    """
    from peer.identity import ask_to_leave, running_peers, wait_ended

    peers = running_peers()
    if not peers:
        raise Failed("no peer of yours runs on this machine")
    if name is None and len(peers) > 1:
        raise Failed(f"several peers run on this machine; name one: {', '.join(peers)}")
    chosen = name or next(iter(peers))
    if chosen not in peers:
        raise Failed(f"no peer {chosen} of yours runs on this machine; there is {', '.join(peers)}")
    process = peers[chosen]
    ask_to_leave(process)
    if not wait_ended(chosen, WITHIN):
        raise Failed(f"{chosen} has not ended in {WITHIN:.0f} s; end process {process.pid} yourself")
    print(f"{chosen} has left")
