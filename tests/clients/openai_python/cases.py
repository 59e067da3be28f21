"""The official Python SDK: sync and async, `.parse`, `.stream`, `with_raw_response`."""

import asyncio
import json
from typing import Any

import openai
from kit import QUESTIONS, raised, run, until_queue
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

COUNT, WEATHER, PERSON, AGENT = (QUESTIONS[each] for each in ("count", "weather", "person", "agent"))
TOOLS: Any = [{"type": "function", "function": WEATHER["tool"]}]
BOTH_TOOLS: Any = [*TOOLS, {"type": "function", "function": QUESTIONS["note"]}]
MOST = 400
"""Tokens of an answer, so that a model that errs comes to an end."""


class Person(BaseModel):
    name: str
    age: int


class get_weather(BaseModel):
    """Get the weather in a city."""

    city: str


def asking(text: str, **members: Any) -> Any:
    return {
        "model": "pooled",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_completion_tokens": MOST,
        **members,
    }


def sync_client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="pooled")


def async_client(base_url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key="pooled")


def stream(base_url: str) -> Any:
    async def with_async() -> str:
        async with async_client(base_url) as client:
            chunks = await client.chat.completions.create(**asking(COUNT["ask"]), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def with_async_helper() -> str:
        async with (
            async_client(base_url) as client,
            client.chat.completions.stream(**asking(COUNT["ask"])) as events,
        ):
            return "".join([event.delta async for event in events if event.type == "content.delta"])

    with sync_client(base_url) as client:
        chunks = list(
            client.chat.completions.create(**asking(COUNT["ask"]), stream=True, stream_options={"include_usage": True})
        )
        with client.chat.completions.stream(**asking(COUNT["ask"])) as events:
            helped = "".join(event.delta for event in events if event.type == "content.delta")
            final = events.get_final_completion()
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 1
    assert "".join(pieces) == helped == final.choices[0].message.content == COUNT["answer"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert final.choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert asyncio.run(with_async()) == asyncio.run(with_async_helper()) == COUNT["answer"]
    return {"pieces": len(pieces), "usage": usage.model_dump(exclude_none=True)}


def whole(base_url: str) -> Any:
    async def with_async() -> str | None:
        async with async_client(base_url) as client:
            reply = await client.chat.completions.create(**asking(COUNT["ask"]))
            return reply.choices[0].message.content

    with sync_client(base_url) as client:
        raw = client.chat.completions.with_raw_response.create(**asking(COUNT["ask"]))
        model = next(iter(client.models.list()))
        assert client.models.retrieve(model.id).id == model.id
    reply = raw.parse()
    assert reply.choices[0].message.content == asyncio.run(with_async()) == COUNT["answer"]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == model.id
    assert raw.status_code == 200
    assert raw.headers["x-request-id"]
    return {"model": reply.model, "request": raw.headers["x-request-id"]}


def tools(base_url: str) -> Any:
    with sync_client(base_url) as client:
        asked = asking(WEATHER["ask"], tools=TOOLS)
        first = client.chat.completions.create(**asked).choices[0]
        assert first.finish_reason == "tool_calls"
        (call,) = first.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", WEATHER["arguments"])
        asked["messages"] += [
            first.message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": WEATHER["result"]},
        ]
        last = client.chat.completions.create(**asked).choices[0]
        assert last.finish_reason == "stop"
        assert WEATHER["result"] in (last.message.content or "")
        with client.chat.completions.stream(**asked) as events:
            assert events.get_final_completion().choices[0].message.content == last.message.content
        parsed = client.chat.completions.parse(
            **asking(WEATHER["ask"], tools=[openai.pydantic_function_tool(get_weather)], tool_choice="required")
        )
        (call_parsed,) = parsed.choices[0].message.tool_calls or []
        assert call_parsed.function.parsed_arguments == get_weather(**WEATHER["arguments"])
    return {"call": call.function.to_dict(), "answer": last.message.content}


def agent(base_url: str) -> Any:
    """Thinks, makes two calls at once, and answers from what they gave: until there is nothing left to call."""
    results = {"get_weather": WEATHER["result"], "take_note": AGENT["noted"]}
    asked = asking(AGENT["ask"], tools=BOTH_TOOLS, reasoning_effort="low")
    given = []
    with sync_client(base_url) as client:
        while (choice := client.chat.completions.create(**asked).choices[0]).finish_reason == "tool_calls":
            assert choice.message.to_dict()["reasoning_content"]
            asked["messages"].append(choice.message.to_dict())
            for call in choice.message.tool_calls or []:
                assert call.type == "function"
                given.append((call.function.name, json.loads(call.function.arguments)))
                result = {"role": "tool", "tool_call_id": call.id, "content": results[call.function.name]}
                asked["messages"].append(result)
    assert given == [("get_weather", WEATHER["arguments"]), ("take_note", AGENT["note"])]
    assert choice.message.content == AGENT["answer"]
    return {"given": given, "answer": choice.message.content}


def structured(base_url: str) -> Any:
    async def with_async() -> Person | None:
        async with async_client(base_url) as client:
            reply = await client.chat.completions.parse(**asking(PERSON["ask"]), response_format=Person)
            return reply.choices[0].message.parsed

    with sync_client(base_url) as client:
        parsed = client.chat.completions.parse(**asking(PERSON["ask"]), response_format=Person)
        with client.chat.completions.stream(**asking(PERSON["ask"]), response_format=Person) as events:
            streamed = events.get_final_completion()
        free = client.chat.completions.create(**asking(PERSON["ask"]), response_format={"type": "json_object"})
    found = [each.choices[0].message.parsed for each in (parsed, streamed)]
    assert [*found, asyncio.run(with_async())] == [Person(**PERSON["answer"])] * 3
    assert isinstance(json.loads(free.choices[0].message.content or ""), dict)
    return {"parsed": PERSON["answer"]}


def thinking(base_url: str) -> Any:
    with sync_client(base_url) as client:
        asked = asking(COUNT["ask"], reasoning_effort="low")
        reply = client.chat.completions.create(**asked)
        message = reply.choices[0].message
        thought = message.to_dict()["reasoning_content"]
        assert isinstance(thought, str)
        assert thought
        assert "think>" not in thought + (message.content or "")
        assert message.content == COUNT["answer"]
        assert reply.usage is not None
        assert reply.usage.completion_tokens_details is not None
        assert reply.usage.completion_tokens_details.reasoning_tokens
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
        streamed = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert streamed == thought
        assert "".join(delta.content or "" for delta in deltas) == message.content
        asked["messages"] += [message.to_dict(), {"role": "user", "content": COUNT["ask"]}]
        assert client.chat.completions.create(**asked).choices[0].message.content
        plain = client.chat.completions.create(**asking(COUNT["ask"]))
        assert "reasoning_content" not in plain.choices[0].message.to_dict()
    return {"reasoning": thought}


def calls(base_url: str) -> Any:
    wanted = QUESTIONS["two_calls"]
    with sync_client(base_url) as client:
        asked = asking("Do both.", tools=BOTH_TOOLS)
        whole = client.chat.completions.create(**asked).choices[0]
        with client.chat.completions.stream(**asked) as events:
            streamed = events.get_final_completion().choices[0]
    for choice in (whole, streamed):
        found = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]
        assert found == [(call["name"], call["arguments"]) for call in wanted["calls"]]
        assert choice.message.content == wanted["text"]
        assert choice.finish_reason == "tool_calls"
        assert len({call.id for call in choice.message.tool_calls or []}) == 2
    return {"calls": found}


def cancelled(base_url: str) -> Any:
    async def with_async() -> None:
        async with async_client(base_url) as client:
            chunks = await client.chat.completions.create(**asking("hi"), stream=True)
            await anext(aiter(chunks))
            await asyncio.to_thread(until_queue, base_url, 1)
            await chunks.close()
            await asyncio.to_thread(until_queue, base_url, 0)
            whole = asyncio.create_task(client.chat.completions.create(**asking("hi")))
            await asyncio.to_thread(until_queue, base_url, 1)
            whole.cancel()
            await asyncio.to_thread(until_queue, base_url, 0)

    with sync_client(base_url) as client:
        chunks = client.chat.completions.create(**asking("hi"), stream=True)
        next(iter(chunks))
        until_queue(base_url, 1)
        chunks.close()
        until_queue(base_url, 0)
        asyncio.run(with_async())
    return {"queue": 0}


def broken(base_url: str) -> Any:
    pieces = []

    def read() -> None:
        with sync_client(base_url) as client:
            for chunk in client.chat.completions.create(**asking("hi"), stream=True):
                pieces.append(chunk.choices[0].delta.content or "")

    async def read_async() -> None:
        async with async_client(base_url) as client:
            async for _ in await client.chat.completions.create(**asking("hi"), stream=True):
                pass

    errors = [raised(openai.APIError, each) for each in (read, lambda: asyncio.run(read_async()))]
    assert "".join(pieces) == QUESTIONS["broken"]["text"]
    for error in errors:
        assert error.code == QUESTIONS["broken"]["code"]
        assert QUESTIONS["broken"]["message"] in error.message
    return {"error": errors[0].message}


def full(base_url: str) -> Any:
    with sync_client(base_url) as client:
        asked = asking("hi", stream=True)
        error = raised(openai.RateLimitError, lambda: client.chat.completions.create(**asked))
    assert error.code == QUESTIONS["full"]["code"]
    assert int(error.response.headers["retry-after"]) >= 1
    return {"error": error.message}


run(
    {
        "stream": stream,
        "whole": whole,
        "tools": tools,
        "agent": agent,
        "structured": structured,
        "thinking": thinking,
        "calls": calls,
        "cancelled": cancelled,
        "broken": broken,
        "full": full,
    }
)
