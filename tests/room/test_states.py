"""Requests to a hybrid model go on from snapshots of its recurrent state."""

import random

import pytest

from room.room import Room
from room.session import Session
from room.states import StateSlots
from tests.room.fakes import ask, expected, ready_room, run_all, text, told
from tests.room.test_cache import check_pages, pool_of
from tests.room.test_prefix import conversation

HYBRID = {"shape_options": {"hybrid": True}}


def check_slots(room: Room) -> None:
    """Every slot is free, a snapshot's, or a session's own."""
    slots = room.chains[0].cache.slots
    sessions = [*room.chains[0].sessions, *room.chains[0].leaving]
    own = [slot for session in sessions for slot in (session.slot, session.second) if slot] + [
        slot for session in sessions for _, slot in session.kept
    ]
    taken = [*slots._free, *own, *(snapshot.slot for snapshot in slots._kept)]
    assert sorted(taken) == list(range(1, slots.count + 1))


def test_the_snapshot_used_longest_ago_makes_way() -> None:
    slots = StateSlots(2)
    shelf: dict = {}
    for ids in ((1,), (2,)):
        slots.keep(slots.take(), shelf, ids)
    slots.pin(shelf[1,])
    slots.unpin(shelf[1,])
    assert slots.take() is not None
    assert list(shelf) == [(1,)]


def test_a_snapshot_that_is_read_stays() -> None:
    slots = StateSlots(1)
    shelf: dict = {}
    slots.keep(slots.take(), shelf, (1,))
    slots.pin(shelf[1,])
    assert slots.take() is None
    slots.unpin(shelf[1,])
    assert slots.take() == 1
    assert not shelf


def test_one_snapshot_of_the_same_tokens_is_enough() -> None:
    slots = StateSlots(2)
    shelf: dict = {}
    slots.keep(slots.take(), shelf, (1,))
    slots.keep(slots.take(), shelf, (1,))
    assert (len(slots._free), len(slots._kept)) == (1, 1)


def test_the_same_request_again_goes_on_from_its_first_landmark() -> None:
    room, made = ready_room(2, **HYBRID)
    for cached in (0, 95, 95, 95):
        session = ask(room, prompt=100, max_new=4)
        run_all(made)
        events = told(session)
        assert events[-1].usage.cached_tokens == cached
        assert text(events) == expected(session.job.prompt, 4)


def test_a_following_turn_computes_only_what_is_new() -> None:
    room, made = ready_room(2, **HYBRID)
    turn = list(range(1, 60))
    for _ in range(4):
        session = ask(room, prompt=turn, max_new=13)
        run_all(made)
        answer = text(told(session))
        turn = [*session.job.prompt, *answer, 5, 6, 7]
        follow = ask(room, prompt=turn, max_new=1)
        assert follow.cached == len(session.job.prompt) + len(answer) - 1
        run_all(made)
        assert text(told(follow)) == expected(turn, 1)


def test_a_changed_answer_leaves_the_prompt() -> None:
    room, made = ready_room(1, **HYBRID)
    first = ask(room, prompt=100, max_new=20)
    run_all(made)
    told(first)
    follow = ask(room, prompt=[*first.job.prompt, 3, 2, 1], max_new=4)
    assert follow.cached == 100
    run_all(made)
    assert text(told(follow)) == expected(follow.job.prompt, 4)


def test_without_a_slot_to_spare_there_are_no_snapshots_but_answers() -> None:
    room, made = ready_room(1, max_running=1, **HYBRID)
    room.chains[0].cache.slots = room.chains[0].cache.prefixes._slots = StateSlots(1)
    for _ in range(3):
        session = ask(room, prompt=40, max_new=4)
        run_all(made)
        events = told(session)
        assert text(events) == expected(session.job.prompt, 4)
        assert events[-1].usage.cached_tokens == 0, "the only snapshot's slot is the one to run in"


def test_snapshots_never_keep_a_request_from_running() -> None:
    room, made = ready_room(1, max_running=4, **HYBRID)
    room.chains[0].cache.slots = room.chains[0].cache.prefixes._slots = StateSlots(4)
    sessions = []
    for first in range(4):
        sessions.append(ask(room, prompt=100, max_new=50, first=first * 200))
        for _ in range(6):
            made[0].work()
        assert len(room.running) == first + 1
        assert not any(room.chains[0].cache.may_guess(session) for session in room.running), "that takes a slot too"
    run_all(made)
    for session in sessions:
        assert text(told(session)) == expected(session.job.prompt, 50)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_and_given_up_states_are_right_and_no_slot_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    room, made = pool_of(rng.randint(12, 40), rng.randint(1, 2), max_running=rng.randint(1, 4), hybrid=True)
    count = rng.choice([1, 4]) * room.config.max_running
    room.chains[0].cache.slots = room.chains[0].cache.prefixes._slots = StateSlots(count)
    before: list[list[int]] = []
    asked: list[Session] = []
    for _ in range(600):
        if rng.random() < 0.3 and len(room.line) < 4:
            prompt = conversation(rng, before)[: room.effective_ctx - 40]
            asked.append(ask(room, prompt=prompt, max_new=rng.randint(1, 40)))
        elif rng.random() < 0.1 and asked:
            room.close(asked.pop(rng.randrange(len(asked))))
        for peer in made[: rng.randint(0, 2)]:
            peer.work()
        check_pages(room)
        check_slots(room)
        for session in [session for session in asked if session.ended]:
            asked.remove(session)
            assert text(told(session)) == expected(session.job.prompt, session.job.max_new)
            before.append(session.tokens)
    for session in asked:
        room.close(session)
    run_all(made)
    check_slots(room)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages
