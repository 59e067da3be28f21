"""Section H: thoughts, apart from the answer, in both ways models have of opening them."""

from typing import Any

import pytest

from tests.contract.rig import Rig, assistant, line, user

pytestmark = pytest.mark.anyio

ON = {"reasoning_effort": "low"}
THOUGHTS, ANSWER = "so I see", "Hello, you."


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.fixture(params=["thinker", "levels"])
def model(request: pytest.FixtureRequest) -> Rig:
    rig: Rig = request.getfixturevalue(request.param)
    return rig


def opened(rig: Rig, text: str) -> str:
    """What the model writes: its prompt may have opened the thoughts."""
    return text if rig.room.model.source.find("levels") >= 0 else f"<think>\n{text}"


# ---------------------------------------------------------------- on and off


@pytest.mark.parametrize(
    ("members", "thinking"),
    [
        *(({"reasoning_effort": effort}, True) for effort in ("low", "medium", "high", "xhigh", "max")),
        *(({"reasoning_effort": effort}, False) for effort in ("none", "minimal", None)),
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"reasoning_effort": None, "chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"other": 1}}, False),
    ],
)
async def test_P75_P77_P78_P79_P80_when_the_model_is_asked_to_think(
    model: Rig, members: dict[str, Any], thinking: bool
) -> None:
    seen = await model.see(**members)
    assert seen["thinking"] is thinking
    assert seen["prompt"].endswith("</think>\n\n") is not thinking


@pytest.mark.parametrize("members", [{"reasoning_effort": "extreme"}, {"reasoning_effort": 3}])
async def test_P76_other_efforts(thinker: Rig, members: dict[str, Any]) -> None:
    assert (await thinker.refused(**members))["param"] == "reasoning_effort"


@pytest.mark.parametrize("effort", ["low", "max"])
async def test_P83a_a_model_that_cannot_think_takes_any_effort(rig: Rig, effort: str) -> None:
    said = await rig.both(["ok"], reasoning_effort=effort)
    assert (said.content, said.reasoning) == ("ok", None)


async def test_P85_the_level_reaches_only_models_that_know_levels(thinker: Rig, levels: Rig) -> None:
    efforts = ("low", "medium", "high", "xhigh", "max")
    assert len({(await thinker.see(reasoning_effort=each))["prompt"] for each in efforts}) == 1
    assert len({(await levels.see(reasoning_effort=each))["prompt"] for each in efforts}) == 5


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 100])
async def test_P81_P82_B27_B42_thoughts_come_apart_however_they_are_cut(model: Rig, size: int) -> None:
    said = await model.both(cut(opened(model, f"{THOUGHTS}\n</think>\n\n{ANSWER}"), size), **ON)
    assert (said.reasoning, said.content, said.finish) == (THOUGHTS, ANSWER, "stop")
    assert "".join(said.pieces("reasoning_content")) == THOUGHTS


async def test_P81_P82_with_the_tags_as_tokens(model: Rig) -> None:
    start = ["<think>", "\n"] if opened(model, "") else []
    said = await model.both([*start, *THOUGHTS, "\n", "</think>", "\n\n", *ANSWER], **ON)
    assert (said.reasoning, said.content) == (THOUGHTS, ANSWER)
    thought = said.usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < thought < said.usage["completion_tokens"]


@pytest.mark.parametrize("script", [["</think>Hello"], ["secret</think>Hello"], ["se", "cret</th", "ink>Hel", "lo"]])
async def test_P82_B27_tag_and_answer_in_one_token(levels: Rig, script: list[str]) -> None:
    said = await levels.both(script, **ON)
    assert (said.reasoning or "", said.content) == ("secret" if "se" in script[0] else "", "Hello")


async def test_P81_without_thoughts_there_is_no_key(model: Rig) -> None:
    said = await model.both(["ok"])
    assert said.reasoning is None
    assert (said.usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0) == 0


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_P83_thoughts_nobody_asked_for_are_no_content(model: Rig, size: int) -> None:
    said = await model.both(cut(f"<think>\n{THOUGHTS}\n</think>\n\n{ANSWER}", size))
    assert (said.reasoning, said.content) == (THOUGHTS, ANSWER)


async def test_P84_B27a_thoughts_that_never_end_stay_thoughts(model: Rig) -> None:
    said = await model.both(cut(opened(model, THOUGHTS), 3), **ON)
    assert (said.reasoning, said.content, said.finish) == (THOUGHTS, "", "stop")


async def test_P41_P84_B27a_thoughts_count_towards_the_limit(levels: Rig) -> None:
    said = await levels.both(list("tentokens!"), max_tokens=4, **ON)
    assert (said.reasoning, said.content, said.finish) == ("tent", "", "length")
    assert said.usage["completion_tokens"] == said.usage["completion_tokens_details"]["reasoning_tokens"] == 4


async def test_P87e_tokens_of_thoughts_are_counted_between_the_tags(levels: Rig) -> None:
    said = await levels.both([*"abc", "</think>", *"de"], **ON)
    assert said.usage["completion_tokens"] == 3 + 1 + 2 + 1
    assert said.usage["completion_tokens_details"]["reasoning_tokens"] == 3


async def test_P62_stop_strings_do_not_end_thoughts(model: Rig) -> None:
    said = await model.both(cut(opened(model, f"{THOUGHTS}\n</think>\n\nand so on"), 1), stop="so", **ON)
    assert (said.reasoning, said.content, said.finish) == (THOUGHTS, "and ", "stop")


async def test_P106_P109_characters_of_thoughts_arrive_whole(levels: Rig) -> None:
    said = await levels.both(["\U0001f9e9\u6a21", "</think>", "\n\n", "ok"], **ON)
    assert said.reasoning == "\U0001f9e9\u6a21"
    assert said.pieces("reasoning_content") == ["\U0001f9e9", "\u6a21"]


@pytest.mark.parametrize("size", range(1, 9))
async def test_P100_any_cutting_says_the_same(model: Rig, size: int) -> None:
    text = opened(model, f"a <th or </thin\n\nb\n</think>\n\n<not a tag> x < y </p>\n{ANSWER}")
    said = await model.both(cut(text, size), **ON)
    assert said.reasoning == "a <th or </thin\n\nb"
    assert said.content == f"<not a tag> x < y </p>\n{ANSWER}"


# ---------------------------------------------------------------- thoughts sent back


async def test_P86_P87d_thoughts_sent_back_are_part_of_their_turn(model: Rig) -> None:
    past = [
        user("q1"), assistant("r1", reasoning_content="first thought"),
        user("q2"), assistant("r2", reasoning="second thought"), user("q3"),
    ]  # fmt: skip
    prompt = (await model.see(past, **ON))["prompt"]
    order = ["q1", "<think>\nfirst thought\n</think>\n\nr1", "q2", "<think>\nsecond thought\n</think>\n\nr2", "q3"]
    assert [prompt.index(each) for each in order] == sorted(prompt.index(each) for each in order)


@pytest.mark.parametrize("empty", [{}, {"reasoning_content": None}, {"reasoning_content": ""}])
async def test_P87c_P87d_turns_without_thoughts_look_as_they_were_written(model: Rig, empty: dict[str, Any]) -> None:
    seen = await model.see([user("q"), assistant("r", **empty), user("q2")])
    assert "q<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nr<|im_end|>" in seen["prompt"]


async def test_P87d_thoughts_of_others_are_ignored(model: Rig) -> None:
    seen = await model.see([{"role": "user", "content": "q", "reasoning_content": "mine"}])
    assert "mine" not in seen["prompt"]


def cached(usage: dict[str, Any]) -> int:
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


BLOCK = 16


@pytest.mark.parametrize("members", [{}, ON])
async def test_P19_P87a_P87c_an_answer_sent_back_is_not_computed_again(model: Rig, members: dict[str, Any]) -> None:
    question = [user(f"Which letters follow, with {len(members)} members, {model.room.code}?")]
    text = f"{THOUGHTS}\n</think>\n\n{ANSWER}"
    model.play(line(*cut(opened(model, text) if members else ANSWER, 4)), line("ok"))
    first = await model.ask(question, **members)
    whole = first.usage["prompt_tokens"] + first.usage["completion_tokens"]
    thoughts = {"reasoning_content": first.reasoning} if members else {}
    history = [*question, assistant(first.content, **thoughts)]
    second = await model.ask([*history, user("next")], **members)
    assert cached(second.usage) >= whole - 2 - BLOCK
    late = await model.ask([*history, {"role": "system", "content": "note"}, user("next")], **members)
    assert cached(late.usage) >= first.usage["prompt_tokens"] - 2 - BLOCK


async def test_P87b_a_changed_answer_is_used_as_sent(model: Rig) -> None:
    question = [user(f"What did the room say to {model.room.code}, and who changed it?")]
    model.play(line(*cut(ANSWER, 4)), line("ok"))
    first = await model.ask(question)
    changed = "Good day, you."
    second = await model.ask([*question, assistant(changed), user("next")])
    assert f"{changed}<|im_end|>" in model.seen["prompt"]
    prompt = first.usage["prompt_tokens"]
    assert prompt - 2 - BLOCK <= cached(second.usage) < prompt + first.usage["completion_tokens"]


async def test_P87c_thoughts_left_out_are_no_error(model: Rig) -> None:
    question = [user("Who leaves thoughts out?")]
    model.play(line(*cut(opened(model, f"{THOUGHTS}\n</think>\n\n{ANSWER}"), 4)), line("ok"))
    first = await model.ask(question, **ON)
    second = await model.ask([*question, assistant(first.content), user("next")], **ON)
    assert second.content == "" or second.finish == "stop"
    assert THOUGHTS not in model.seen["prompt"]
