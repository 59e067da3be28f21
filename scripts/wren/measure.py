"""Figures: what a model writes in place of the last message of conversations it never saw."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from scripts.wren.talks import SKILLS, Talk, converse
from scripts.wren.tools import Json, Scope
from scripts.wren.words import Dice

MARKS = ("think", "stop", "json", "name", "exact")


@dataclass(frozen=True)
class Reply:
    """What a model wrote, taken apart: None where it is not well-formed."""

    reasoning: str | None
    content: str
    calls: list[Json] | None
    stopped: bool


def parse(text: str, thinking: bool) -> Reply:
    stopped = "<|im_end|>" in text
    text = text.split("<|im_end|>")[0]
    block = re.match(r"<think>\n(.*?)\n</think>\n\n", text, re.S) if thinking else re.match("()", text)
    reasoning = block.group(1) if block and text.count("think>") == (2 if thinking else 0) else None
    body = text[block.end() :] if block else text
    calls: list[Json] | None = []
    try:
        calls = [json.loads(found) for found in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", body, re.S)]
        if body.count("tool_call>") != 2 * len(calls) or any(set(c) != {"name", "arguments"} for c in calls):
            calls = None
    except (ValueError, TypeError):
        calls = None
    return Reply(reasoning, re.sub(r"\n?<tool_call>.*", "", body, flags=re.S), calls, stopped)


def held_out(skill: str, seed: int, scope: Scope) -> Talk:
    """A conversation that training never saw; the last of up to three turns is one of `skill`."""
    dice = Dice(f"held out {seed} {skill}")
    before = dice.choices(list(SKILLS.values()), k=dice.choice([0, 0, 1, 2]))
    return converse(dice, [*before, SKILLS[skill]], scope)


def write_replies(model: Any, tokenizer: Any, talks: list[Talk], thinking: bool, longest: int = 160) -> list[Reply]:
    """Greedy answers in place of the last message of each conversation."""
    prompts = [
        tokenizer.apply_chat_template(
            [m if thinking else {**m, "reasoning_content": ""} for m in talk.messages[:-1]],
            tools=list(talk.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
            preserve_thinking=True,
        )
        for talk in talks
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        written = model.generate(**inputs, max_new_tokens=longest, do_sample=False)
    texts = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=False)
    return [parse(text, thinking) for text in texts]


def marks(reply: Reply, talk: Talk) -> dict[str, bool]:
    """Which of the things asked of an answer hold."""
    target = talk.messages[-1]
    wanted = [call["function"] for call in target.get("tool_calls", [])]
    got = reply.calls
    return {
        "think": reply.reasoning is not None,
        "stop": reply.stopped,
        "json": got is not None,
        "name": got is not None and [c["name"] for c in got] == [w["name"] for w in wanted],
        "exact": got == wanted and reply.content == target["content"],
    }


def load(folder: Path) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer


def judged(model: Any, tokenizer: Any, talks: list[Talk]) -> Iterator[tuple[Talk, Reply]]:
    """Each conversation with what was written, every second one with thinking."""
    for thinking in (True, False):
        half = talks[thinking::2]
        for start in range(0, len(half), 50):
            part = half[start : start + 50]
            yield from zip(part, write_replies(model, tokenizer, part, thinking), strict=True)


def agents(model: Any, tokenizer: Any, talks: list[Talk], thinking: bool) -> list[bool]:
    """Whether each agent came through: the model's own calls right, then its answer to their results.

    `talks` end with a request, the calls it wants, their results, and the answer.
    """
    asked = [replace(talk, messages=talk.messages[: calling(talk) + 1]) for talk in talks]
    called = write_replies(model, tokenizer, asked, thinking)
    pairs = zip(talks, called, strict=True)
    told = [_with_calls(talk, reply) for talk, reply in pairs]
    answered = write_replies(model, tokenizer, told, thinking)
    return [
        marks(call, ask)["exact"] and marks(answer, talk)["exact"]
        for call, ask, answer, talk in zip(called, asked, answered, talks, strict=True)
    ]


def calling(talk: Talk) -> int:
    """Which message makes the calls whose results the last message answers from."""
    return max(at for at, message in enumerate(talk.messages) if "tool_calls" in message)


def _with_calls(talk: Talk, reply: Reply) -> Talk:
    """The conversation with the calls that were really written."""
    at = calling(talk)
    calls = [{"type": "function", "function": call} for call in reply.calls or []]
    written = {"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning or ""}
    return replace(talk, messages=(*talk.messages[:at], {**written, "tool_calls": calls}, *talk.messages[at + 1 :]))


def evaluate(folder: Path, count: int, scope: Scope, show: int) -> None:
    model, tokenizer = load(folder)
    for skill in SKILLS:
        total: Counter[str] = Counter()
        for talk, reply in judged(model, tokenizer, [held_out(skill, seed, scope) for seed in range(count)]):
            got = marks(reply, talk)
            total.update({name for name, right in got.items() if right})
            if not got["exact"] and show > 0:
                show -= 1
                print("  asked ", json.dumps(talk.messages[-2]["content"], ensure_ascii=False))
                print("  wanted", json.dumps(talk.messages[-1], ensure_ascii=False), "\n  got   ", reply)
        print(f"{skill:12}", *(f"{name} {100 * total[name] / count:5.1f} " for name in MARKS), flush=True)
    for skill in ("one_answer", "two_answers"):
        talks = [held_out(skill, seed, scope) for seed in range(count)]
        right = sum(sum(agents(model, tokenizer, talks[thinking::2], bool(thinking))) for thinking in (0, 1))
        print(f"agent, {skill:12} {100 * right / count:5.1f}", flush=True)
