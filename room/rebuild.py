"""How sessions go on in a chain in which peers were replaced: what the others hold of them is not computed again.

Only the replaced stages lack a session's KV. Frames that rebuild it start at the first stage, since each stage needs
what the one before it gives, and end at the last stage that was replaced. Pages that several sessions share go along
once. Recurrent states cannot run twice, so hybrid models begin anew.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

from room.pages import PAGE
from room.prefix import Node
from room.schedule import FramePlan
from room.session import Session


def can_go_on(session: Session) -> bool:
    """Whether it is known which of the session's tokens every stage of its former chain held."""
    return session.whole > 0 and not session.spoilt and session.source is None


def interrupt(sessions: Sequence[Session], flying: Iterable[FramePlan]) -> None:
    """Note how many tokens of each session are held by all stages that were not replaced so far.

    Of the frames that are lost on their way it is not known how far they came.
    """
    on_way: Counter[Session] = Counter()
    rebuilding = {session for session in sessions if session.rebuilding}
    for plan in flying:
        for share in plan.shares:
            on_way[share.session] += share.tokens
            if plan.rebuilds:
                rebuilding.add(share.session)
    for session in sessions:
        if session not in rebuilding:
            session.whole = min(session.sent - on_way[session], len(session.tokens) - 1)
        session.sent = session.entered = session.read = session.in_flight = 0
        session.decoding, session.strays = False, 0


def share_out(sessions: Sequence[Session]) -> None:
    """Let each session that has not begun to rebuild its KV begin behind the pages that those before it rebuild."""
    rebuilt: set[Node] = set()
    for session in sessions:
        if session.rebuilding and session.untouched and not session.in_flight:
            shared = sum(1 for _ in takewhile(lambda node: node.full and node in rebuilt, session.path))
            session.sent = session.entered = min(shared * PAGE, session.whole)
        rebuilt.update(session.path)
