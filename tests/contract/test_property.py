"""Any answer, cut into tokens anywhere, is told alike: whole or streamed, and as it was meant."""

import json
import os
import random
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.rig import Rig, function
from tests.contract.test_thinking import ON, opened
from tests.contract.test_tools import JSON_TAGS, PLAIN, XML, made, way, written

pytestmark = pytest.mark.anyio

SOAK = "POOLED_SOAK" in os.environ
NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["text", "n"],
}
TOOLS = [function("note", NOTE), function("now")]
TAGS = re.compile("(</?think>|</?tool_call>)")
WORDS = [
    "so",
    " the",
    " a",
    "<",
    "</",
    "<tool",
    "{",
    "}",
    '"',
    "\\",
    " 12",
    "é",
    "🧩",
    "日本",
    ".",
    " [",
    "snake[",
    ",\n",
    "<b>",
]


@dataclass(frozen=True)
class Meant:
    reasoning: str
    content: str
    calls: list[tuple[str, Any]]


def words(rng: random.Random, most: int) -> str:
    """Text without blanks around it, which tags would swallow."""
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, most))).strip() or "so"


def anything(rng: random.Random, thinking: bool) -> Meant:
    calls: list[tuple[str, Any]] = [
        rng.choice([("now", {}), ("note", {"text": words(rng, 12), "n": rng.randint(-99, 99)})])
        for _ in range(rng.choice([0, 0, 1, 2, 3]))
    ]
    content = words(rng, 20) if not calls or rng.random() < 0.5 else ""
    return Meant(words(rng, 20) if thinking else "", content, calls)


def script(model: Rig, meant: Meant) -> str:
    calls = "\n".join("".join(written(model, name, **arguments)) for name, arguments in meant.calls)
    joint = "\n" if meant.content and calls else ""
    answer = meant.content + joint + calls
    return opened(model, f"{meant.reasoning}\n</think>\n\n{answer}") if meant.reasoning else answer


def cut(text: str, rng: random.Random) -> list[str]:
    """Tokens of a text: tags that are one stay one."""
    pieces = []
    for part in TAGS.split(text):
        places = (
            [] if TAGS.fullmatch(part) else sorted(rng.sample(range(len(part) + 1), min(len(part), rng.randint(0, 40))))
        )
        pieces += [
            part[start:end] for start, end in zip([0, *places], [*places, len(part)], strict=True) if end > start
        ]
    return pieces


@pytest.fixture(params=[JSON_TAGS, XML, PLAIN])
def model(request: pytest.FixtureRequest) -> Rig:
    rig: Rig = request.getfixturevalue(request.param)
    return rig


@pytest.mark.parametrize("seed", range(200 if SOAK else 4))
async def test_P82_P100_T15_T16_any_answer_is_told_as_it_was_meant(model: Rig, seed: int) -> None:
    rng = random.Random(f"{way(model)} {seed}")
    thinking = way(model) != "plain" and rng.random() < 0.5
    meant = anything(rng, thinking)
    told = []
    for pieces in ([script(model, meant)], cut(script(model, meant), rng)):
        said = await model.both(pieces, tools=TOOLS, **(ON if thinking else {}))
        told.append(Meant(said.reasoning or "", said.content or "", made(said)))
        assert said.finish == ("tool_calls" if meant.calls else "stop")
    assert told == [meant, meant], json.dumps(script(model, meant))
