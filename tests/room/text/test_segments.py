import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import room_pb2
from room.text.answer import Answer
from room.text.memory import Memory
from room.text.segments import REASONING, TEXT, ThinkSplitter, ThinkTags
from tests.room.text.families import ids_of, model_of
from tests.room.text.told import listen


def split(pieces: list[str], *, inside: bool = False, guided: bool = False) -> tuple[str, str]:
    splitter = ThinkSplitter(ThinkTags(), inside=inside, guided=guided)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
    return tuple("".join(text for kind, text in segments if kind == wanted) for wanted in (REASONING, TEXT))  # type: ignore[return-value]


CASES = [
    ("secret</think>Hello", True, ("secret", "Hello")),
    ("\nsecret\n\n</think>\n\n  Hello\n", True, ("secret", "  Hello\n")),
    ("<think>\na\n\nb\n</think>\n\nHello", False, ("a\n\nb", "Hello")),
    ("<think>\n\n</think>\n\nHello", False, ("", "Hello")),
    ("<think>\na\n</think>", True, ("a", "")),
    ("\n\n<think>a</think>", False, ("a", "")),
    ("</think>\n\nHello", False, ("", "Hello")),
    ("a <think>b</think> c", False, ("b", "a  c")),
    (" \n Hello", False, ("", " \n Hello")),
    ("thoughts without an end", True, ("thoughts without an end", "")),
    ("a < b <thi", False, ("", "a < b <thi")),
]


@settings(max_examples=300)
@given(case=st.sampled_from(CASES), rng=st.randoms())
def test_P82_tags_cut_anywhere(case: tuple[str, bool, tuple[str, str]], rng: random.Random) -> None:
    text, inside, expected = case
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 10)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(pieces, inside=inside) == expected


def test_tags_in_a_guided_answer_are_its_data() -> None:
    text = '{"a": "</think> <think>"}'
    assert split(["thought</think>\n\n", *text], inside=True, guided=True) == ("thought", text)


@pytest.mark.parametrize(
    ("family", "thinking", "written", "reasoning", "text", "tokens"),
    [
        ("qwen3", False, "<think>ab</think>c", "ab", "c", 2),
        ("qwen35", True, "ab</think>c", "ab", "c", 2),
        ("qwen35", True, "ab", "ab", "", 2),
        ("qwen35", False, "c", "", "c", 0),
        ("qwen3", True, "<think>\n\n</think>\n\nc", "", "c", 1),
        ("harmony", True, "<|channel|>analysis<|message|>xyz<|end|><|start|>assistant", "xyz", "", 3),
    ],
)
def test_P83_P84_P87e_thoughts_are_told_apart_and_counted(
    family: str, thinking: bool, written: str, reasoning: str, text: str, tokens: int
) -> None:
    answer = Answer(model_of(family), [], 1000, False, thinking=thinking)
    told = listen(answer, [*ids_of(family, written), min(model_of(family).eos_ids)])
    assert told.what == (reasoning, text, [])
    assert answer.finished == room_pb2.FINISH_REASON_STOP
    assert abs(answer.reasoning_tokens - tokens) <= (1 if "\n" in written else 0)


def test_memory_forgets_what_was_used_longest_ago() -> None:
    memory = Memory(most=10)
    for number in range(3):
        memory.keep(bytes([number]), "", [1] * 4)
        memory.recall(bytes([0]))
    assert [memory.recall(bytes([number])) is not None for number in range(3)] == [True, False, True]
