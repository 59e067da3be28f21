"""LangChain's ChatOpenAI. It drops reasoning_content by design, so thinking shows in its token counts alone."""

import asyncio
from typing import Any

import openai
from kit import QUESTIONS, raised, run, until_queue
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

COUNT, WEATHER, PERSON, AGENT = (QUESTIONS[each] for each in ("count", "weather", "person", "agent"))
MOST = 400
"""Tokens of an answer, so that a model that errs comes to an end."""


class Person(BaseModel):
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    assert {"city": city} == WEATHER["arguments"]
    return str(WEATHER["result"])


@tool
def take_note(text: str) -> str:
    """Write something down."""
    assert {"text": text} == AGENT["note"]
    return str(AGENT["noted"])


def model(base_url: str, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="pooled", base_url=base_url, api_key="pooled", temperature=0, max_tokens=MOST, **settings)


def gather(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def stream(base_url: str) -> Any:
    async def with_async() -> list[AIMessageChunk]:
        return [chunk async for chunk in model(base_url).astream(COUNT["ask"])]

    chunks = list(model(base_url, stream_usage=True).stream(COUNT["ask"]))
    assert sum(bool(chunk.content) for chunk in chunks) > 1
    message = gather(chunks)
    assert message.content == gather(asyncio.run(with_async())).content == COUNT["answer"]
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata is not None
    return {"chunks": len(chunks), "usage": message.usage_metadata}


def whole(base_url: str) -> Any:
    message = model(base_url).invoke(COUNT["ask"])
    assert message.content == asyncio.run(model(base_url).ainvoke(COUNT["ask"])).content == COUNT["answer"]
    assert message.response_metadata["finish_reason"] == "stop"
    return {"usage": message.usage_metadata}


def tools(base_url: str) -> Any:
    able = model(base_url).bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(WEATHER["ask"])]
    first = able.invoke(messages)
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", WEATHER["arguments"])
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    last = able.invoke([*messages, first, result])
    assert WEATHER["result"] in last.content
    streamed = gather(list(able.stream(messages)))
    assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [("get_weather", WEATHER["arguments"])]
    forced = model(base_url).bind_tools([get_weather], tool_choice="get_weather").invoke(messages)
    assert forced.tool_calls[0]["args"] == WEATHER["arguments"]
    return {"call": call, "answer": last.content}


def agent(base_url: str) -> Any:
    """Calls until there is nothing left to call."""
    known = {each.name: each for each in (get_weather, take_note)}
    able = model(base_url, reasoning_effort="low").bind_tools(list(known.values()))
    messages: list[Any] = [HumanMessage(AGENT["ask"])]
    given = []
    while (reply := able.invoke(messages)).tool_calls:
        messages += [reply, *(known[call["name"]].invoke(call) for call in reply.tool_calls)]
        given += [call["name"] for call in reply.tool_calls]
    assert given == ["get_weather", "take_note"]
    assert reply.content == AGENT["answer"]
    return {"given": given, "answer": reply.content}


def structured(base_url: str) -> Any:
    methods = ("json_schema", "function_calling")
    found = [model(base_url).with_structured_output(Person, method=each).invoke(PERSON["ask"]) for each in methods]
    assert found[0] == Person(**PERSON["answer"])
    assert isinstance(found[1], Person)
    return {"parsed": [each.model_dump() for each in found]}


def thinking(base_url: str) -> Any:
    message = model(base_url, reasoning_effort="low").invoke(COUNT["ask"])
    assert message.content == COUNT["answer"]
    assert message.usage_metadata is not None
    tokens = message.usage_metadata["output_token_details"]["reasoning"]
    assert tokens > 0
    streamed = gather(list(model(base_url, reasoning_effort="low", stream_usage=True).stream(COUNT["ask"])))
    assert streamed.content == message.content
    return {"reasoning_tokens": tokens}


def calls(base_url: str) -> Any:
    wanted = QUESTIONS["two_calls"]
    able = model(base_url).bind_tools([{"type": "function", "function": QUESTIONS["note"]}, get_weather])
    for message in (able.invoke("Do both."), gather(list(able.stream("Do both.")))):
        found = [{"name": call["name"], "arguments": call["args"]} for call in message.tool_calls]
        assert found == wanted["calls"]
        assert not message.invalid_tool_calls
        assert message.content == wanted["text"]
        assert message.response_metadata["finish_reason"] == "tool_calls"
    return {"calls": found}


def cancelled(base_url: str) -> Any:
    async def leave() -> None:
        whole = asyncio.create_task(model(base_url).ainvoke("hi"))
        await asyncio.to_thread(until_queue, base_url, 1)
        whole.cancel()
        await asyncio.to_thread(until_queue, base_url, 0)

    chunks = model(base_url).stream("hi")
    while not next(chunks).content:
        pass
    until_queue(base_url, 1)
    chunks.close()
    until_queue(base_url, 0)
    asyncio.run(leave())
    return {"queue": 0}


def broken(base_url: str) -> Any:
    pieces = []

    def read() -> None:
        for chunk in model(base_url).stream("hi"):
            pieces.append(chunk.content)

    error = raised(openai.APIError, read)
    assert "".join(pieces) == QUESTIONS["broken"]["text"]
    assert error.code == QUESTIONS["broken"]["code"]
    assert QUESTIONS["broken"]["message"] in error.message
    return {"error": error.message}


def full(base_url: str) -> Any:
    error = raised(openai.RateLimitError, lambda: model(base_url).invoke("hi"))
    assert error.code == QUESTIONS["full"]["code"]
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
