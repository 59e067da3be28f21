"""A draft model beside a room: its guesses make no difference but to the number of frames, and nobody waits long."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from protos import room_pb2
from room.drafting import BEHIND, MOST, PATIENCE
from room.drafts import AUTO, OFF, DraftIndex
from room.room import Room
from room.session import Session
from room.speculation import worth_drafting
from tests.room.fakes import VOCAB, FakePeer, ask, drain, expected, next_id, ready_room, text, told
from tests.room.pipeline import Pipeline

Guess = Callable[[Sequence[int]], int]


def right(ids: Sequence[int]) -> int:
    """What the fake model draws."""
    return next_id(ids, len(ids))


def wrong(ids: Sequence[int]) -> int:
    return (right(ids) + 1) % VOCAB


def mostly(ids: Sequence[int]) -> int:
    return right(ids) if len(ids) % 4 else wrong(ids)


class FakeDrafter:
    """Guesses what it is asked, with nothing but what it was sent."""

    def __init__(self, room: Room, guess: Guess) -> None:
        self.room, self._guess = room, guess
        self.outbox = room.drafting.begin()
        self.held: dict[int, list[int]] = {}
        self.guessed = 0
        self.most_read = 0
        """Tokens that somebody waited for to be read."""

    def work(self) -> int:
        wanted = list(drain(self.outbox))
        for each in wanted:
            self.answer(each)
        return len(wanted)

    def answer(self, wanted: room_pb2.DraftWanted) -> None:
        if wanted.over:
            self.held.pop(wanted.session)
            return
        ids = self.held.setdefault(wanted.session, [])
        assert wanted.start <= len(ids)
        ids[wanted.start :] = wanted.ids
        length = len(ids)
        for _ in range(wanted.count):
            ids.append(self._guess(ids))
        self.guessed += wanted.count
        self.most_read = max(self.most_read, len(wanted.ids) if wanted.count else 0)
        self.room.drafted(room_pb2.Drafted(session=wanted.session, length=length, ids=ids[length:]))


def run(peers: Sequence[FakePeer], drafter: FakeDrafter) -> int:
    """Until nothing moves; frames computed by the first peer."""
    frames = 0
    while True:
        done = [*(peer.work() for peer in peers), drafter.work()]
        frames += done[0]
        if not any(done):
            return frames


def until_it_waits(session: Session, peer: FakePeer, drafter: FakeDrafter) -> room_pb2.DraftWanted:
    """Let a session be read and get as far as its first guesses, which are not given; what is wanted for it."""
    while not session.awaits_guesses:
        peer.work()
        for wanted in drain(drafter.outbox):
            if wanted.session == session.number and wanted.count:
                return wanted
            drafter.answer(wanted)
    raise AssertionError("it waits for what nobody was asked")


def check(sessions: Sequence[Session]) -> None:
    for session in sessions:
        assert text(told(session)) == expected(session.job.prompt, session.job.max_new)


@pytest.mark.parametrize(("guess", "most"), [(right, 0.5), (mostly, 0.9), (wrong, 3)])
@pytest.mark.parametrize("hybrid", [False, True])
def test_answers_are_those_without_guesses(guess: Guess, most: float, hybrid: bool) -> None:
    room, peers = ready_room(2, speculate=6, shape_options={"hybrid": hybrid})
    drafter = FakeDrafter(room, guess)
    sessions = [ask(room, prompt=25 + at, max_new=40 + at, first=40 * at) for at in range(6)]
    frames = run(peers, drafter)
    check(sessions)
    assert frames < most * 46
    assert drafter.guessed > 0
    assert drafter.held == {}, "it forgets who has ended"
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_an_answer_waits_alone_for_its_guesses_and_not_for_long() -> None:
    room, peers = ready_room(1, speculate=6)
    slow = FakeDrafter(room, right)
    first = ask(room, prompt=20, max_new=30)
    wanted = until_it_waits(first, peers[0], slow)
    other = ask(room, prompt=10, max_new=30, first=500)
    before = len(first.tokens)
    for _ in range(6):
        peers[0].work()
    assert (len(first.tokens), len(other.tokens) > 10) == (before, True)
    room.draft_due(first.number, before)
    for _ in range(2):
        peers[0].work()
    assert len(first.tokens) > before
    slow.answer(wanted)
    run(peers, slow)
    check([first, other])


def test_guesses_that_come_too_late_are_of_no_use_and_do_no_harm() -> None:
    room, peers = ready_room(1, speculate=6)
    slow = FakeDrafter(room, right)
    session = ask(room, prompt=20, max_new=30)
    while not session.ended:
        peers[0].work()
        for wanted in drain(slow.outbox):
            if wanted.count:
                room.draft_due(wanted.session, wanted.start + len(wanted.ids))
                peers[0].work()
            slow.answer(wanted)
    check([session])


@pytest.mark.parametrize("back", [False, True])
def test_a_draft_model_that_goes_holds_nobody_up(back: bool) -> None:
    room, peers = ready_room(1, speculate=6)
    drafter = FakeDrafter(room, right)
    sessions = [ask(room, prompt=20, max_new=30, first=50 * at) for at in range(3)]
    until_it_waits(sessions[0], peers[0], drafter)
    room.drafter_left(drafter.outbox)
    run(peers, FakeDrafter(room, mostly) if back else drafter)
    check(sessions)


def test_what_it_has_no_room_for_is_not_asked_again() -> None:
    room, peers = ready_room(1, speculate=6)
    drafter = FakeDrafter(room, right)
    first, other = (ask(room, prompt=20, max_new=60, first=first) for first in (1, 500))
    wanted = until_it_waits(first, peers[0], drafter)
    room.drafted(room_pb2.Drafted(session=first.number, length=wanted.start + len(wanted.ids)))
    drafter.held.pop(first.number)
    drafter.held[first.number] = []  # it would notice what goes on from tokens that it does not have
    run(peers, drafter)
    check([first, other])
    assert drafter.guessed > 50, "for the other"


def test_nobody_waits_for_it_to_read_what_was_said_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftIndex, "draft", lambda index, most: [] if len(index) > 100 else [3] * most)
    room, peers = ready_room(1, speculate=6)
    drafter = FakeDrafter(room, right)
    session = ask(room, prompt=30, max_new=120)
    run(peers, drafter)
    check([session])
    assert drafter.guessed > 30
    assert drafter.most_read <= BEHIND


def test_nobody_waits_for_guesses_before_its_prompt_is_read() -> None:
    room, peers = ready_room(1, speculate=6)
    drafter = FakeDrafter(room, right)
    session = ask(room, prompt=5, max_new=30)
    (wanted,) = drain(drafter.outbox)
    assert (wanted.count, session.awaits_guesses) == (0, False)
    drafter.answer(wanted)
    run(peers, drafter)
    check([session])


def test_tokens_beyond_the_vocabulary_are_no_guesses() -> None:
    room, peers = ready_room(1, speculate=6)
    drafter = FakeDrafter(room, lambda ids: VOCAB + 5)
    session = ask(room, prompt=20, max_new=10)
    run(peers, drafter)
    check([session])


def test_given_up_while_it_waits() -> None:
    room, peers = ready_room(1, speculate=6)
    drafter = FakeDrafter(room, right)
    session = ask(room, prompt=20, max_new=30)
    until_it_waits(session, peers[0], drafter)
    room.close(session)
    run(peers, drafter)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


# ---------------------------------------------------------------- whether it pays


def flat(seconds: float, row: float, guesses: int) -> float:
    return seconds + row * (1 + guesses)


def test_behind_slow_links_guesses_of_a_quick_model_pay() -> None:
    assert worth_drafting(partial(flat, 0.15, 0.001), lambda count: 0.005 * count, 0.7, MOST) >= 4


def test_where_drafting_takes_as_long_as_an_own_token_it_does_not_pay() -> None:
    assert worth_drafting(partial(flat, 0.02, 0.001), lambda count: 0.02 * count, 0.7, MOST) == 0


def test_a_model_that_is_never_right_does_not_pay() -> None:
    assert worth_drafting(partial(flat, 0.15, 0.001), lambda count: 0.005 * count, 0.03, MOST) == 0


def test_nothing_is_asked_before_anything_is_measured() -> None:
    assert worth_drafting(lambda guesses: 0.0, lambda count: 0.0, 0.7, MOST) == 0


class Drafted(Pipeline):
    """With a draft model beside the room that takes `each` seconds for a guess, one after the other."""

    def __init__(self, guess: Guess, each: float, row: float, link: float, stages: int = 1) -> None:
        super().__init__(**peers(row, stages), link=link, straight=False, speculate=AUTO, max_running=8)
        self.drafter, self._each = FakeDrafter(self.room, guess), each
        self._idle_at = 0.0

    def _collect(self) -> None:
        super()._collect()
        for wanted in drain(self.drafter.outbox):
            self._idle_at = max(self._idle_at, self.clock.now) + self._each * wanted.count
            self._at(self._idle_at - self.clock.now, partial(self.drafter.answer, wanted))
            if wanted.count:
                length = wanted.start + len(wanted.ids)
                self._at(PATIENCE, partial(self.room.draft_due, wanted.session, length))


def peers(row: float, stages: int = 1) -> dict[str, Any]:
    """On one processor, which need 10 ms a frame and `row` a row together; the last does not reach the first."""
    return {"times": [lambda rows: (0.010 + row * rows) / stages] * stages, "machines": ["m"] * stages}


def play(pipeline: Pipeline) -> float:
    """Seconds that four answers take."""
    sessions = [ask(pipeline.room, prompt=30, max_new=100, first=at) for at in range(0, 120, 30)]
    took = pipeline.run(lambda: not pipeline.room.running)
    check(sessions)
    return took


@pytest.mark.parametrize(("each", "row", "link"), [(0.005, 0.001, 0.05), (0.01, 0.005, 0.02), (0.02, 0.01, 0.0)])
def test_a_model_that_is_never_right_is_soon_asked_no_more(each: float, row: float, link: float) -> None:
    plain = play(Pipeline(**peers(row), link=link, speculate=OFF, max_running=8))
    drafted = Drafted(wrong, each, row, link)
    assert play(drafted) < 1.25 * plain
    assert drafted.drafter.guessed < 400, "of 400 tokens"


@pytest.mark.parametrize("each", [0.06, 0.2, 0.5])
@pytest.mark.parametrize("link", [0.05, 0.2])
def test_a_model_that_takes_too_long_is_soon_asked_no_more(each: float, link: float) -> None:
    plain = play(Pipeline(**peers(0.001), link=link, speculate=OFF, max_running=8))
    assert play(Drafted(right, each, 0.001, link)) < 1.1 * plain


def test_behind_slow_links_a_model_that_is_often_right_brings_answers_on() -> None:
    plain = play(Pipeline(**peers(0.001, stages=2), link=0.05, straight=False, speculate=OFF, max_running=8))
    assert play(Drafted(mostly, 0.005, 0.001, 0.05, stages=2)) < 0.6 * plain
