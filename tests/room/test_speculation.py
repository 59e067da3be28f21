"""Guessing ahead changes what it costs, never what comes; and it is left where it does not pay."""

from collections.abc import Callable, Sequence

import pytest

from protos import room_pb2
from protos.lanes import DECODE
from room.costs import Costs
from room.drafts import AUTO, OFF
from room.room import Room
from room.schedule import FramePlan, Share
from room.session import Session
from room.speculation import extended
from tests.room import fakes
from tests.room.fakes import CountingAnswer, ask, job, next_id, ready_room, run_all, text, told
from tests.room.pipeline import Pipeline
from tests.room.test_states import check_slots


def copying(ids: Sequence[int], end: int) -> int:
    """Mostly repeats what stood seven tokens before, now and then something else: guesses are right and wrong."""
    drawn = next_id(ids[max(0, end - 9) :], min(end, 9))
    return drawn if drawn % 5 == 0 else ids[max(0, end - 7)]


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "next_id", copying)


def answers(speculate: int, prompts: int = 6, **options: object) -> tuple[list[list[int]], int, Room]:
    room, peers = ready_room(2, speculate=speculate, **options)
    sessions = [ask(room, prompt=25 + at, max_new=40 + at, first=at) for at in range(prompts)]
    frames = run_all(peers)
    return [text(told(session)) for session in sessions], frames, room


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("guesses", [1, 3, 24])
def test_answers_are_those_without_guesses(guesses: int) -> None:
    plain, plain_frames, _ = answers(OFF)
    guessed, frames, room = answers(guesses)
    assert guessed == plain
    assert [len(answer) for answer in guessed] == [40 + at for at in range(6)], "none goes beyond its length"
    assert frames < 0.75 * plain_frames
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


@pytest.mark.usefixtures("copier")
def test_a_follow_up_finds_only_what_was_accepted_in_the_pages() -> None:
    room, peers = ready_room(1, speculate=8)
    first = ask(room, prompt=40, max_new=60)
    run_all(peers)
    prompt = [*first.tokens, 500, 501]
    again = ask(room, prompt=prompt, max_new=20)
    run_all(peers)
    events = told(again)
    assert events[-1].usage.cached_tokens >= 80
    plain, peers = ready_room(1, speculate=OFF)
    alone = ask(plain, prompt=prompt, max_new=20)
    run_all(peers)
    assert text(events) == text(told(alone))


@pytest.mark.usefixtures("copier")
def test_giving_up_with_guesses_on_their_way_leaves_nothing_behind() -> None:
    room, (peer,) = ready_room(1, speculate=8)
    session, other = ask(room, prompt=40, max_new=60), ask(room, prompt=40, max_new=60, first=7)
    for _ in range(4):
        peer.work()
    room.close(session)
    run_all([peer])
    assert len(text(told(other))) == 60
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


@pytest.mark.usefixtures("copier")
def test_an_answer_goes_on_guessing_after_a_peer_was_lost() -> None:
    plain, _, _ = answers(OFF, prompts=1)
    room, (first, second) = ready_room(2, speculate=4)
    session = ask(room, prompt=25, max_new=40, first=0)
    for _ in range(8):
        first.work(), second.work()
    room.leave(second.member, "test")
    first.load()
    run_all([first])
    assert text(told(session)) == plain[0]


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("guesses", [1, 5, 24])
def test_a_recurrent_state_is_never_one_that_saw_a_wrong_guess(guesses: int) -> None:
    """The fake peers check that a segment's state has seen just the tokens before it."""
    plain, plain_frames, _ = answers(OFF, shape_options={"hybrid": True})
    guessed, frames, room = answers(guesses, shape_options={"hybrid": True})
    assert guessed == plain
    assert frames < plain_frames
    check_slots(room)


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("progress", range(3, 12))
def test_giving_up_in_doubt_keeps_only_states_that_are_sure(progress: int) -> None:
    room, (peer,) = ready_room(1, speculate=8, shape_options={"hybrid": True})
    session = ask(room, prompt=40, max_new=60)
    for _ in range(progress):
        peer.work()
    known = list(session.tokens)
    room.close(session)
    run_all([peer])
    check_slots(room)
    again = ask(room, prompt=[*known, 5], max_new=30)
    run_all([peer])
    plain, (other,) = ready_room(1, speculate=OFF, shape_options={"hybrid": True})
    alone = ask(plain, prompt=[*known, 5], max_new=30)
    run_all([other])
    assert text(told(again)) == text(told(alone))


def test_usage_counts_tokens_and_not_guesses(copier: None) -> None:
    room, peers = ready_room(1, speculate=8)
    session = ask(room, prompt=30, max_new=33)
    run_all(peers)
    usage = [event for event in told(session) if event.HasField("usage")][-1].usage
    assert usage == room_pb2.Usage(prompt_tokens=30, completion_tokens=33)


# ---------------------------------------------------------------- what pays


def repeating(agreed: int = 40) -> Session:
    """In the middle of copying its prompt, which has gone well for `agreed` tokens."""
    made = Session(0, job(list(range(200)), 500), CountingAnswer(500))
    made.keep_in(list(range(60)))
    made.drafts.feed([])
    made.tokens += range(agreed)
    made.decoding, made.sent = True, len(made.tokens) - 1
    return made


def plan(sessions: Sequence[Session]) -> FramePlan:
    return FramePlan(DECODE, tuple(Share(session, 1, ends=True) for session in sessions))


def guesses(sessions: Sequence[Session], cycle: Callable[[float], float]) -> list[int]:
    return [len(share.draft) for share in extended(plan(sessions), cycle, 32, lambda session: True).shares]


def test_nothing_is_guessed_before_anything_is_measured() -> None:
    assert guesses([repeating()], lambda rows: 0.0) == [0]


def test_behind_slow_links_long_guesses_pay() -> None:
    assert guesses([repeating()], lambda rows: 0.100 + 0.002 * rows)[0] >= 12


def test_where_each_row_costs_as_much_as_a_token_nothing_pays() -> None:
    assert guesses([repeating() for _ in range(4)], lambda rows: 0.010 * rows) == [0, 0, 0, 0]


def test_guesses_that_seldom_came_true_are_not_made_where_rows_cost() -> None:
    unlucky = repeating()
    unlucky.drafts.settled = unlucky.drafts.fresh = 0.1
    assert guesses([unlucky, repeating()], lambda rows: 0.020 + 0.004 * rows)[0] == 0


@pytest.mark.parametrize("step", [4, 16])
def test_costs_in_steps_are_filled_to_the_edge(step: int) -> None:
    count = guesses([repeating()], lambda rows: 0.05 * (1 + (rows - 1) // step))[0]
    assert (count + 1) % step == 0 or count == 24


@pytest.mark.parametrize("way", [{"stages": 1}, {"stages": 2}, {"stages": 2, "straight": True}])
def test_over_a_whole_answer_it_is_never_much_slower_than_plain_and_faster_where_it_pays(way: dict[str, int]) -> None:
    for row, link in ((0.001, 0.1), (0.005, 0.02), (0.02, 0.0), (0.05, 0.0)):
        plain, guessed = play(OFF, row, link, **way), play(AUTO, row, link, **way)
        assert guessed < 1.05 * plain, (row, link)
        if row < 0.002 and way["stages"] > 1:
            assert guessed < (0.75 if way.get("straight") else 0.6) * plain


def play(speculate: int, row: float, link: float, stages: int, *, straight: bool = False) -> float:
    """Seconds that eight answers take, on peers that need 10 ms a frame and `row` a row together, `link` away."""
    each = [lambda rows: (0.010 + row * rows) / stages] * stages
    pipeline = Pipeline(each, link=link, speculate=speculate, max_running=8, machines=["m"] * stages, straight=straight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakes, "next_id", copying)
        sessions = [ask(pipeline.room, prompt=30, max_new=100, first=at) for at in range(8)]
        took = pipeline.run(lambda: not pipeline.room.running)
    assert all(len(text(told(session))) == 100 for session in sessions)
    return took


def test_no_frame_takes_no_time_whatever_a_peer_says() -> None:
    costs = Costs()
    costs.observe(1, 0.016)
    costs.observe(4, 0.0)
    assert all(costs.of(rows) > 0 for rows in range(1, 64))


def test_costs_between_and_beyond_what_was_measured() -> None:
    costs = Costs()
    assert costs.of(5) == 0.0
    costs.observe(1, 0.016)
    assert 0.016 < costs.of(9) < 0.032
    for _ in range(5):
        costs.observe(17, 0.048)
    costs.observe(17, 9.0)
    assert costs.of(9) == pytest.approx(0.032)
    assert costs.of(33) == pytest.approx(0.080)
    assert costs.rows_within(0.08, 100) == 33
    assert costs.rows_within(0.001, 100) == 0


def test_costs_forget_what_is_long_out_of_date() -> None:
    costs = Costs()
    costs.observe(32, 5.0)
    for _ in range(600):
        costs.observe(1, 0.01)
    assert costs.of(32) < 0.1
