"""Asks an OpenAI-compatible server for streamed answers, and takes the time."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

TOKENS = 48
PATIENCE = 600.0
"""Seconds for one answer."""

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Answer:
    """One streamed answer. Times are seconds from the request on."""

    text: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that the server says it held already."""
    first: float
    """Until the first piece of text."""
    last: float
    """Until the last one."""

    @property
    def per_token(self) -> float:
        """Seconds from one token to the next. Pieces that come together count as one moment."""
        return (self.last - self.first) / max(self.tokens - 1, 1)


@dataclass(frozen=True)
class Together:
    """Answers that were asked for at the same moment."""

    answers: tuple[Answer, ...]
    took: float

    @property
    def tokens_per_second(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.took

    @property
    def fairness(self) -> float:
        """The slowest answer's pace over the quickest one's."""
        paces = [answer.per_token for answer in self.answers]
        return min(paces) / max(paces)


@dataclass(frozen=True)
class Server:
    """Where to ask, and by which name of a model."""

    base_url: str
    model: str = "pooled"
    extra: Mapping[str, Any] | None = None
    """Members of the request that this server needs beside the usual ones."""

    def ask(self, *conversations: Messages, tokens: int = TOKENS) -> Together:
        """Ask for greedy answers to all conversations at once. Raises httpx.HTTPError where one fails."""
        return asyncio.run(self._ask(conversations, tokens))

    async def _ask(self, conversations: Sequence[Messages], tokens: int) -> Together:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.base_url, timeout=PATIENCE, limits=limits) as client:
            began = time.perf_counter()
            answers = await asyncio.gather(*(self._answer(client, each, tokens) for each in conversations))
            return Together(tuple(answers), time.perf_counter() - began)

    async def _answer(self, client: httpx.AsyncClient, messages: Messages, tokens: int) -> Answer:
        body = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(self.extra or {}),
        }
        pieces: list[str] = []
        usage: dict[str, Any] = {}
        began = time.perf_counter()
        first = last = 0.0
        async with client.stream("POST", "/chat/completions", json=body) as reply:
            if reply.is_error:
                await reply.aread()
                raise httpx.HTTPStatusError(
                    f"{reply.status_code}: {reply.text[:300]}", request=reply.request, response=reply
                )
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise httpx.StreamError(f"the answer ended with {str(chunk['error'])[:300]}")
                usage = chunk.get("usage") or usage
                if chunk.get("choices") and (text := chunk["choices"][0]["delta"].get("content")):
                    last = time.perf_counter() - began
                    first = first or last
                    pieces.append(text)
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            text="".join(pieces),
            tokens=usage.get("completion_tokens", len(pieces)),
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=details.get("cached_tokens", 0),
            first=first,
            last=last,
        )


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]
