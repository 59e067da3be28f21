"""`pooled pause` and `pooled resume`: have this machine's peer rest, and serve again."""

from cli.leave import Name, own_peer


def pause(name: Name = None) -> None:
    """Have this machine's peer serve nothing until you resume it.

    Others take over its layers, as far as they can hold them; it stays in the room, with its layers loaded.

    \b
    Examples:
      pooled pause
      pooled pause attic
    """
    _ask(name, resting=True)


def resume(name: Name = None) -> None:
    """Have this machine's peer serve again.

    \b
    Examples:
      pooled resume
      pooled resume attic
    """
    _ask(name, resting=False)


def _ask(name: str | None, *, resting: bool) -> None:
    from peer.identity import ask_to_rest

    chosen, peer = own_peer(name)
    ask_to_rest(peer, resting)
    print(f"{chosen} {'rests once others have taken over' if resting else 'serves again'}")
