"""Section D: how long an answer may get, seen from both ends."""

import pytest

from tests.contract.conftest import CTX
from tests.contract.rig import Rig, line, user

pytestmark = pytest.mark.anyio

LEAST_FREE = 32


async def fitting(rig: Rig, tokens: int) -> str:
    """A user's text with which the prompt is `tokens` long: letters of this vocabulary are tokens of their own."""
    empty = len((await rig.see([user("Z")]))["prompt_ids"]) - 1
    return "Z" * (tokens - empty)


async def test_P35_without_a_limit_it_is_16384_or_what_is_left(rig: Rig) -> None:
    seen = await rig.see()
    assert seen["sample"]["max_new"] == CTX - len(seen["prompt_ids"])


async def test_P36_P37_P38_the_limit_is_the_rooms_after_capping(rig: Rig) -> None:
    left = CTX - len((await rig.see())["prompt_ids"])
    for members, expected in [
        ({"max_tokens": 65_537}, left),
        ({"max_completion_tokens": 10**9}, left),
        ({"max_completion_tokens": 5, "max_tokens": 10}, 5),
        ({"max_completion_tokens": 10, "max_tokens": 5}, 10),
        ({"max_completion_tokens": None, "max_tokens": 7}, 7),
    ]:
        assert (await rig.see(**members))["sample"]["max_new"] == expected, members


async def test_P37_P96_the_context_ends_the_answer(rig: Rig) -> None:
    prompt = 100
    text = await fitting(rig, prompt)
    rig.play(line(*"b" * CTX))
    said = await rig.ask([user(text)], max_tokens=60_000)
    assert rig.seen["sample"]["max_new"] == CTX - prompt == said.usage["completion_tokens"]
    assert len(said.content or "") == CTX - prompt
    assert said.finish == "length"


@pytest.mark.parametrize(
    ("script", "text", "tokens", "finish"),
    [
        (["a", "b", "c", "d", "e"], "abcd", 4, "length"),  # more is to come
        (["a", "b", "c", "d"], "abcd", 4, "length"),  # the end of the turn would be token 5
        (["a", "b", "c"], "abc", 4, "stop"),  # the end of the turn is token 4
        (["a"], "a", 2, "stop"),
        ([], "", 1, "stop"),
    ],
)
async def test_P39_P93_P94_P96_B38_exactly_so_many_tokens(
    rig: Rig, script: list[str], text: str, tokens: int, finish: str
) -> None:
    said = await rig.both(script, max_tokens=4)
    assert (said.content, said.usage["completion_tokens"], said.finish) == (text, tokens, finish)
    assert said.usage["total_tokens"] == said.usage["prompt_tokens"] + tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_P42_B28_32_tokens_stay_free(rig: Rig, stream: bool) -> None:
    text = await fitting(rig, CTX - LEAST_FREE)
    assert (await rig.post([user(text)], stream=stream)).status_code == 200
    assert rig.seen["sample"]["max_new"] == LEAST_FREE
    before = len(rig.records)
    reply = await rig.post([user(text + "Z")], stream=stream)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert error["message"].startswith(
        f"This model's maximum context length is {CTX} tokens. However, your messages resulted in "
        f"{CTX - LEAST_FREE + 1} tokens, and {LEAST_FREE} must stay free for the answer."
    )
    assert len(rig.records) == before


async def test_P37_B28_a_large_limit_is_capped_not_refused(rig: Rig) -> None:
    text = await fitting(rig, CTX - 100)
    assert (await rig.see([user(text)], max_tokens=64_000))["sample"]["max_new"] == 100


async def test_P134_P135_too_much_text_never_reaches_the_room(rig: Rig) -> None:
    for text in ("Z" * (8 * CTX + 1), "Z" * 1_500_001):
        error = await rig.refused(messages=[user(text)])
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
