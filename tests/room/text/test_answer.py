import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import peer_pb2, room_pb2
from room.text.answer import Answer
from room.text.tokenizer import TextModel

STOP, LENGTH = room_pb2.FINISH_REASON_STOP, room_pb2.FINISH_REASON_LENGTH
EOS = 2
FAMILY = "👨‍👩‍👧‍👦"


@pytest.fixture
def ids(tiny_tokenizer: Any) -> Any:
    """Text to ids; pieces given apart stay apart."""
    return lambda *pieces: [token for piece in pieces for token in tiny_tokenizer(piece).input_ids]


def tokens(ids: Sequence[int]) -> list[peer_pb2.SampledToken]:
    return [peer_pb2.SampledToken(id=token) for token in ids]


def deltas(answer: Answer, ids: Sequence[int]) -> list[str]:
    """The text deltas when tokens come one by one."""
    return [event.text.text for token in tokens(ids) for event in answer.feed([token])]


def test_text_comes_as_it_is_written(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, [], 100, False)
    assert deltas(answer, ids("H", "i", "!")) == ["H", "i", "!"]
    assert (answer.finished, answer.completion_tokens) == (None, 3)


def test_several_tokens_at_once_are_one_event(tiny_text: TextModel, ids: Any) -> None:
    (event,) = Answer(tiny_text, [], 100, False).feed(tokens(ids("Hi", " there")))
    assert event.text.text == "Hi there"
    assert not event.text.tokens


def test_P39_the_end_token_ends_the_answer_and_counts(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, [], 100, False)
    assert deltas(answer, [*ids("x", "y"), EOS, *ids("z")]) == ["x", "y"]
    assert (answer.finished, answer.completion_tokens) == (STOP, 3)


@pytest.mark.parametrize(("end_at", "reason"), [(3, STOP), (4, STOP), (5, LENGTH)])
def test_P39_exactly_n_tokens_come(tiny_text: TextModel, ids: Any, end_at: int, reason: int) -> None:
    answer = Answer(tiny_text, [], 4, False)
    script = [*ids(*"abcdefg"[: end_at - 1]), EOS]
    assert "".join(deltas(answer, script)) == "abcd"[: end_at - 1]
    assert (answer.finished, answer.completion_tokens) == (reason, min(end_at, 4))


def test_P59_a_stop_string_spanning_tokens(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, ["DEFG"], 100, False)
    assert deltas(answer, ids("ABC", "DE", "F", "G", "more")) == ["A", "B", "C"]
    assert (answer.finished, answer.completion_tokens) == (STOP, 7)


def test_P65_counts_up_to_the_token_that_completed_the_match(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, ["b"], 100, False)
    events = answer.feed(tokens(ids("a", "b", "c", "d")))
    assert [event.text.text for event in events] == ["a"]
    assert (answer.finished, answer.completion_tokens) == (STOP, 2)


@pytest.mark.parametrize(("max_new", "end", "reason"), [(100, [EOS], STOP), (5, [], LENGTH)])
def test_P60_held_text_is_released_at_the_end(
    tiny_text: TextModel, ids: Any, max_new: int, end: list[int], reason: int
) -> None:
    answer = Answer(tiny_text, ["DEFG"], max_new, False)
    assert "".join(deltas(answer, [*ids("ABCDE"), *end])) == "ABCDE"
    assert answer.finished == reason


def test_a_stop_string_with_the_last_token_is_a_stop(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, ["c"], 3, False)
    assert deltas(answer, ids(*"abc")) == ["a", "b"]
    assert answer.finished == STOP


def test_P109_an_emoji_arrives_whole_and_half_of_one_never(tiny_text: TextModel, ids: Any) -> None:
    puzzle = ids("🧩")
    assert len(puzzle) == 4
    assert deltas(Answer(tiny_text, [], 100, False), puzzle) == ["🧩"]
    cut = Answer(tiny_text, [], 3, False)
    assert deltas(cut, puzzle) == []
    assert (cut.finished, cut.completion_tokens) == (LENGTH, 3)


def test_a_stop_string_may_be_an_emoji(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, [FAMILY], 100, False)
    assert "".join(deltas(answer, ids(f"a👨‍👩b{FAMILY}c"))) == "a👨‍👩b"
    assert answer.finished == STOP


@settings(max_examples=200)
@given(
    text=st.lists(st.sampled_from(["stop", "st", "op", "🧩", FAMILY, "\n", "é", "日本", " "]), max_size=8).map("".join),
    stops=st.lists(st.sampled_from(["stop", "🧩", "\n\n", "👨", "po"]), max_size=3),
    max_new=st.integers(1, 60),
    cuts=st.randoms(use_true_random=False),
)
def test_bunches_of_tokens_say_what_single_ones_say(
    tiny_text: TextModel, tiny_tokenizer: Any, text: str, stops: list[str], max_new: int, cuts: random.Random
) -> None:
    script = tokens([*tiny_tokenizer(text).input_ids, EOS])
    single, bunched = (Answer(tiny_text, stops, max_new, True) for _ in range(2))
    told = [event.text for token in script for event in single.feed([token])]
    again, at = [], 0
    while at < len(script):
        size = cuts.randint(1, 5)
        again += [event.text for event in bunched.feed(script[at : at + size])]
        at += size
    assert "".join(delta.text for delta in told) == "".join(delta.text for delta in again)
    assert [token for delta in told for token in delta.tokens] == [token for delta in again for token in delta.tokens]
    assert (single.finished, single.completion_tokens) == (bunched.finished, bunched.completion_tokens)
    assert not any("\ufffd" in delta.text for delta in told)
    assert not any(stop in "".join(delta.text for delta in told) for stop in stops)


# ---------------------------------------------------------------- logprobs


def chance(token: int, *others: int) -> peer_pb2.SampledToken:
    top = [peer_pb2.TokenChance(id=other, logprob=-other / 100) for other in others]
    return peer_pb2.SampledToken(id=token, logprob=-token / 100, top=top)


def test_logprobs_name_each_token_by_its_bytes(tiny_text: TextModel, ids: Any) -> None:
    (a, b) = ids("a", "b")
    (event,) = Answer(tiny_text, [], 9, True).feed([chance(a, a, EOS), chance(b)])
    first, second = event.text.tokens
    assert (first.token, second.token) == (b"a", b"b")
    assert math.isclose(first.logprob, -a / 100, rel_tol=1e-6)
    assert [(other.token, round(other.logprob, 2)) for other in first.top] == [
        (b"a", -a / 100),
        (b"<|im_end|>", -EOS / 100),
    ]


def test_tokens_go_out_with_the_last_of_their_text(tiny_text: TextModel, ids: Any) -> None:
    answer = Answer(tiny_text, ["bc"], 99, True)
    events = [answer.feed([chance(token)]) for token in [*ids(*"abx"), *ids("🧩")]]
    said = [[(event.text.text, [each.token for each in event.text.tokens]) for event in told] for told in events]
    assert said[:3] == [[("a", [b"a"])], [], [("bx", [b"b", b"x"])]]
    assert said[3:6] == [[], [], []]
    assert said[6] == [("🧩", [bytes([byte]) for byte in "🧩".encode()])]


def test_tokens_of_a_stop_string_do_not_go_out(tiny_text: TextModel, ids: Any) -> None:
    events = Answer(tiny_text, ["bc"], 99, True).feed([chance(token) for token in ids(*"abc")])
    assert [[each.token for each in event.text.tokens] for event in events] == [[b"a"]]


def test_the_end_token_is_no_token_of_the_text(tiny_text: TextModel, ids: Any) -> None:
    events = Answer(tiny_text, [], 99, True).feed([*map(chance, ids("a")), chance(EOS)])
    assert [[each.token for each in event.text.tokens] for event in events] == [[b"a"]]
