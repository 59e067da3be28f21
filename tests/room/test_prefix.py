"""Pages are shared by prefix: what is computed once is not computed again, and is given back when pages run out."""

import random
from collections.abc import Iterator, Sequence

import pytest

from room.cache import LEAST_SHARED
from room.pages import PagePool, as_pages, as_runs, pages_for
from room.prefix import Node, PrefixTree
from room.session import Session
from room.states import StateSlots
from tests.room.fakes import FakePeer, ask, expected, ready_room, run_all, text, told


def filled(tree: PrefixTree, pool: PagePool, tokens: list[int]) -> list[int]:
    """Keep `tokens` in pages of their own and leave them behind unpinned; the pages."""
    pages = as_pages(pool.allocate(pages_for(len(tokens))) or [])
    tree.unpin(tree.adopt(tokens, pages, []))
    return pages


def nodes(tree: PrefixTree, node: Node | None = None, before: tuple[int, ...] = ()) -> Iterator[tuple[Node, list[int]]]:
    """Every node and all tokens up to its end."""
    for child in (node or tree._root).children.values():
        yield child, [*before, *child.ids]
        yield from nodes(tree, child, (*before, *child.ids))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def held(tree: PrefixTree, tokens: Sequence[int]) -> int:
    """How many of the first tokens are held, found the slow way."""
    return max((common(kept, tokens[:-1]) for _, kept in nodes(tree)), default=0)


def check(tree: PrefixTree) -> None:
    """What must always be true of a tree."""
    known = [node for node, _ in nodes(tree)]
    pages = [node.page for node in known]
    assert len(set(pages)) == len(pages) == tree._nodes
    assert tree.unpinned == sum(not node.pins for node in known)
    idle = [node for node in known if not node.pins and not node.children]
    assert sorted(idle, key=lambda node: -node.used) == tree._idle
    for node in known:
        assert node.parent is not None
        assert node.parent.order == sorted(node.parent.children)
        assert node.full or not node.children
        assert node.parent is tree._root or node.parent.pins >= max(node.pins, 0) or not node.pins


def test_every_token_that_is_held_matches_but_the_last() -> None:
    pool = PagePool(8)
    tree = PrefixTree(pool, StateSlots(0))
    tokens = list(range(60))
    pages = filled(tree, pool, tokens)
    everything = tree.find([*tokens, 1])
    assert [node.page for node in everything.path] == pages[:3]
    assert everything.partial is not None
    assert (everything.partial.page, everything.tokens, everything.length) == (pages[3], 12, 60)
    assert tree.find(tokens).length == 59
    assert tree.find([*tokens[:40], 999, 999]).length == 40
    assert tree.find([7, *tokens]).length == 0
    assert tree.find([0]).length == 0


def test_what_is_pinned_stays_and_the_least_recently_used_goes_first() -> None:
    pool = PagePool(6)
    tree = PrefixTree(pool, StateSlots(0))
    old, new = list(range(32)), list(range(100, 132))
    filled(tree, pool, old)
    filled(tree, pool, new)
    again = tree.find([*old, 0]).path
    tree.pin(again)
    tree.unpin(again)
    pinned = tree.find([*new[:16], 0]).path
    tree.pin(pinned)
    tree.evict(1)
    assert tree.find([*new, 0]).length == 16, "the unpinned leaf of the older path is gone"
    assert tree.find([*old, 0]).length == 32
    tree.evict(9)
    assert tree.find([*new, 0]).length == 16
    tree.unpin(pinned)
    tree.evict(9)
    assert pool.free == 6


def test_a_page_whose_tokens_are_kept_already_is_not_kept_twice() -> None:
    pool = PagePool(12)
    tree = PrefixTree(pool, StateSlots(0))
    tokens = list(range(40))
    first = filled(tree, pool, tokens)
    for length in (40, 35, 32):
        path = tree.adopt(tokens[:length], as_pages(pool.allocate(3) or []), [])
        assert [node.page for node in path] == first[:2], "the third page is not full: its owner may write on in it"


def test_a_page_that_was_not_full_holds_more_later() -> None:
    pool = PagePool(8)
    tree = PrefixTree(pool, StateSlots(0))
    tokens = list(range(40))
    pages = as_pages(pool.allocate(3) or [])
    path = tree.adopt(tokens[:20], pages, [])
    assert tree.find(tokens).length == 20
    path = tree.adopt(tokens, pages, path)
    assert [node.page for node in path] == pages
    assert tree.find([*tokens, 1]).length == 40
    assert tree.unpinned == 0


def test_a_tree_agrees_with_a_slow_one() -> None:
    rng = random.Random(3)
    pool = PagePool(40)
    tree = PrefixTree(pool, StateSlots(0))
    pinned: list[list[Node]] = []
    for _ in range(1500):
        tokens = [rng.randint(0, 2) if rng.random() < 0.1 else at % 7 for at in range(rng.randint(1, 90))]
        found = tree.find(tokens)
        assert found.length == held(tree, tokens)
        kind = rng.random()
        if kind < 0.3:
            tree.pin(found.path)
            pinned.append(found.path)
        elif kind < 0.5 and pinned:
            tree.unpin(pinned.pop(rng.randrange(len(pinned))))
        elif kind < 0.7:
            tree.evict(rng.randint(1, 5))
        else:
            count = pages_for(len(tokens))
            tree.evict(count - pool.free)
            runs = pool.allocate(count)
            if runs is not None:
                pages = as_pages(runs)
                path = tree.adopt(tokens, pages, [])
                pool.release(as_runs(sorted(set(pages) - {node.page for node in path})))
                pinned.append(path)
        check(tree)
        assert pool.free + tree._nodes == pool.pages
    while pinned:
        tree.unpin(pinned.pop())
    tree.evict(100)
    assert pool.free == 40


def conversation(rng: random.Random, before: list[list[int]]) -> list[int]:
    """A prompt: often one that goes on from an earlier answer, or parts from it somewhere."""
    if before and rng.random() < 0.7:
        kept = rng.choice(before)
        return [
            *kept[: rng.choice([len(kept), rng.randint(1, len(kept))])],
            *rng.choices(range(50), k=rng.randint(1, 20)),
        ]
    return rng.choices(range(50), k=rng.randint(1, 120))


def test_conversations_of_many_turns_are_answered_right_and_their_cached_tokens_are_what_is_held() -> None:
    rng = random.Random(8)
    room, made = ready_room(2, ctx=256, max_running=3)
    before: list[list[int]] = []
    running: list[Session] = []
    for _ in range(200):
        tree = room.chains[0].cache.prefixes
        if rng.random() < 0.6 and len(room.running) < 3:
            prompt = conversation(rng, before)[:200]
            most = held(tree, prompt)
            session = ask(room, prompt=prompt, max_new=rng.randint(1, 40))
            assert session.cached == (most if most >= LEAST_SHARED else 0)
            running.append(session)
        elif rng.random() < 0.2 and running:
            room.close(running.pop(rng.randrange(len(running))))
        for peer in made[: rng.randint(0, 2)]:
            peer.work()
        check(tree)
        for session in [session for session in running if session.ended]:
            running.remove(session)
            assert text(told(session)) == expected(session.job.prompt, session.job.max_new)
            before.append(session.tokens)
    for session in running:
        room.close(session)
    run_all(made)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


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
        live = [set(session.pages) - {node.page for node in session.path} for session in room.chains[0].sessions]
        assert sum(map(len, live)) == len(set().union(*live)), "private pages are private"
    for session in waiting:
        run_all(made)
        if not session.outbox._error:
            assert text(told(session)) == expected(session.job.prompt, session.job.max_new)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_P98_the_same_request_again_is_mostly_cached() -> None:
    room, made = ready_room(2)
    usages = []
    for _ in range(2):
        session = ask(room, prompt=100, max_new=4)
        run_all(made)
        events = told(session)
        usages.append(events[-1].usage.cached_tokens)
        assert text(events) == expected(session.job.prompt, 4)
    assert usages == [0, 99]
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
    assert events[-1].usage.cached_tokens == 99


def computed(made: list[FakePeer]) -> int:
    """Tokens that the first peer computes until nothing moves."""
    tokens = 0
    while frames := made[0].frames():
        tokens += sum(len(segment.ids) for frame in frames for segment in frame.segments)
        for frame in frames:
            made[0].room.arrived(made[0].member, made[0].compute(frame))
    return tokens


@pytest.mark.parametrize("hybrid", [False, True])
def test_equal_prompts_that_arrive_together_are_computed_once(hybrid: bool) -> None:
    room, made = ready_room(1, shape_options={"hybrid": hybrid})
    sessions = [ask(room, prompt=1000, max_new=3) for _ in range(5)]
    other = ask(room, prompt=100, max_new=3, first=2)
    assert room.running == [sessions[0], other], "nobody waits for what it does not need"
    assert computed(made) < 1200
    for session in [*sessions, other]:
        assert text(told(session)) == expected(session.job.prompt, 3)
    assert [session.cached for session in sessions] == [0, *[995 if hybrid else 999] * 4]


def test_a_prompt_does_not_wait_long_for_a_little() -> None:
    room, _ = ready_room(1)
    ask(room, prompt=4000, max_new=3)
    short = ask(room, prompt=100, max_new=3)
    assert short in room.running


@pytest.mark.parametrize("frames_back", [0, 1])
def test_who_waits_for_a_prompt_that_is_given_up_goes_on_itself(frames_back: int) -> None:
    room, made = ready_room(1)
    first, second = ask(room, prompt=2000), ask(room, prompt=2000)
    for _ in range(frames_back):
        made[0].work()
    assert second in room.line
    room.close(first)
    run_all(made)
    assert text(told(second)) == expected(second.job.prompt, 5)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


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
    assert events[-1].usage.cached_tokens == 127
    assert text(events) == expected(turn, 4)


def test_conversations_side_by_side_stay_in_one_run_each() -> None:
    room, made = ready_room(1)
    turns = [list(range(at * 100, at * 100 + 60)) for at in range(4)]
    for _ in range(3):
        sessions = [ask(room, prompt=turn, max_new=20) for turn in turns]
        while any(not session.ended for session in sessions):
            made[0].work()
            assert all(len(session.runs) <= 1 for session in sessions)
        turns = [[*session.tokens, 1, 2, 3] for session in sessions]


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
