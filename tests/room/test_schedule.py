from collections import Counter
from dataclasses import replace

import pytest

from protos.lanes import DECODE, PREFILL
from room import schedule
from room.pages import pages_for
from room.schedule import FramePlan, Limits
from room.session import Session
from tests.room.fakes import CountingAnswer, job

LIMITS = Limits(
    decode_depth=2, prefill_depth=2, prefill_tokens=100, prefill_tokens_beside=20, prefill_tokens_at_once=40
)
IDLE: Counter = Counter()


def next_frame(sessions: list[Session], in_flight: Counter, limits: Limits, owed: float = 0.0) -> FramePlan | None:
    return schedule.next_frame(sessions, in_flight, limits, owed)


def fresh(prompt: int, number: int = 0) -> Session:
    made = Session(number, job(prompt), CountingAnswer(9))
    made.keep_in(list(range(pages_for(prompt + 1))))
    return made


def decoding(*, unsent: int = 1, in_flight: int = 0) -> Session:
    made = fresh(10)
    made.tokens.append(1)
    made.decoding, made.sent, made.in_flight = True, len(made.tokens) - unsent, in_flight
    return made


def shares(plan: FramePlan | None) -> list[tuple[int, int]]:
    assert plan is not None
    return [(share.tokens, share.sampled) for share in plan.shares]


def test_nothing_to_do() -> None:
    assert next_frame([], IDLE, LIMITS) is None
    assert next_frame([decoding(unsent=0, in_flight=1)], IDLE, LIMITS) is None


def test_a_prompt_goes_in_chunks_and_only_its_end_is_sampled() -> None:
    session = fresh(250)
    seen = []
    for _ in range(3):
        plan = next_frame([session], IDLE, LIMITS)
        assert plan is not None
        assert plan.lane == PREFILL
        seen += shares(plan)
        session.sent += plan.rows
        session.in_flight += 1
    assert seen == [(100, 0), (100, 0), (50, 1)]
    assert next_frame([session], IDLE, LIMITS) is None


def test_several_prompts_share_a_frame_first_come_first() -> None:
    assert shares(next_frame([fresh(30), fresh(40), fresh(50)], IDLE, LIMITS)) == [(30, 1), (40, 1), (30, 0)]


def test_a_one_token_prompt_is_prefilled_too() -> None:
    plan = next_frame([fresh(1)], IDLE, LIMITS)
    assert plan is not None
    assert plan.lane == PREFILL
    assert shares(plan) == [(1, 1)]


def test_decoding_goes_before_prefilling() -> None:
    plan = next_frame([fresh(50), decoding()], IDLE, LIMITS)
    assert plan is not None
    assert plan.lane == DECODE


def test_prefill_beside_running_answers_goes_in_smaller_chunks() -> None:
    waiting_for_token = decoding(unsent=0, in_flight=1)
    assert shares(next_frame([fresh(50), waiting_for_token], Counter({DECODE: 1}), LIMITS)) == [(20, 0)]


def test_between_two_chunks_every_running_answer_takes_its_steps() -> None:
    sessions = [fresh(50), *(decoding(unsent=0, in_flight=1) for _ in range(3))]
    limits, busy = replace(LIMITS, rounds_beside=2), Counter({DECODE: 2})
    assert next_frame(sessions, busy, limits, 0.1) is None
    plan = next_frame(sessions, busy, limits)
    assert shares(plan) == [(20, 0)]
    assert plan is not None
    assert plan.owed == 2
    unhindered = next_frame(sessions, IDLE, limits, 0.1)
    assert shares(unhindered) == [(50, 1)], "nothing decodes: nothing to wait for"
    assert unhindered is not None
    assert unhindered.owed == 0


def test_a_decode_frame_pays_for_the_answers_that_are_in_it() -> None:
    sessions = [decoding() for _ in range(4)]
    plan = next_frame(sessions, IDLE, LIMITS, 1.2)
    assert plan is not None
    assert len(plan.shares) == 2
    assert plan.owed == pytest.approx(0.7)


def test_short_prompts_are_read_at_once_beside_running_answers_which_get_more_steps_for_it() -> None:
    sessions = [fresh(15), fresh(25), fresh(15), decoding()]
    limits = replace(LIMITS, decode_depth=1, prefill_depth=1, rounds_beside=2, shared=True)
    plan = next_frame(sessions, IDLE, limits)
    assert shares(plan) == [(15, 1), (25, 1)]
    assert plan is not None
    assert plan.owed == 4
    sessions[0].sent = 1
    assert shares(next_frame(sessions, IDLE, limits)) == [(14, 1), (6, 0)], "not so the rest of one that is being read"


def test_on_one_processor_frames_of_both_lanes_take_turns() -> None:
    limits = replace(LIMITS, decode_depth=1, prefill_depth=1, rounds_beside=2, shared=True)
    prompt, answers = fresh(50), [decoding() for _ in range(3)]
    sessions = [prompt, *answers]
    for lane in (DECODE, PREFILL):
        assert next_frame(sessions, Counter({lane: 1}), limits) is None
    plans = [next_frame(sessions, IDLE, limits, owed) for owed in (0.1, 0.0)]
    assert [plan and plan.lane for plan in plans] == [DECODE, PREFILL], "every answer took its two steps"
    assert shares(plans[1]) == [(20, 0)]
    for answer in answers:
        answer.sent += 1
    assert shares(next_frame(sessions, IDLE, limits, 9.0)) == [(20, 0)], "answers that cannot go on hold nobody up"
    assert next_frame(sessions, Counter({DECODE: 1}), replace(limits, shared=False)) is not None


def test_a_frame_takes_its_part_of_the_sessions_so_that_others_can_follow() -> None:
    sessions = [decoding() for _ in range(5)]
    plan = next_frame(sessions, IDLE, LIMITS)
    assert shares(plan) == [(1, 1)] * 3
    assert [share.session for share in plan.shares] == sessions[:3]


def test_no_more_frames_than_the_depth() -> None:
    assert next_frame([decoding()], Counter({DECODE: 2}), LIMITS) is None
    assert next_frame([fresh(5)], Counter({PREFILL: 2}), LIMITS) is None
    assert next_frame([fresh(5)], Counter({DECODE: 2}), LIMITS) is not None


def test_a_session_is_never_in_two_decode_frames() -> None:
    assert next_frame([decoding(unsent=1, in_flight=1)], IDLE, LIMITS) is None


def test_a_session_without_a_page_for_its_last_token_is_not_sent() -> None:
    short = decoding()
    short.tokens += [1] * 16
    assert next_frame([short], IDLE, LIMITS) is None
    plan = next_frame([short, decoding()], IDLE, LIMITS)
    assert shares(plan) == [(1, 1)]
