"""Sections C, D, E, F, G, H and I, and the parameters of L."""

import json
from typing import Any

import pytest

from protos import room_pb2
from tests.bridge.conftest import USER, Bridge, deltas, error_of
from tests.bridge.fake_room import MODEL, Refuse, finish, queued, reasoning, text, usage

pytestmark = pytest.mark.anyio


async def refused_for(bridge: Bridge, name: str, *values: Any, param: str | None = None) -> None:
    """Each value of `name` is a 400 for it."""
    for value in values:
        error = await bridge.refused(**{name: value})
        assert error["type"] == "invalid_request_error"
        assert error["param"] == (param or name), (name, value)
        assert name.split(".")[0] in error["message"]


# ---------------------------------------------------------------- C. model


@pytest.mark.parametrize("model", ["gpt-4o", "", "\u6a21\u578b", "m" * 300, None])
async def test_P30_P31_any_model_is_the_rooms_own(bridge: Bridge, model: str | None) -> None:
    assert (await bridge.ask(model=model)).json()["model"] == MODEL
    assert {event["model"] for event in await bridge.events(model=model) if event != "[DONE]"} == {MODEL}


async def test_P31_the_model_may_be_left_out(bridge: Bridge) -> None:
    reply = await bridge.post(json.dumps({"messages": [USER]}).encode())
    assert reply.json()["model"] == MODEL


async def test_P31_what_is_no_name_is_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "model", 5, [], {}, True)


# ---------------------------------------------------------------- D. length


async def test_P35_P36_P38_how_many_tokens_are_asked_for(bridge: Bridge) -> None:
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, 16_384),
        ({"max_tokens": 65_536}, 65_536),
        ({"max_tokens": 65_537}, 65_536),
        ({"max_completion_tokens": 10**9}, 65_536),
        ({"max_completion_tokens": 5, "max_tokens": 10}, 5),
        ({"max_completion_tokens": 10, "max_tokens": 5}, 10),
        ({"max_completion_tokens": None, "max_tokens": 7}, 7),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": None}, 16_384),
    ]
    for members, expected in cases:
        assert (await bridge.seen(**members)).max_new == expected, members


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_P40_what_is_no_count_is_refused(bridge: Bridge, name: str) -> None:
    await refused_for(bridge, name, 0, -1, 1.5, "5", True, False, [], {}, -(10**30))


async def test_P40_both_are_checked(bridge: Bridge) -> None:
    assert (await bridge.refused(max_completion_tokens=5, max_tokens="x"))["param"] == "max_tokens"


async def test_P37_P39_P41_the_rooms_count_and_finish_are_passed_on(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), reasoning("four words of thought"), finish(room_pb2.FINISH_REASON_LENGTH)]
    bridge.room.script = [*bridge.room.script, usage(prompt=100, completion=4, thought=4)]
    body = (await bridge.ask(max_tokens=4, reasoning_effort="low")).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "four words of thought"
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
async def test_P42_a_prompt_too_long_for_the_room_is_a_400_before_any_200(bridge: Bridge, stream: bool) -> None:
    sentence = (
        "This model's maximum context length is 4096 tokens. However, your messages resulted in 4065 tokens, and 32"
    )
    bridge.room.script = [Refuse("context_length_exceeded", sentence, "messages")]
    reply = await bridge.ask(stream=stream)
    assert reply.status_code == 400
    error = error_of(reply)
    assert error == {
        "message": sentence, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"
    }  # fmt: skip


# ---------------------------------------------------------------- E. temperature, top_k


async def test_P45_P46_P47_P48_P49_P50_P51_sampling(bridge: Bridge) -> None:
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, (None, None)),
        ({"temperature": None, "top_k": None}, (None, None)),
        ({"temperature": 0}, (0.0, 40)),
        ({"temperature": 0.0, "top_k": 64}, (0.0, 64)),
        ({"temperature": 1}, (1.0, 40)),
        ({"temperature": 2}, (2.0, 40)),
        ({"top_k": 1}, (0.8, 1)),
        ({"top_k": 64}, (0.8, 64)),
        ({"top_k": 65}, (0.8, 64)),
        ({"top_k": 1000, "temperature": 0.5}, (0.5, 64)),
        ({"top_k": 4.0}, (0.8, 4)),
    ]
    for members, expected in cases:
        sampling = (await bridge.seen(**members)).sampling
        temperature = pytest.approx(sampling.temperature) if sampling.HasField("temperature") else None
        assert (expected[0], expected[1]) == (temperature, sampling.top_k if sampling.HasField("top_k") else None)


async def test_P45_other_temperatures_are_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "temperature", -0.01, 2.01, "1", True, [], 10**400)
    reply = await bridge.post(b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}')
    assert (reply.status_code, error_of(reply)["param"]) == (400, "temperature")


async def test_P50_other_top_k_are_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "top_k", 0, -1, 1.5, "4", True)


# ---------------------------------------------------------------- F. stop


async def test_P55_P56_P66_stop_strings_are_passed_on_as_they_are(bridge: Bridge) -> None:
    decomposed = "e\u0301"
    for stop, expected in [
        ("END", ["END"]),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"]),
        ([], []),
        (None, []),
        ("x" * 64, ["x" * 64]),
        (["\U0001f9e9" * 64], ["\U0001f9e9" * 64]),
        (["\u00e9", decomposed], ["\u00e9", decomposed]),
    ]:
        assert list((await bridge.seen(stop=stop)).stop) == expected


async def test_P55_P56_P57_other_stops_are_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "stop", ["a"] * 5, "x" * 65, ["x" * 65], "", ["a", ""], [1], 5, {}, True, ["a", None])


async def test_P58_P59_P60_P61_P62_P63_P64_P65_what_the_room_leaves_of_the_text_is_the_text(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), reasoning("so what"), text("ABC"), text("DEX"), finish(), usage(completion=5)]
    whole = (await bridge.ask(stop="DEFG", reasoning_effort="low")).json()
    assert whole["choices"][0]["message"]["content"] == "ABCDEX"
    assert whole["choices"][0]["message"]["reasoning_content"] == "so what"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 5
    streamed = deltas(await bridge.events(stop="DEFG", reasoning_effort="low"))
    assert [delta["content"] for delta in streamed if "content" in delta] == ["", "ABC", "DEX"]


# ---------------------------------------------------------------- G. stream


async def test_P70_stream_chooses_the_form(bridge: Bridge) -> None:
    for value, kind in [(True, "text/event-stream"), (False, "application/json"), (None, "application/json")]:
        assert (await bridge.ask(stream=value)).headers["content-type"].startswith(kind)
    await refused_for(bridge, "stream", "true", 1, 0, [])


async def test_P71_a_usage_chunk_only_when_asked(bridge: Bridge) -> None:
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        events = await bridge.events(stream_options=options)
        assert not [event for event in events if event != "[DONE]" and (not event["choices"] or event.get("usage"))]
    *chunks, last, done = await bridge.events(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 31, "completion_tokens": 2, "total_tokens": 33}
    assert not any(chunk.get("usage") for chunk in chunks)


async def test_P72_stream_options_belong_to_streams(bridge: Bridge) -> None:
    await refused_for(bridge, "stream_options", {}, {"include_usage": True})
    assert (await bridge.refused(stream=True, stream_options=5))["param"] == "stream_options"
    wrong = await bridge.refused(stream=True, stream_options={"include_usage": 1})
    assert wrong["param"] == "stream_options.include_usage"
    unknown = {"include_obfuscation": True, "continuous_usage_stats": False, "heartbeat_ms": 5}
    assert (await bridge.events(stream_options=unknown))[-1] == "[DONE]"
    await bridge.seen(stream_options=None)


@pytest.mark.parametrize("accept", ["application/json", "text/html", "nonsense"])
async def test_P73_accept_is_never_looked_at(bridge: Bridge, accept: str) -> None:
    body = json.dumps({"messages": [USER], "stream": True}).encode()
    reply = await bridge.post(body, accept=accept)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


# ---------------------------------------------------------------- H. thinking


async def test_P75_P77_P78_P80_P83a_P85_when_the_room_is_to_think(bridge: Bridge) -> None:
    on, off = {"enable_thinking": True}, {"enable_thinking": False}
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, (False, "")),
        ({"reasoning_effort": None}, (False, "")),
        ({"reasoning_effort": "none"}, (False, "")),
        ({"reasoning_effort": "minimal"}, (False, "")),
        *(({"reasoning_effort": effort}, (True, effort)) for effort in ("low", "medium", "high", "xhigh", "max")),
        ({"chat_template_kwargs": on}, (True, "")),
        ({"chat_template_kwargs": off}, (False, "")),
        ({"chat_template_kwargs": {"enable_thinking": None}}, (False, "")),
        ({"reasoning_effort": "none", "chat_template_kwargs": on}, (False, "")),
        ({"reasoning_effort": "low", "chat_template_kwargs": off}, (True, "low")),
        ({"reasoning_effort": None, "chat_template_kwargs": on}, (True, "")),
        ({"chat_template_kwargs": {"custom": [1]}}, (False, "")),
        ({"chat_template_kwargs": None, "enable_thinking": True}, (False, "")),
    ]
    for members, expected in cases:
        asked = await bridge.seen(**members)
        assert (asked.thinking, asked.effort) == expected, members


async def test_P76_other_efforts_are_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "reasoning_effort", "extreme", 3, "", True, ["low"], {})


async def test_P79_other_template_settings_are_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "chat_template_kwargs", 5, [], "x")
    param = "chat_template_kwargs.enable_thinking"
    for value in ("true", 1, 0):
        assert (await bridge.refused(chat_template_kwargs={"enable_thinking": value}))["param"] == param


async def test_P81_P82_P83_P84_thoughts_come_apart_from_the_text(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), reasoning("let me "), reasoning("see"), text("42"), finish(), usage(thought=2)]
    message = (await bridge.ask(reasoning_effort="high")).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see", "42")
    streamed = deltas(await bridge.events(reasoning_effort="high"))
    assert streamed == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "let me "},
        {"reasoning_content": "see"},
        {"content": "42"},
        {},
    ]


async def test_P81_without_thoughts_there_is_no_key_for_them(bridge: Bridge) -> None:
    assert "reasoning_content" not in (await bridge.ask(reasoning_effort="high")).json()["choices"][0]["message"]
    assert not [delta for delta in deltas(await bridge.events()) if "reasoning_content" in delta]


async def test_P87e_reasoning_tokens_are_counted_when_thinking_was_on(bridge: Bridge) -> None:
    bridge.room.script = [queued(0), text("42"), finish(), usage(completion=9, thought=7)]
    on = (await bridge.ask(reasoning_effort="low")).json()["usage"]
    assert on["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert on["completion_tokens"] == 9
    assert "completion_tokens_details" not in (await bridge.ask()).json()["usage"]


# ---------------------------------------------------------------- I. accepted and ignored


async def test_P88_P89_what_is_ignored_changes_nothing(bridge: Bridge) -> None:
    plain = await bridge.seen()
    odd: dict[str, list[Any]] = {
        "top_p": [0.9, None, 7],
        "seed": [1, None, -1, 2**70],
        "store": [True, None],
        "metadata": [{"a": {"b": 1}}, None],
        "user": ["me", None, 5],
        "service_tier": ["auto", "x"],
        "prompt_cache_key": ["k", None],
    }
    unknown = (
        "verbosity safety_identifier prompt_cache_retention min_p repetition_penalty cache_prompt enable_thinking "
        "think thinking reasoning provider options ignore_eos add_generation_prompt continue_final_message "
        "separate_reasoning extra_body"
    )
    odd |= {name: [True, {"effort": "high"}, None] for name in unknown.split()}
    for name, values in odd.items():
        for value in values:
            asked = await bridge.seen(**{name: value})
            asked.request_id = plain.request_id
            assert asked == plain, (name, value)


async def test_P90_null_is_absent(bridge: Bridge) -> None:
    plain = await bridge.seen()
    optional = (
        "audio chat_template_kwargs frequency_penalty function_call functions logit_bias logprobs "
        "max_completion_tokens max_tokens modalities model n parallel_tool_calls prediction presence_penalty "
        "reasoning_effort response_format stop stream stream_options temperature tool_choice tools top_k top_logprobs "
        "web_search_options"
    )
    asked = await bridge.seen(**dict.fromkeys(optional.split()))
    asked.request_id = plain.request_id
    assert asked == plain


async def test_P91_this_model_writes_text(bridge: Bridge) -> None:
    await bridge.seen(modalities=["text"])
    await refused_for(bridge, "modalities", ["text", "audio"], ["audio"], "text", 5)
    await refused_for(bridge, "audio", {"voice": "x"}, {})


# ---------------------------------------------------------------- L. not supported


async def test_P124_deprecated_functions_are_refused(bridge: Bridge) -> None:
    await refused_for(bridge, "functions", [], [{"name": "f"}])
    await refused_for(bridge, "function_call", "auto", {"name": "f"})


async def test_P126_one_answer_only(bridge: Bridge) -> None:
    await bridge.seen(n=1)
    await bridge.seen(n=1.0)
    await refused_for(bridge, "n", 2, 0, "1", True, 1.5)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
async def test_P127_penalties_that_ask_for_nothing_are_fine(bridge: Bridge, name: str) -> None:
    for value in (0, 0.0, -0.0, None):
        await bridge.seen(**{name: value})
    await refused_for(bridge, name, 0.1, -1, "0", False)


async def test_P127_logit_bias(bridge: Bridge) -> None:
    await bridge.seen(logit_bias={})
    await refused_for(bridge, "logit_bias", {"1": 5}, [], "x")


async def test_P128_logprobs(bridge: Bridge) -> None:
    for members in ({"logprobs": False}, {"top_logprobs": 0}, {"logprobs": False, "top_logprobs": None}):
        await bridge.seen(**members)
    await refused_for(bridge, "logprobs", True, 5, "yes")
    await refused_for(bridge, "top_logprobs", 5, "5", True)


async def test_P129_prediction_and_web_search(bridge: Bridge) -> None:
    await refused_for(bridge, "prediction", {"type": "content", "content": "x"}, {})
    await refused_for(bridge, "web_search_options", {})


async def test_P133_of_several_faults_the_first_in_order_is_told(bridge: Bridge) -> None:
    wrong = {"top_k": 0, "audio": {}, "temperature": 9, "n": 2}
    bad = {"role": "user", "content": 5}
    assert (await bridge.refused([bad, {"role": "x"}], **wrong))["param"] == "messages[0].content"
    for _ in range(4):
        error = await bridge.refused(**wrong)
        assert error["param"] == min(wrong)
        del wrong[error["param"]]
