"""Sessions get pages as they grow. When pages run out the latest admitted make way, and lose nothing but time."""

import random

import pytest

from room.cache import Cache
from room.deal import SNAPSHOTS_PER_SESSION, USABLE
from room.errors import ContextLengthExceeded
from room.pages import PAGE
from room.room import MADE_WAY, Room
from room.session import Session
from tests.room.fakes import CountingAnswer, FakePeer, ask, expected, job, ready_room, run_all, text, told
from tests.room.test_prefix import nodes


def pool_of(pages: int, peers: int = 1, *, hybrid: bool = False, max_running: int = 32) -> tuple[Room, list[FakePeer]]:
    """A room of one or two peers whose chain has that many pages, for contexts of all of them."""
    weights, page = 6 * 4 * 1000, 4 * 16 * 4 * PAGE
    states = 4 * 8 * 4 * (1 + SNAPSHOTS_PER_SESSION) * max_running if hybrid else 0
    memory = int((weights + states + page * (pages + 0.5)) / peers / USABLE)
    room, made = ready_room(
        peers, memory=memory, ctx=pages * PAGE, max_running=max_running, shape_options={"hybrid": hybrid}
    )
    assert room.chains[0].cache.pool.pages == pages
    return room, made


def check_pages(room: Room) -> None:
    """Every page is free, in the tree, or one session's own."""
    cache = room.chains[0].cache
    sessions = [*room.chains[0].sessions, *room.chains[0].leaving]
    own = [page for session in sessions for page in session.pages[len(session.path) :]]
    shared = {node.page for session in sessions for node in session.path}
    assert len(set(own)) == len(own)
    assert not set(own) & shared
    assert len(own) + cache.prefixes._nodes + cache.pool.free == cache.pool.pages
    for session in sessions:
        assert [node.page for node in session.path] == session.pages[: len(session.path)]


def made_way(events: list) -> int:
    return sum(event.notice.text == MADE_WAY for event in events)


def test_a_request_takes_pages_for_what_it_has_not_for_what_it_may_get() -> None:
    room, made = pool_of(20)
    session = ask(room, prompt=100, max_new=200)
    assert len(session.pages) == 8, "its prompt, and one page ahead"
    sizes = set()
    while not session.ended:
        made[0].work()
        sizes.add(len(session.pages))
        assert len(session.runs) <= 1
    assert max(sizes) == 19
    assert text(told(session)) == expected(session.job.prompt, 200)


def test_a_pool_of_64_pages_and_12_long_requests() -> None:
    room, made = pool_of(64)
    sessions = [ask(room, prompt=100, max_new=300, first=at) for at in range(12)]
    times = 0
    while made[0].work():
        check_pages(room)
    for session in sessions:
        events = told(session)
        times += made_way(events)
        assert text(events) == expected(session.job.prompt, 300)
    assert times > 0
    assert room.chains[0].cache.free_pages == 64


def test_who_was_admitted_first_never_makes_way() -> None:
    room, made = pool_of(24)
    sessions = [ask(room, prompt=30, max_new=300, first=at * 50) for at in range(6)]
    run_all(made)
    events = [told(session) for session in sessions]
    assert made_way(events[0]) == 0
    assert sum(map(made_way, events)) > 0
    for session, said in zip(sessions, events, strict=True):
        assert text(said) == expected(session.job.prompt, 300)


def test_what_made_way_is_found_again_while_nobody_wants_its_pages() -> None:
    room, (peer,) = pool_of(24)
    first, second = ask(room, prompt=100, max_new=200), ask(room, prompt=150, max_new=100, first=300)
    while second not in room.line:
        peer.work()
    had = len(second.tokens)
    room.close(first)
    starts = []
    while not starts:  # what was on its way of the first one comes back before
        frames = peer.frames()
        starts = [each.start for frame in frames for each in frame.segments if each.session == second.number]
        for frame in frames:
            room.arrived(peer.member, peer.compute(frame))
    assert starts[0] > had - 2 * PAGE
    run_all([peer])
    assert text(told(second)) == expected(second.job.prompt, 100)


def test_who_made_way_can_be_given_up() -> None:
    room, (peer,) = pool_of(24)
    first, second = ask(room, prompt=100, max_new=200), ask(room, prompt=150, max_new=100, first=300)
    while second not in room.line:
        peer.work()
    room.close(second)
    run_all([peer])
    assert text(told(first)) == expected(first.job.prompt, 200)
    assert room.chains[0].cache.free_pages == 24


def test_who_made_way_goes_on_when_the_chain_breaks_meanwhile() -> None:
    room, (peer,) = pool_of(24)
    sessions = [ask(room, prompt=100, max_new=200), ask(room, prompt=150, max_new=100, first=300)]
    while sessions[1] not in room.line:
        peer.work()
    room.leave(peer.member, "test")
    other = FakePeer(room, "other", memory=peer.hello.memory)
    other.load()
    run_all([other])
    for session in sessions:
        assert text(told(session)) == expected(session.job.prompt, session.job.max_new)


def test_a_request_that_a_later_chain_cannot_hold_is_told_so() -> None:
    room, (peer,) = pool_of(60)
    session = ask(room, prompt=500, max_new=400)
    peer.work()
    room.leave(peer.member, "test")
    small = FakePeer(room, "small", memory=peer.hello.memory)
    small.load(pages=50)
    assert isinstance(session.outbox._error, ContextLengthExceeded)
    assert "800" in str(session.outbox._error)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_pool_all_finish_and_no_page_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    room, made = pool_of(rng.randint(6, 60), rng.randint(1, 2), max_running=rng.randint(1, 12))
    most = room.effective_ctx
    waiting: list[Session] = []
    for _ in range(rng.randint(5, 25)):
        prompt = rng.randint(1, most - 1)
        first = rng.choice([1, 1, rng.randint(2, 900)])
        waiting.append(ask(room, prompt=prompt, max_new=rng.randint(1, min(most - prompt, 80)), first=first))
        for peer in made[: rng.randint(0, 2)]:
            peer.work()
        if rng.random() < 0.1:
            room.close(waiting.pop(rng.randrange(len(waiting))))
        check_pages(room)
    while any(peer.work() for peer in made):
        check_pages(room)
    for session in waiting:
        assert text(told(session)) == expected(session.job.prompt, session.job.max_new)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages
    assert (room.running, len(room.line), room.chains[0].leaving) == ([], 0, [])


class Pages:
    """What peers would hold: the token at every position of every page."""

    def __init__(self, count: int) -> None:
        self.tokens = [-1] * count * PAGE

    def write(self, cache: Cache, session: Session, count: int) -> None:
        """A frame of the session's next `count` tokens."""
        copy = cache.copy(session)
        if copy is not None:
            source, target = copy.source * PAGE, copy.target * PAGE
            self.tokens[target : target + PAGE] = self.tokens[source : source + PAGE]
        for at in range(session.sent, session.sent + count):
            self.tokens[session.pages[at // PAGE] * PAGE + at % PAGE] = session.tokens[at]
        session.sent += count

    def check(self, cache: Cache, sessions: list[Session]) -> None:
        own = [page for session in sessions for page in session.pages[len(session.path) :]]
        kept = list(nodes(cache.prefixes))
        used = [*own, *(node.page for node, _ in kept)]
        assert len(set(used)) == len(used), "a page has two owners"
        assert len(used) + cache.pool.free == cache.pool.pages
        for session in sessions:
            held = [self.tokens[page * PAGE + at] for page in session.pages for at in range(PAGE)]
            if not session.untouched:
                assert held[: session.sent] == session.tokens[: session.sent]
        for node, _ in kept:
            assert tuple(self.tokens[node.page * PAGE :][: len(node.ids)]) == node.ids


@pytest.mark.parametrize("seed", range(20))
def test_whatever_sessions_do_each_page_has_one_owner_and_holds_what_it_says(seed: int) -> None:
    """Few different tokens, so that sessions say the same and end at the same token, in any order."""
    rng, cache, pages = random.Random(seed), Cache(24, 0, 8), Pages(24)
    running: list[Session] = []
    said: list[list[int]] = [[]]
    for number in range(1000):
        if len(running) < 4 and rng.random() < 0.1:
            begin = rng.choice(said)
            prompt = [*begin[: rng.randrange(len(begin) + 1)][:100], *rng.choices((1, 2), k=rng.randint(1, 12))]
            twins = [Session(number, job(prompt, 300), CountingAnswer(300)) for _ in range(rng.choice((1, 2)))]
            running += [session for session in twins if cache.enter(session)]
        elif running and rng.random() < 0.08:
            session = running.pop(rng.randrange(len(running)))
            said = [*said[-9:], session.tokens[:]]
            cache.leave(session)
        elif running:
            session = min(rng.choices(running, k=2), key=lambda each: each.sent)
            if not cache.grow(session):
                running.remove(session)
                cache.leave(session)
                continue
            pages.write(cache, session, session.unsent if session.decoding else rng.randint(1, session.unsent))
            if not session.unsent:
                if not session.decoding:
                    session.decoding = True
                    cache.share(session)
                session.tokens.append(1 + sum(session.tokens[-3:]) % 2)
        pages.check(cache, running)
    for session in running:
        cache.leave(session)
    cache.forget()
    assert cache.pool.free == 24
