"""The official OpenAI SDK against the bridge, as people use it."""

import asyncio
from typing import TYPE_CHECKING, cast

import anyio.to_thread
import grpc
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from protos import room_pb2
from tests.bridge.conftest import Bridge, running
from tests.bridge.fake_room import (
    MODEL,
    FakeRoom,
    Pause,
    Refuse,
    answer,
    call,
    call_delta,
    finish,
    queued,
    reasoning,
    text,
    usage,
)
from tests.bridge.test_calls import TOOL_CALLS, TWO

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam

pytestmark = pytest.mark.anyio

ASK: "list[ChatCompletionMessageParam]" = [{"role": "user", "content": "What is a KV cache?"}]


def client(bridge: Bridge, retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=bridge.base_url, api_key="pooled", max_retries=retries)


async def test_P5_the_python_example_of_the_documentation(bridge: Bridge) -> None:
    def example() -> str:
        with OpenAI(base_url=bridge.base_url, api_key="pooled") as client:
            stream = client.chat.completions.create(model="pooled", messages=ASK, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await anyio.to_thread.run_sync(example) == "Hello there"


async def test_P92_a_whole_answer(bridge: Bridge) -> None:
    async with client(bridge) as sdk:
        reply = await sdk.chat.completions.create(model="pooled", messages=ASK)
    assert (reply.model, reply.choices[0].finish_reason) == (MODEL, "stop")
    assert reply.choices[0].message.content == "Hello there"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 33


async def test_P71_B1_B3_B4_comments_and_usage_in_a_stream(chatty: Bridge) -> None:
    chatty.room.script = [queued(1), Pause(0.25), text("Hello"), Pause(0.25), text(" there"), finish(), usage()]
    async with client(chatty) as sdk:
        stream = await sdk.chat.completions.create(
            model="pooled", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello there"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 33


async def test_P81_thoughts(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), reasoning("hm"), text("42"), finish(), usage(thought=1)]
    async with client(bridge) as sdk:
        reply = await sdk.chat.completions.create(model="pooled", messages=ASK, reasoning_effort="low")
    assert reply.choices[0].message.model_dump()["reasoning_content"] == "hm"


async def test_P113_B36_a_stream_that_fails_raises(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("half"), Refuse("pipeline_lost", "a peer left")]
    async with client(bridge) as sdk:
        stream = await sdk.chat.completions.create(model="pooled", messages=ASK, stream=True)
        with pytest.raises(openai.APIError, match="a peer left"):
            async for _ in stream:
                pass


async def test_P42_B28_a_prompt_too_long_raises_with_its_code(bridge: Bridge) -> None:
    async with client(bridge, retries=2) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(model="pooled", messages=[{"role": "user", "content": "x" * 100_000}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


async def test_C9_C17_a_full_queue_is_tried_again(bridge: Bridge) -> None:
    bridge.room.script = [Refuse("queue_full", "the line is full", retry_after=1)]
    async with client(bridge) as sdk:
        with pytest.raises(openai.RateLimitError, match="the line is full") as caught:
            await sdk.chat.completions.create(model="pooled", messages=ASK)
    assert caught.value.code == "queue_full"
    async with client(bridge, retries=1) as sdk:
        asking = asyncio.ensure_future(sdk.chat.completions.create(model="pooled", messages=ASK))
        await bridge.room.until_asked(2)
        bridge.room.script = answer("Hello")
        assert (await asking).choices[0].message.content == "Hello"


async def test_P118_C17_a_stopped_answer_is_not_tried_again(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), Refuse("cancelled_by_room", "the host stopped this answer")]
    async with client(bridge, retries=2) as sdk:
        with pytest.raises(openai.InternalServerError, match="the host stopped"):
            await sdk.chat.completions.create(model="pooled", messages=ASK)
    assert len(bridge.room.requests) == 1


async def test_P136_a_body_too_large_is_a_413_not_a_broken_connection(room: FakeRoom) -> None:
    async with running(room, max_body=1 << 20) as bridge:
        huge = "x" * (30 << 20)

        def sync() -> int:
            with OpenAI(base_url=bridge.base_url, api_key="pooled", max_retries=0) as sdk:
                with pytest.raises(openai.APIStatusError) as caught:
                    sdk.chat.completions.create(model="pooled", messages=[{"role": "user", "content": huge}])
                return caught.value.status_code

        assert await anyio.to_thread.run_sync(sync) == 413
        async with client(bridge) as sdk:
            with pytest.raises(openai.APIStatusError) as caught:
                await sdk.chat.completions.create(model="pooled", messages=[{"role": "user", "content": huge}])
            assert caught.value.status_code == 413


async def test_M1_M2_models(bridge: Bridge) -> None:
    async with client(bridge) as sdk:
        assert [model.id async for model in sdk.models.list()] == [MODEL]
        assert (await sdk.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await sdk.models.retrieve("gpt-4o")


async def test_P115_a_stream_closed_early_stops_the_room(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("a"), asyncio.Event()]
    async with client(bridge) as sdk:
        stream = await sdk.chat.completions.create(model="pooled", messages=ASK, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
    await asyncio.wait_for(bridge.room.until_cancelled(), 60)


async def test_P4_C2_the_token_is_the_api_key(room: FakeRoom) -> None:
    async with running(room, token="s3cret") as bridge:
        async with AsyncOpenAI(base_url=bridge.base_url, api_key="s3cret", max_retries=0) as sdk:
            assert (await sdk.chat.completions.create(model="pooled", messages=ASK)).choices
        async with client(bridge) as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.chat.completions.create(model="pooled", messages=ASK)


# ---------------------------------------------------------------- tools and structured output

SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTIONS: "list[ChatCompletionToolUnionParam]" = [
    {"type": "function", "function": {"name": "add", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "weather"}},
]


class Person(BaseModel):
    name: str
    age: int


async def test_T17_T19_a_round_trip_of_tools(bridge: Bridge) -> None:
    bridge.room.script = TWO
    async with client(bridge) as sdk:
        reply = await sdk.chat.completions.create(model="pooled", messages=ASK, tools=FUNCTIONS)
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        results: list[ChatCompletionMessageParam] = [
            {"role": "tool", "tool_call_id": made.id, "content": f"result of {made.id}"} for made in message.tool_calls
        ]
        bridge.room.script = answer("4, and rain")
        # As the documentation of the SDK does it: the answer goes back as it came.
        history = [*ASK, cast("ChatCompletionMessageParam", message.model_dump()), *results]
        again = await sdk.chat.completions.create(model="pooled", messages=history, tools=FUNCTIONS)
    assert again.choices[0].message.content == "4, and rain"
    turns = bridge.room.asked.turns
    assert [(made.name, made.arguments) for made in turns[1].calls] == [("add", '{"a": 2, "b": 2}'), ("weather", "{}")]
    assert [turn.text for turn in turns[2:]] == [f"result of {made.id}" for made in turns[1].calls]


async def test_T14_B9_B10_a_stream_of_calls_is_put_together(bridge: Bridge) -> None:
    bridge.room.script = TWO
    async with (
        client(bridge) as sdk,
        sdk.chat.completions.stream(model="pooled", messages=ASK, tools=FUNCTIONS) as stream,
    ):
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = (await stream.get_final_completion()).choices[0]
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "add", '{"a": 2, "b": 2}'), (1, "weather", "{}")
    ]  # fmt: skip
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert len({made.id for made in final.message.tool_calls}) == 2


async def test_S3_S16_parse_and_stream_of_a_model(bridge: Bridge) -> None:
    bridge.room.script = answer('{"name": "Ada", ', '"age": 36}')
    async with client(bridge) as sdk:
        reply = await sdk.chat.completions.parse(model="pooled", messages=ASK, response_format=Person)
        assert reply.choices[0].message.parsed == Person(name="Ada", age=36)
        async with sdk.chat.completions.stream(model="pooled", messages=ASK, response_format=Person) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == Person(name="Ada", age=36)
    assert bridge.room.asked.format == room_pb2.ANSWER_FORMAT_SCHEMA
    assert '"required":["name","age"]' in bridge.room.asked.schema


async def test_T23_a_stream_with_tools_and_a_model(bridge: Bridge) -> None:
    arguments = '{"name": "Ada", "age": 36}'
    bridge.room.script = [queued(0), call(0, "meet"), call_delta(0, arguments), finish(TOOL_CALLS), usage()]
    meet = openai.pydantic_function_tool(Person, name="meet")
    async with (
        client(bridge) as sdk,
        sdk.chat.completions.stream(model="pooled", messages=ASK, tools=[meet], response_format=Person) as stream,
    ):
        message = (await stream.get_final_completion()).choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.parsed_arguments == Person(name="Ada", age=36)
    asked = bridge.room.asked
    assert ([tool.name for tool in asked.tools.tools], asked.format) == (["meet"], room_pb2.ANSWER_FORMAT_SCHEMA)


async def test_S6_a_schema_the_room_cannot_enforce_raises_with_its_code(bridge: Bridge) -> None:
    bridge.room.script = [
        Refuse("invalid_schema", "not is not supported", "response_format", status=grpc.StatusCode.INVALID_ARGUMENT)
    ]
    async with client(bridge, retries=2) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.parse(model="pooled", messages=ASK, response_format=Person)
    assert (caught.value.code, caught.value.param) == ("invalid_schema", "response_format")
    assert len(bridge.room.requests) == 1
