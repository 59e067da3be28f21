"""Schemas of the kinds people use, and the embedded model really writing: what it finishes fits its schema."""

import asyncio
import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster
from tests.room.text.schemas import used_by_people, validator

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(5400)]

SOAK = "POOLED_SOAK" in os.environ
ASKED = used_by_people() if SOAK else random.Random(9).sample(used_by_people(), 4)
TOGETHER = 24
MAX_TOKENS = 200 if SOAK else 80
TEMPERATURES = (0.7, 1.0, 1.0, 1.3) if SOAK else (0.7,)
"""Of the attempts at each schema: now and then so small a model repeats itself for ever, less so when it is hotter."""

TALK = [
    {"role": "user", "content": "Give me a short example, as JSON."},
    {"role": "assistant", "content": '{"name": "Ann", "age": 31, "tags": ["a"], "home": {"city": "Oslo"}}'},
    {"role": "user", "content": "Another one, just as short."},
]


@dataclass(frozen=True)
class Outcome:
    kind: str  # valid, invalid, refused or unfinished
    attempts: int
    schema: Any
    content: str = ""


def test_S3_S9_S15_S18_what_the_model_finishes_fits_its_schema(gguf_room: Cluster) -> None:
    outcomes = asyncio.run(_ask_all(gguf_room.base_url))
    counts = Counter(outcome.kind for outcome in outcomes)
    first = sum(outcome.kind == "valid" and outcome.attempts == 1 for outcome in outcomes)
    print(f"of {len(ASKED)} schemas: {dict(counts)}, {first} at the first attempt")
    assert not [outcome for outcome in outcomes if outcome.kind == "invalid"]
    if SOAK:
        for outcome in outcomes:
            if outcome.kind == "unfinished":
                print(json.dumps(outcome.schema), outcome.content[-80:])
        assert counts["refused"] == 76, "by keyword, of 300 that are the same each time"
        assert counts["unfinished"] <= 0.03 * len(ASKED)


async def _ask_all(base_url: str) -> list[Outcome]:
    places = asyncio.Semaphore(TOGETHER)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=None) as http:

        async def ask(schema: Any) -> Outcome:
            async with places:
                outcome = await _ask(http, schema)
                print(outcome.kind, outcome.attempts, outcome.content[:60], flush=True)
                return outcome

        return await asyncio.gather(*map(ask, ASKED))


async def _ask(http: httpx.AsyncClient, schema: Any) -> Outcome:
    """Ask until the model comes to an end of its own, or the attempts are used up."""
    content = ""
    for attempt, temperature in enumerate(TEMPERATURES, 1):
        body = {
            "messages": TALK,
            "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}},
            "max_tokens": MAX_TOKENS,
            "temperature": temperature,
        }
        reply = await http.post("/chat/completions", json=body)
        if reply.status_code == 400:
            error = reply.json()["error"]
            assert error["code"] == "invalid_schema", error
            assert "response_format" in error["message"]
            return Outcome("refused", attempt, schema)
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        content = choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            fits = validator(schema).is_valid(json.loads(content))
            return Outcome("valid" if fits else "invalid", attempt, schema, content)
        assert choice["finish_reason"] == "length"
    return Outcome("unfinished", len(TEMPERATURES), schema, content)
