from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from room import recall
from room.recall import Recall

# A vocabulary of letters, pairs of letters, and three control tokens that are spelled like text.
WORDS = [*"abcd", *(first + second for first in "abcd" for second in "abcd"), "<end>", "<think>", "<start>"]
END, THINK, START = len(WORDS) - 3, len(WORDS) - 2, len(WORDS) - 1


def memory() -> Recall:
    return Recall(lambda token: WORDS[token].encode(), {END, THINK, START}, {END})


def letters(text: str) -> list[int]:
    return [WORDS.index(letter) for letter in text]


def pairs(text: str) -> list[int]:
    return [WORDS.index(text[at : at + 2]) for at in range(0, len(text), 2)]


def test_an_answer_that_comes_back_as_text_gets_its_own_tokens() -> None:
    made = memory()
    made.remember([START, 0], [*letters("abab"), END])
    assert made.restore([START, 0, *pairs("abab"), END, 1]) == [START, 0, *letters("abab"), END, 1]


def test_turn_after_turn() -> None:
    made = memory()
    first = [START, 0]
    made.remember(first, [*letters("abab"), END])
    second = [*first, *letters("abab"), END, START, 1]
    made.remember(second, [*letters("cdcd"), END])
    sent = [*first, *pairs("abab"), END, START, 1, *pairs("cdcd"), END, START, 2]
    assert made.restore(sent) == [*second, *letters("cdcd"), END, START, 2]


def test_what_differs_is_left_as_it_came() -> None:
    made = memory()
    made.remember([START, 0], [*letters("abab"), END])
    for other in ([START, 0, *pairs("abac")], [START, 1, *pairs("abab")], [START, 0, *pairs("ab")], [START, 0], []):
        assert made.restore(other) == other


def test_a_token_that_reaches_beyond_the_answer_is_not_cut() -> None:
    made = memory()
    made.remember([START], [*letters("aba"), END])
    assert made.restore([START, *pairs("abab")]) == [START, *pairs("abab")]


def test_P27_text_that_only_looks_like_a_control_token_stays_text() -> None:
    spelled = Recall(lambda token: [b"<", b"think>", b"<think>"][token], {2}, set())
    spelled.remember([0], [2])
    assert spelled.restore([0, 0, 1]) == [0, 0, 1]
    assert spelled.restore([0, 2]) == [0, 2]


def test_the_oldest_answers_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(recall, "MOST_TOKENS", 20)
    made = memory()
    for number in range(4):
        made.remember([START, number], [*letters("abab"), END])
    assert repr(made) == "<Recall [3 answers, 18 tokens]>"
    assert made.restore([START, 0, *pairs("abab")]) == [START, 0, *pairs("abab")]
    assert made.restore([START, 3, *pairs("abab")]) == [START, 3, *letters("abab")]


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=2, max_size=8).filter(lambda s: len(s) % 2 == 0), max_size=4)
)
def test_the_text_never_changes(turns: list[list[str]]) -> None:
    made = memory()
    prompt: list[int] = [START]
    for turn in turns:
        made.remember(prompt, [*letters("".join(turn)), END])
        prompt = [*prompt, *letters("".join(turn)), END, START]
    sent = list(chain.from_iterable([[START], *([*pairs("".join(turn)), END, START] for turn in turns)]))
    restored = made.restore(sent)
    assert restored == prompt[: len(restored)]
    assert "".join(WORDS[token] for token in restored) == "".join(WORDS[token] for token in sent)
