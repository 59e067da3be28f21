"""Schemas of the kinds people use, and the embedded model really writing: what it finishes fits its schema."""

import asyncio
import json
import os
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster
from tests.room.text.schemas import used_by_people, validator

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(3000)]

SOAK = "POOLED_SOAK" in os.environ
ASKED = used_by_people() if SOAK else random.Random(9).sample(used_by_people(), 4)
TOGETHER = 24
MAX_TOKENS = 400 if SOAK else 80


def test_S3_S9_S15_S18_what_the_model_finishes_fits_its_schema(gguf_room: Cluster) -> None:
    outcomes = Counter(asyncio.run(_ask_all(gguf_room.base_url)))
    print(f"of {len(ASKED)} schemas: {dict(outcomes)}")
    assert outcomes["refused"] <= len(ASKED) / 2
    assert not SOAK or outcomes["stop"] > outcomes["length"]


async def _ask_all(base_url: str) -> list[str]:
    places = asyncio.Semaphore(TOGETHER)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=1200) as http:

        async def ask(schema: Any) -> str:
            async with places:
                return await _ask(http, schema)

        return await asyncio.gather(*map(ask, ASKED))


async def _ask(http: httpx.AsyncClient, schema: Any) -> str:
    """How it ended: refused, stop or length."""
    body = {
        "messages": [{"role": "user", "content": "Give me a short example, as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}},
        "max_tokens": MAX_TOKENS,
        "temperature": 0.7,
    }
    reply = await http.post("/chat/completions", json=body)
    if reply.status_code == 400:
        error = reply.json()["error"]
        assert error["code"] == "invalid_schema", error
        assert "response_format" in error["message"]
        return "refused"
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    content = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        error = next(validator(schema).iter_errors(json.loads(content)), None)
        assert error is None, f"{content!r} does not fit {json.dumps(schema)}: {error.message if error else ''}"
    else:
        assert choice["finish_reason"] == "length"
    return str(choice["finish_reason"])
