"""Section F: stop strings, whole and streamed alike. Letters of this vocabulary are tokens of their own."""

from typing import Any

import pytest

from tests.contract.rig import Rig, events_of, line, read_stream

pytestmark = pytest.mark.anyio

MORE = ["x"] * 20


@pytest.mark.parametrize(
    ("script", "stop", "content", "tokens", "finish"),
    [
        pytest.param("ABCDEFGHIJKLM", "DEFGHIJ", "ABC", 10, "stop", id="P58-P59-B12"),
        pytest.param("ABCDEX", "DEFG", "ABCDEX", 7, "stop", id="P60-B12"),
        pytest.param("ABCDEF", "DEFG", "ABCDEF", 7, "stop", id="P60-B12-held-at-the-end"),
        pytest.param("one two one", ["two", "one"], "", 3, "stop", id="P58-first-match-whichever"),
        pytest.param("abcd", ["bcd", "c"], "ab", 3, "stop", id="P58-first-complete"),
        pytest.param("aab", "ab", "a", 3, "stop", id="P60-a-second-beginning"),
        pytest.param("ABC", ["x"], "ABC", 4, "stop", id="P60-never"),
        pytest.param("e\u0301x", "\u00e9", "e\u0301x", 5, "stop", id="P66"),
        pytest.param("AbC", "B", "AbC", 4, "stop", id="P66-case"),
        pytest.param("\U0001f9e9\U0001f9e8!", "\U0001f9e8", "\U0001f9e9", 8, "stop", id="P59-P109"),
        pytest.param('{"a": 1, "b": 2}', ",", '{"a": 1', None, "stop", id="P64-cut-json"),
    ],
)
async def test_P58_P59_P60_P64_P65_P66_B12(
    rig: Rig, script: str, stop: Any, content: str, tokens: int | None, finish: str
) -> None:
    said = await rig.both(list(script), stop=stop)
    assert (said.content, said.finish) == (content, finish)
    assert "".join(said.pieces()) == content
    if tokens is not None:
        assert said.usage["completion_tokens"] == tokens


async def test_P59_B12_no_beginning_of_a_match_is_streamed(rig: Rig) -> None:
    said = await rig.both(["ABC", "DE", "F", "G", *MORE], stop="DEFG")
    assert not any("D" in piece for piece in said.pieces())


async def test_P60_B12_the_first_token_is_not_held_back(rig: Rig) -> None:
    rig.play(line("I", fault="hang"))
    async with rig.http.stream(
        "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "q"}], "stream": True,
                                             "stop": ["X", "longer than that"]},
    ) as reply:  # fmt: skip
        async for text in reply.aiter_lines():
            if '"content":"I"' in text:
                break
        else:
            raise AssertionError("the stream ended without the token")
    await rig.at_rest()


async def test_P60_length_releases_what_was_held(rig: Rig) -> None:
    said = await rig.both(list("ABCDEFG"), stop="DEFG", max_tokens=5)
    assert (said.content, said.finish) == ("ABCDE", "length")


@pytest.mark.parametrize("stop", ["y" * 64, "\U0001f9e9" * 64, [], None, ["a", "b", "c", "d"], ["z", "z"]])
async def test_P55_P56_all_of_these_reach_the_room(rig: Rig, stop: Any) -> None:
    seen = await rig.see(stop=stop)
    assert set(seen["sample"]["stop"]) == set([stop] if isinstance(stop, str) else stop or [])


@pytest.mark.parametrize("stop", [["a"] * 5, "y" * 65, "", ["a", ""], [1], 5])
async def test_P55_P56_P57_others_never_do(rig: Rig, stop: Any) -> None:
    assert (await rig.refused(stop=stop))["param"] == "stop"


@pytest.mark.parametrize("cut", range(1, 7))
async def test_P100_any_cutting_of_the_script_says_the_same(rig: Rig, cut: int) -> None:
    text = "Stop here, or h\u00e9re: \U0001f9e9 is not a STOP but \u6a21\u578b."
    rig.play(line(*[text[at : at + cut] for at in range(0, len(text), cut)]))
    for stop in (None, "here:", "STOP", "\u6a21"):
        whole = await rig.ask(stop=stop)
        streamed = await rig.listen(stop=stop)
        assert whole.content == streamed.content == (text.split(stop)[0] if stop else text)


async def test_P109_B5_B6_B40_characters_arrive_whole(rig: Rig) -> None:
    text = "a\U0001f9e9\U0001f6d1\u6a21\u00e9."
    said = await rig.both([text], max_tokens=100)
    assert said.content == text
    assert said.pieces() == list(text)
    assert said.usage["completion_tokens"] == len(text.encode()) + 1


@pytest.mark.parametrize("keep", [1, 2, 3])
async def test_P109_a_character_that_never_gets_whole_is_no_text(rig: Rig, keep: int) -> None:
    said = await rig.both(["a", *bytes_of(rig, "\U0001f9e9")[:keep]])
    assert said.content in ("a", "a\ufffd")


def bytes_of(rig: Rig, text: str) -> list[int]:
    """The tokens of a text's bytes."""
    spelled = {rig.text.token_spelling(token): token for token in range(rig.text.vocab_size)}
    return [spelled[bytes([byte])] for byte in text.encode()]


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
async def test_P106_B40_control_tokens_are_no_text(rig: Rig, end: str) -> None:
    said = await rig.both(["a", end, "b"])
    assert "<|" not in (said.content or "")
    assert (said.content, said.finish) == (("a", "stop") if end == "<|im_end|>" else ("ab", "stop"))


async def test_P105_P106_B40_B42_the_order_of_a_stream(rig: Rig) -> None:
    rig.play(line(*"abc"))
    reply = await rig.post(stream=True, stream_options={"include_usage": True})
    said = read_stream(reply.text)  # which looks at order and shape
    assert said.pieces() == ["a", "b", "c"]
    assert said.usage["completion_tokens"] == 4


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
async def test_P5_P71_B37_every_chunk_has_a_choice_unless_usage_was_asked_for(rig: Rig, options: Any) -> None:
    events = events_of((await rig.post(stream=True, **options)).text)
    assert events.pop() == "[DONE]"
    assert all(event["choices"] and not event.get("usage") for event in events)
