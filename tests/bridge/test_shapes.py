"""The look at shapes itself: it must be able to fail. Every chat answer of these tests passes through it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from tests.bridge import shapes
from tests.bridge.conftest import Bridge
from tests.bridge.fake_room import call, call_delta, finish, queued, reasoning, text, usage
from tests.bridge.test_calls import TOOL_CALLS

pytestmark = pytest.mark.anyio

EVERYTHING = [
    queued(0), reasoning("hm"), text("so"), call(0, "f"), call_delta(0, "{}"), finish(TOOL_CALLS), usage(9, 5, 4, 1)
]  # fmt: skip


async def everything(bridge: Bridge, **members: Any) -> Any:
    bridge.room.script = EVERYTHING
    function = {"type": "function", "function": {"name": "f"}}
    return await bridge.ask(tools=[function], reasoning_effort="low", **members)


async def test_P92_P131_an_answer_with_everything_in_it_has_openais_shape(bridge: Bridge) -> None:
    shapes.check_whole((await everything(bridge)).json())
    shapes.check_stream((await everything(bridge, stream=True, stream_options={"include_usage": True})).content)
    shapes.check_error((await bridge.ask(n=2)).json())


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["choices"][0]["message"].__setitem__(name, value)


@pytest.mark.parametrize(
    "spoil",
    [
        _set("content", 5),
        _set("role", "bot"),
        _set("tool_calls", []),
        _set("reasoning", "x"),
        _set("tool_calls", [{"id": "a", "type": "function", "function": {"name": "f"}}]),
        lambda body: body["choices"][0].pop("logprobs"),
        lambda body: body["choices"][0].update(finish_reason="eos_token"),
        lambda body: body.update(created="now"),
        lambda body: body["usage"].update(prompt_tokens=1.5),
    ],
)
async def test_a_wrong_shape_is_seen(bridge: Bridge, spoil: Callable[[dict[str, Any]], None]) -> None:
    body = copy.deepcopy((await everything(bridge)).json())
    spoil(body)
    with pytest.raises((AssertionError, ValidationError)):
        shapes.check_whole(body)
