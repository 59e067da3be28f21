from hypothesis import given
from hypothesis import strategies as st

from room.drafts import GRAMS, SETTLED, DraftIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def index_of(prompt: list[int], answer: list[int] | None = None) -> DraftIndex:
    index = DraftIndex()
    index.read(prompt)
    index.feed(answer or [])
    return index


def looked_up(tokens: list[int]) -> int:
    """Behind which earlier place the longest run stands that `tokens` end with, by looking everywhere; -1: none."""
    for size in GRAMS:
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[end - size : end] == tokens[-size:]:
                return end
    return -1


@given(texts)
def test_a_prompt_is_continued_as_its_last_run_was_continued_before(tokens: list[int]) -> None:
    end = looked_up(tokens)
    draft = index_of(tokens).draft(5)
    if end < 0:
        assert draft == []
    else:
        assert len(draft) == 5
        assert draft[: len(tokens) - end] == tokens[end : end + 5]


@given(texts, texts, st.integers(1, 60))
def test_it_makes_no_difference_in_which_pieces_tokens_come(prompt: list[int], answer: list[int], cut: int) -> None:
    whole, pieces = index_of(prompt, answer), index_of(prompt, answer[:cut])
    pieces.feed(answer[cut:])
    assert pieces.draft(8) == whole.draft(8)
    assert pieces.chances(8) == whole.chances(8)
    assert len(pieces) == len(prompt) + len(answer)


def test_a_repetition_goes_on_repeating() -> None:
    assert index_of([9, 1, 2, 3, 1, 2, 3]).draft(7) == [1, 2, 3, 1, 2, 3, 1]


def test_a_copy_is_followed_and_found_again_behind_a_change() -> None:
    prompt = list(range(40))
    index = index_of(prompt, prompt[:10])
    assert index.draft(3) == [10, 11, 12]
    index.feed([99, 11])
    assert index.draft(3) == []
    index.feed([12])
    assert index.draft(3) == [13, 14, 15]


def test_chances_follow_what_came_true() -> None:
    good, bad = index_of(list(range(90)), list(range(60))), index_of([1, 2, 3, 1, 2])
    assert good.settled > 0.98
    assert good.chances(4)[3] > 0.9
    for at in range(20):
        bad.feed([100 + at, 1, 2])
    assert bad.fresh < 0.1
    assert index_of([1, 2, 1, 2]).chances(SETTLED)[-1] < good.chances(SETTLED)[-1]
