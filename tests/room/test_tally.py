from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from room.tally import Tally

tokens = st.lists(st.integers(0, 9), max_size=30)


@given(tokens, tokens, st.integers(0, 30))
def test_counts_are_those_of_the_answer_however_often_they_are_asked_for(
    prompt: list[int], answer: list[int], cut: int
) -> None:
    tally = Tally(prompt)
    tally.of([*prompt, *answer[:cut]])
    found = {count.id: count.answer for count in tally.of([*prompt, *answer])}
    assert found == {**dict.fromkeys(prompt, 0), **Counter(answer)}
