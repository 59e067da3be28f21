"""Pages are shared by prefix: what is computed once is not computed again, and is given back when pages run out."""

import random

from room.pages import PAGE, PagePool, as_pages
from room.prefix import PrefixTree
from tests.room.fakes import ask, expected, ready_room, run_all, text, told


def filled(tree: PrefixTree, pool: PagePool, tokens: list[int]) -> list[int]:
    """Keep `tokens` in pages of their own and leave them behind unpinned; the pages."""
    pages = as_pages(pool.allocate(len(tokens) // PAGE) or [])
    tree.unpin(tree.adopt(tokens, pages))
    return pages


def test_only_full_pages_match_and_the_last_token_is_left() -> None:
    pool = PagePool(8)
    tree = PrefixTree(pool)
    tokens = list(range(64))
    pages = filled(tree, pool, tokens)
    assert [node.page for node in tree.match(tokens)] == pages[:3]
    assert [node.page for node in tree.match([*tokens, 1])] == pages
    assert [node.page for node in tree.match([*tokens[:40], 999, 999])] == pages[:2]
    assert tree.match([7, *tokens]) == []


def test_what_is_pinned_stays_and_the_least_recently_used_goes_first() -> None:
    pool = PagePool(6)
    tree = PrefixTree(pool)
    old, new = list(range(32)), list(range(100, 132))
    filled(tree, pool, old)
    filled(tree, pool, new)
    tree.unpin(tree.match([*old, 0]))  # used again
    pinned = tree.match([*new[:16], 0])
    tree.evict(1)
    assert len(tree.match([*new, 0])) == 1, "the unpinned leaf of the older path"
    assert len(tree.match([*old, 0])) == 2
    assert pinned[0].pins == 2
    tree.unpin(pinned)
    assert pool.free == 3


def test_a_page_whose_tokens_are_kept_already_stays_the_callers() -> None:
    pool = PagePool(8)
    tree = PrefixTree(pool)
    tokens = list(range(32))
    first = filled(tree, pool, tokens)
    mine = as_pages(pool.allocate(2) or [])
    path = tree.adopt(tokens, mine)
    assert [node.page for node in path] == first
    assert tree.unpinned == 0


def test_no_page_is_lost_or_held_twice() -> None:
    rng = random.Random(1)
    room, made = ready_room(1, ctx=256, max_running=3)
    waiting = []
    for _ in range(120):
        kind = rng.random()
        if kind < 0.6:
            waiting.append(
                ask(room, prompt=rng.randint(1, 200), max_new=rng.randint(1, 40), first=rng.choice([1, 1, 500]))
            )
        elif kind < 0.8 and waiting:
            room.close(waiting.pop(rng.randrange(len(waiting))))
        made[0].work()
        live = [set(session.pages) - {node.page for node in session.path} for session in room.chain.sessions]
        assert sum(map(len, live)) == len(set().union(*live)), "private pages are private"
    for session in waiting:
        run_all(made)
        if not session.outbox._error:
            assert text(told(session)) == expected(session.job.prompt, session.job.max_new)
    assert room.chain.free_pages == room.chain.pool.pages


def test_P98_the_same_request_again_is_mostly_cached() -> None:
    room, made = ready_room(2)
    usages = []
    for _ in range(2):
        session = ask(room, prompt=100, max_new=4)
        run_all(made)
        events = told(session)
        usages.append(events[-1].usage.cached_tokens)
        assert text(events) == expected(session.job.prompt, 4)
    assert usages == [0, 96]
    other = ask(room, prompt=100, max_new=4, first=7)
    run_all(made)
    assert told(other)[-1].usage.cached_tokens == 0


def test_running_requests_share_a_prefix_too() -> None:
    room, made = ready_room(1)
    first = ask(room, prompt=100, max_new=50)
    for _ in range(3):
        made[0].work()
    second = ask(room, prompt=100, max_new=5)
    assert set(first.pages) & set(second.pages)
    room.close(first)
    run_all(made)
    events = told(second)
    assert text(events) == expected(second.job.prompt, 5)
    assert events[-1].usage.cached_tokens == 96


def test_a_following_turn_gets_the_pages_behind() -> None:
    """Attention over consecutive pages needs no copy."""
    room, made = ready_room(1)
    first = ask(room, prompt=100, max_new=28)
    run_all(made)
    turn = [*first.job.prompt, *text(told(first)), 5, 6, 7]
    follow = ask(room, prompt=turn, max_new=4)
    assert len(follow.runs) == 1
    run_all(made)
    events = told(follow)
    assert events[-1].usage.cached_tokens == 112
    assert text(events) == expected(turn, 4)


def test_P99_a_new_chain_has_no_caches() -> None:
    room, (first, second) = ready_room(2)
    session = ask(room, prompt=100)
    run_all([first, second])
    told(session)
    room.leave(second.member, "test")
    first.load()
    again = ask(room, prompt=100)
    run_all([first])
    assert told(again)[-1].usage.cached_tokens == 0


def test_what_failed_is_not_kept() -> None:
    from protos import peer_pb2

    room, (peer,) = ready_room(1)
    ask(room, prompt=100)
    frame = next(message.frame for message in peer.take() if message.HasField("frame"))
    fault = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="x")
    room.arrived(peer.member, peer_pb2.FromPeer(fault=fault))
    again = ask(room, prompt=100)
    run_all([peer])
    assert told(again)[-1].usage.cached_tokens == 0


def test_a_hybrid_model_reuses_nothing_yet() -> None:
    room, (peer,) = ready_room(1, shape_options={"hybrid": True})
    for _ in range(2):
        session = ask(room, prompt=100)
        run_all([peer])
        assert told(session)[-1].usage.cached_tokens == 0
