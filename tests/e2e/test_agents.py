"""Agents on a real room: a small model that really generates chooses the calls and answers from their results."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from scripts.wren.measure import calling, held_out
from scripts.wren.talks import Talk
from scripts.wren.tools import Json, Scope
from tests.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCOPE = Scope(1, 3, 2, held_out=True)
"""Up to three tools of up to two parameters, with names that training never saw."""


@pytest.fixture(scope="module")
def client(wren_room: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=wren_room.base_url, api_key="pooled") as client:
        yield client


def as_sent(messages: tuple[Json, ...]) -> list[Any]:
    """Messages as SDKs send them: arguments as text, and an id that ties each result to its call."""
    sent: list[Any] = []
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        each = {key: value for key, value in message.items() if key != "reasoning_content"}
        if "tool_calls" in each:
            functions = [call["function"] for call in each["tool_calls"]]
            open_calls = [f"call_{at}_{index}" for index in range(len(functions))]
            each["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {**f, "arguments": json.dumps(f["arguments"])}}
                for call_id, f in zip(open_calls, functions, strict=True)
            ]
        if each["role"] == "tool":
            each["tool_call_id"] = open_calls.pop(0)
        sent.append(each)
    return sent


def said(client: openai.OpenAI, talk: Talk, messages: list[Any], thinking: bool) -> Any:
    """The room's next message, checked to think when it was asked to and only then."""
    reply = client.chat.completions.create(
        model="pooled",
        messages=messages,
        tools=talk.tools,
        temperature=0,
        max_completion_tokens=300,
        reasoning_effort="low" if thinking else "none",
    )
    message = reply.choices[0].message
    assert bool(getattr(message, "reasoning_content", "")) == thinking
    return message


def came_through(client: openai.OpenAI, talk: Talk, thinking: bool) -> bool:
    """Ask, run what is called, give the results back: whether the calls and then the answer are right."""
    at = calling(talk)
    messages = as_sent(talk.messages[:at])
    first = said(client, talk, messages, thinking)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in first.tool_calls or []]
    wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in talk.messages[at]["tool_calls"]]
    if calls != wanted:
        return False
    results = [message["content"] for message in talk.messages[at + 1 : -1]]
    messages.append(first.to_dict())
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(first.tool_calls, results, strict=True)
    ]
    return said(client, talk, messages, thinking).content == talk.messages[-1]["content"]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("skill", ["one_answer", "two_answers"])
def test_agents_come_through(client: openai.OpenAI, skill: str, thinking: bool) -> None:
    talks = [held_out(skill, seed, SCOPE) for seed in range(200, 210)]
    right = [came_through(client, talk, thinking) for talk in talks]
    assert sum(right) >= 9, right
