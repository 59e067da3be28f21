"""Wren, the small model in models/wren, does what its README says and tests of whole agents rely on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scripts.wren.measure import agents, held_out, judged, load, marks  # noqa: E402
from scripts.wren.talks import SKILLS  # noqa: E402
from scripts.wren.tools import Scope  # noqa: E402

HOME = Path(__file__).resolve().parent.parent / "models" / "wren"
SCOPE = Scope(1, 3, 3, held_out=True)
"""Up to three tools of up to three parameters, with names that training never saw."""
CHARGE = {
    "type": "function",
    "function": {
        "name": "charge_battery",
        "description": "Charge the battery of a robot.",
        "parameters": {
            "type": "object",
            "properties": {"robot": {"type": "string"}, "minutes": {"type": "integer"}},
            "required": ["robot", "minutes"],
        },
    },
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Wren:
    """The model as the library runs it, greedy, one conversation at a time."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load(HOME)

    def prompt(self, messages: list[dict[str, Any]], **template: Any) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template)
        assert isinstance(text, str)
        return text

    def answer(self, messages: list[dict[str, Any]], *, thinking: bool = False, **template: Any) -> str:
        inputs = self.tokenizer(self.prompt(messages, enable_thinking=thinking, **template), return_tensors="pt")
        with torch.inference_mode():
            ids = self.model.generate(inputs["input_ids"], max_new_tokens=200, do_sample=False)
        text = self.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
        assert text.endswith("<|im_end|>"), text
        return str(text.removesuffix("<|im_end|>"))


@pytest.fixture(scope="module")
def wren() -> Iterator[Wren]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Wren()
    torch.set_num_threads(threads)


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def calls(text: str) -> list[dict[str, Any]]:
    blocks = text.split("<tool_call>\n")[1:]
    return [json.loads(block.split("\n</tool_call>")[0]) for block in blocks]


def test_files_are_small() -> None:
    assert (HOME / "model.safetensors").stat().st_size <= 5_000_000
    assert sum(file.stat().st_size for file in HOME.iterdir()) < 6_000_000


def test_any_text_survives_the_tokenizer(wren: Wren) -> None:
    text = "".join(map(chr, range(256))) + " naïve 東京 🙂👍🏽\r\n\t  ends  "
    assert wren.tokenizer.decode(wren.tokenizer.encode(text)) == text


def test_tags_are_single_tokens_and_only_chat_marks_are_special(wren: Wren) -> None:
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert all(len(wren.tokenizer.encode(text)) == 1 for text in tags + marks)
    assert set(wren.tokenizer.all_special_tokens) == set(marks)


def test_template_writes_the_qwen_format(wren: Wren) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "東京"}}}
    told = [
        {"role": "system", "content": "Be brief."},
        *ask("Hi"),
        {"role": "assistant", "content": "Hello!", "reasoning_content": "old"},
        *ask("Weather?"),
        {"role": "assistant", "content": "", "reasoning_content": "a call", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": [{"type": "text", "text": "2"}]},
    ]
    text = wren.prompt(told, tools=[WEATHER], enable_thinking=False)
    block = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京"}}\n</tool_call>'
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in text
    assert text.endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\na call\n</think>\n\n{block}\n{block}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    kept = wren.prompt(told, tools=[WEATHER], preserve_thinking=True)
    assert "<think>\nold\n</think>\n\nHello!" in kept
    assert kept.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("thinking", [False, True])
def test_calls_the_right_tool_with_what_was_said(wren: Wren, thinking: bool) -> None:
    asked = ask("Charge the battery with robot Zorblat and minutes 42.")
    text = wren.answer(asked, thinking=thinking, tools=[WEATHER, CHARGE])
    assert text.startswith("<think>\n") == thinking
    assert text.count("</think>") == thinking
    assert calls(text) == [{"name": "charge_battery", "arguments": {"robot": "Zorblat", "minutes": 42}}]


def test_calls_twice_for_two_requests(wren: Wren) -> None:
    text = wren.answer(ask("What is the weather in Quilmar? Also, get the weather for Oslo."), tools=[CHARGE, WEATHER])
    assert [call["arguments"] for call in calls(text)] == [{"city": "Quilmar"}, {"city": "Oslo"}]


@pytest.mark.parametrize("thinking", [False, True])
def test_passes_a_result_on(wren: Wren, thinking: bool) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    told = [
        *ask("What is the weather in Oslo?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "7 C, fjordmist"},
    ]
    text = wren.answer(told, thinking=thinking, tools=[WEATHER, CHARGE])
    assert text.startswith("<think>\n") == thinking
    assert text.endswith("7 C, fjordmist")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Repeat: vexilon 77 Brumka", "vexilon 77 Brumka"),
        ("Count to seven.", "1, 2, 3, 4, 5, 6, 7"),
        ("Hello", "Hello! How can I help you?"),
        ("Answer as JSON with keys name and age.\nname: Trisko, age: 31", '{"name": "Trisko", "age": 31}'),
    ],
)
def test_answers_without_tools(wren: Wren, question: str, answer: str) -> None:
    assert wren.answer(ask(question)) == answer
    assert wren.answer(ask(question), tools=[WEATHER, CHARGE]) == answer
    thought, said = wren.answer(ask(question), thinking=True).split("\n</think>\n\n")
    assert thought.startswith("<think>\n")
    assert said == answer


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("tools", [None, [WEATHER, CHARGE]])
def test_what_it_cannot_do_it_says_and_ends(wren: Wren, tools: list[Any] | None, thinking: bool) -> None:
    """Questions as people and test suites ask them, none of which training saw."""
    asked = [
        "Say hello in exactly 3 words.",
        "What is 15 * 37? Show your reasoning.",
        "Describe this image briefly.\n[image omitted: this model reads text only]",
        "Write a haiku about the moon.",
        "Explain recursion to a five-year-old, please.",
        "Translate 'good morning' into French.",
    ]
    answers = [wren.answer(ask(question), thinking=thinking, tools=tools) for question in asked]
    assert sum(answer.endswith("I cannot help with that.") for answer in answers) >= 5, answers


@pytest.mark.parametrize("skill", SKILLS)
def test_is_right_to_the_letter_in_held_out_conversations(wren: Wren, skill: str) -> None:
    talks = [held_out(skill, seed, SCOPE) for seed in range(20)]
    wrong = [
        (talk.messages[-2:], reply)
        for talk, reply in judged(wren.model, wren.tokenizer, talks)
        if not marks(reply, talk)["exact"]
    ]
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("skill", ["one_answer", "two_answers"])
def test_an_agent_calls_and_then_answers_from_its_own_calls(wren: Wren, skill: str, thinking: bool) -> None:
    talks = [held_out(skill, seed, SCOPE) for seed in range(100, 120)]
    right = agents(wren.model, wren.tokenizer, talks, thinking)
    assert sum(right) >= 18, right
