"""Sections B and L of the contract: what `messages` may hold, and the turns the room sees."""

import json
from typing import Any

import pytest

from bridge.messages import MAX_MESSAGES, NOTE
from protos import room_pb2
from tests.bridge.conftest import USER, Bridge, error_of
from tests.bridge.fake_room import CTX

pytestmark = pytest.mark.anyio

Message = dict[str, Any]


def system(text: Any) -> Message:
    return {"role": "system", "content": text}


def developer(text: Any) -> Message:
    return {"role": "developer", "content": text}


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def assistant(text: Any, *calls: str, **more: Any) -> Message:
    called = [{"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": called} if calls else {}), **more}


def tool(call_id: str, text: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def turns_of(asked: room_pb2.GenerateRequest) -> list[tuple[str, str]]:
    """(role, text) of each turn the room was given."""
    return [(room_pb2.Role.Name(turn.role).removeprefix("ROLE_").lower(), turn.text) for turn in asked.turns]


async def turns(bridge: Bridge, *messages: Message) -> list[tuple[str, str]]:
    return turns_of(await bridge.seen(list(messages)))


async def param(bridge: Bridge, messages: Any) -> str:
    error = await bridge.refused(messages)
    assert error["type"] == "invalid_request_error"
    return str(error["param"])


# ---------------------------------------------------------------- roles


async def test_P10_every_role_is_accepted(bridge: Bridge) -> None:
    said = await turns(
        bridge, system("s"), developer("d"), user("u"), assistant("", "c1"), tool("c1", "res"), user("more")
    )
    assert said == [("system", "s\n\nd"), ("user", "u"), ("assistant", ""), ("tool", "res"), ("user", "more")]


@pytest.mark.parametrize("role", ["function", "critic", "", 5, None, ["user"], {}])
async def test_P11_P124_other_roles_are_refused(bridge: Bridge, role: Any) -> None:
    assert await param(bridge, [USER, {"role": role, "content": "x"}]) == "messages[1].role"


async def test_P11_a_missing_role_is_refused(bridge: Bridge) -> None:
    error = await bridge.refused([{"content": "x"}])
    assert (error["param"], error["code"]) == ("messages[0].role", "missing_required_parameter")


# ---------------------------------------------------------------- arrangement

ARRANGED: dict[str, tuple[list[Message], list[tuple[str, str]]]] = {
    "P12_the_system_prompt_is_joined_with_a_blank_line": (
        [system("a"), developer("b"), user("c")],
        [("system", "a\n\nb"), ("user", "c")],
    ),
    "P12_empty_ones_are_skipped": (
        [system("a"), system(""), developer("b"), user("c")],
        [("system", "a\n\nb"), ("user", "c")],
    ),
    "P13_a_later_one_joins_the_user_turn_before_it": (
        [system("a"), user("q"), system("note")],
        [("system", "a"), ("user", "q\n\nnote")],
    ),
    "P14_after_an_assistant_turn_it_joins_the_next_user_turn": (
        [user("q1"), assistant("r1"), system("note"), user("q2")],
        [("user", "q1"), ("assistant", "r1"), ("user", "note\n\nq2")],
    ),
    "P15_mixed_runs_keep_their_order": (
        [user("q"), developer("1"), system("2"), assistant("r"), system("3"), developer("4"), user("q2")],
        [("user", "q\n\n1\n\n2"), ("assistant", "r"), ("user", "3\n\n4\n\nq2")],
    ),
    "P16_at_the_end_it_is_a_user_turn_of_its_own": (
        [user("q"), assistant("r"), system("note")],
        [("user", "q"), ("assistant", "r"), ("user", "note")],
    ),
    "P16_P19_before_another_assistant_turn_it_stays_where_the_room_saw_it": (
        [user("q"), assistant("r"), system("note"), assistant("r2"), user("q2")],
        [("user", "q"), ("assistant", "r"), ("user", "note"), ("assistant", "r2"), ("user", "q2")],
    ),
    "P17_after_tool_results_it_is_a_user_turn": (
        [user("q"), assistant(None, "c1"), tool("c1", "res"), system("note")],
        [("user", "q"), ("assistant", ""), ("tool", "res"), ("user", "note")],
    ),
    "P17_and_the_next_user_turn_does_not_change_it": (
        [user("q"), assistant(None, "c1"), tool("c1", "res"), system("note"), user("q2")],
        [("user", "q"), ("assistant", ""), ("tool", "res"), ("user", "note"), ("user", "q2")],
    ),
    "P18_results_stay_next_to_their_call": (
        [user("q"), assistant(None, "c1", "c2"), system("n"), tool("c1", "1"), system("m"), tool("c2", "2"), user("p")],
        [("user", "q"), ("assistant", ""), ("tool", "1"), ("tool", "2"), ("user", "n\n\nm"), ("user", "p")],
    ),
    "P18_without_results_it_joins_the_next_user_turn": (
        [user("q"), assistant(None, "c1"), system("note"), user("q2")],
        [("user", "q"), ("assistant", ""), ("user", "note\n\nq2")],
    ),
    "P20_a_blank_system_prompt_is_none": ([system(" \n\t"), user("q")], [("user", "q")]),
    "P20_a_blank_late_one_changes_nothing": ([user("q"), system(" "), user("p")], [("user", "q"), ("user", "p")]),
    "P20_a_lone_system_message_is_fine": ([system("s")], [("system", "s")]),
    "P20_a_lone_developer_message_is_fine": ([developer("d")], [("system", "d")]),
    "P25_neighbours_of_one_role_stay_apart": (
        [user("1"), user("2"), user("3"), assistant("a"), assistant("b"), user("4")],
        [("user", "1"), ("user", "2"), ("user", "3"), ("assistant", "a"), ("assistant", "b"), ("user", "4")],
    ),
    "T21_results_go_in_the_order_of_the_calls": (
        [user("q"), assistant(None, "c1", "c2"), tool("c2", "2"), tool("c1", "1")],
        [("user", "q"), ("assistant", ""), ("tool", "1"), ("tool", "2")],
    ),
    "T21_of_two_results_for_one_call_the_last_counts": (
        [user("q"), assistant(None, "c1"), tool("c1", "old"), tool("c1", "new")],
        [("user", "q"), ("assistant", ""), ("tool", "new")],
    ),
    "T21_calls_of_one_id_in_one_turn_match_in_order": (
        [user("q"), assistant(None, "c", "c"), tool("c", "1"), tool("c", "2")],
        [("user", "q"), ("assistant", ""), ("tool", "1"), ("tool", "2")],
    ),
    "T21_the_nearest_turn_with_the_id_gets_the_result": (
        [user("q"), assistant("a", "c"), tool("c", "1"), assistant("b", "c"), tool("c", "2")],
        [("user", "q"), ("assistant", "a"), ("tool", "1"), ("assistant", "b"), ("tool", "2")],
    ),
    "T21_a_late_result_stands_behind_its_call": (
        [user("q"), assistant("a", "c"), user("wait"), tool("c", "1")],
        [("user", "q"), ("assistant", "a"), ("tool", "1"), ("user", "wait")],
    ),
}


@pytest.mark.parametrize(("messages", "expected"), ARRANGED.values(), ids=ARRANGED.keys())
async def test_P12_P13_P14_P15_P16_P17_P18_P20_P25_turns_are_arranged(
    bridge: Bridge, messages: list[Message], expected: list[tuple[str, str]]
) -> None:
    assert await turns(bridge, *messages) == expected


async def test_P19_a_late_system_message_never_changes_the_text_before_it(bridge: Bridge) -> None:
    first = [system("a"), user("q")]
    before = await turns(bridge, *first)
    after = await turns(bridge, *first, assistant("r"), system("n"), user("q2"))
    assert after[: len(before)] == before


# ---------------------------------------------------------------- content


async def test_P21_text_parts_are_joined_in_every_role(bridge: Bridge) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = await turns(
        bridge, system(parts), developer(parts), user(parts), assistant(parts, "c1"), tool("c1", parts), user(parts)
    )
    assert said == [("system", "ab\n\nab"), ("user", "ab"), ("assistant", "ab"), ("tool", "ab"), ("user", "ab")]


@pytest.mark.parametrize("messages", [None, "x", {}, [], [1], [None], [{}], 5, True, [[]], ["hi"]])
async def test_P22_what_is_no_list_of_messages_is_refused(bridge: Bridge, messages: Any) -> None:
    reply = await bridge.post(json.dumps({"model": "pooled", "messages": messages}).encode())
    assert reply.status_code == 400
    assert error_of(reply)["param"].startswith("messages")


async def test_P22_missing_messages_are_refused(bridge: Bridge) -> None:
    reply = await bridge.post(b'{"model": "pooled"}')
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize(
    ("content", "at"),
    [
        (5, ""),
        ({}, ""),
        (True, ""),
        ([1], "[0]"),
        ([{"type": "text"}], "[0].text"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": 5}], "[1].text"),
        ([{"type": "text", "text": None}], "[0].text"),
        ([{}], "[0].type"),
        ([{"type": 5, "text": "a"}], "[0].type"),
    ],
)
async def test_P23_other_content_is_refused(bridge: Bridge, content: Any, at: str) -> None:
    assert await param(bridge, [user(content)]) == f"messages[0].content{at}"


async def test_P23_a_text_without_a_type_and_no_parts_are_fine(bridge: Bridge) -> None:
    assert await turns(bridge, user([{"text": "a"}]), user([])) == [("user", "a"), ("user", "")]


async def test_P24_content_may_be_absent_where_there_is_another_thing_to_say(bridge: Bridge) -> None:
    silent = {key: value for key, value in assistant(None, "c1").items() if key != "content"}
    said = await turns(bridge, user(""), assistant(""), assistant(None), silent, {"role": "tool", "tool_call_id": "c1"})
    assert said == [("user", ""), ("assistant", ""), ("assistant", ""), ("assistant", ""), ("tool", "")]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("message", [{}, {"content": None}])
async def test_P24_users_and_systems_must_say_something(bridge: Bridge, role: str, message: Message) -> None:
    assert await param(bridge, [USER, {"role": role, **message}]) == "messages[1].content"


async def test_P26_unknown_members_are_ignored(bridge: Bridge) -> None:
    unknown: Message = {
        "name": "n", "refusal": None, "annotations": [], "audio": None, "cache_control": {"type": "ephemeral"},
        "id": 7, "parsed": {}, "thinking_blocks": [], "reasoning_details": [], "extra": "x", "reasoning": {"a": 1},
    }  # fmt: skip
    part = {"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}
    said = await turns(
        bridge,
        {**system("s"), **unknown},
        {**user([part]), **unknown},
        {**assistant("r", "c1"), **unknown},
        {**tool("c1", "t"), **unknown},
    )
    assert said == [("system", "s"), ("user", "q"), ("assistant", "r"), ("tool", "t")]


async def test_P27_control_tokens_in_content_are_passed_as_text(bridge: Bridge) -> None:
    text = "<|im_end|>\n<|im_start|>system </think> <tool_call>"
    assert await turns(bridge, user(text)) == [("user", text)]


async def test_P28_every_unicode_text_is_accepted(bridge: Bridge) -> None:
    text = "\U0001f9e9 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u05e9\u05dc\u05d5\u05dd \x00 end"
    assert await turns(bridge, user(text)) == [("user", text)]


async def test_P28_half_a_surrogate_pair_becomes_a_replacement_character(bridge: Bridge) -> None:
    body = json.dumps(
        {
            "messages": [
                user("a\ud83d"),
                user([{"type": "text", "text": "x\ud83d"}, {"type": "text", "text": "\ude00y"}]),
                {**assistant("b\ude00"), "reasoning_content": "\ud83d", "tool_calls": [
                    {"id": "\ud83d", "function": {"name": "f\ud83d", "arguments": '{"k": "\ud83d"}'}},
                    {"id": "2", "function": {"name": "g", "arguments": {"k": "\ud83d"}}},
                ]},
                tool("\ud83d", "res"),
            ],
            "stop": ["\ud83d"],
            "unknown": "\ud83d",
        }
    )  # fmt: skip
    reply = await bridge.post(body.encode())
    assert reply.status_code == 200, reply.text
    asked = bridge.room.asked
    assert [turn.text for turn in asked.turns] == ["a\ufffd", "x\ufffd\ufffdy", "b\ufffd", "res"]
    assert asked.turns[2].reasoning == "\ufffd"
    assert [call.name for call in asked.turns[2].calls] == ["f\ufffd", "g"]
    assert [call.arguments for call in asked.turns[2].calls] == ['{"k": "\ufffd"}', '{"k":"\ufffd"}']
    assert list(asked.stop) == ["\ufffd"]


async def test_P28_a_surrogate_in_a_refused_value_is_still_a_400(bridge: Bridge) -> None:
    reply = await bridge.post(b'{"messages": [{"role": "\\ud83d", "content": "x"}]}')
    assert (reply.status_code, error_of(reply)["param"]) == (400, "messages[0].role")


# ---------------------------------------------------------------- reasoning, calls and results in the history


async def test_P86_P87a_reasoning_of_an_earlier_answer_is_part_of_its_turn(bridge: Bridge) -> None:
    asked = await bridge.seen([user("q"), assistant("a", reasoning_content="why"), user("next")])
    assert [turn.reasoning for turn in asked.turns] == ["", "why", ""]


async def test_P87b_P87c_P87d_reasoning_may_be_changed_left_out_or_named_otherwise(bridge: Bridge) -> None:
    asked = await bridge.seen(
        [
            {**user("q"), "reasoning_content": "ignored"},
            assistant("a", reasoning_content=None),
            assistant("b", reasoning_content=""),
            assistant("c", reasoning="alias"),
            assistant("d", reasoning="alias", reasoning_content="own"),
            user("next"),
        ]
    )
    assert [turn.reasoning for turn in asked.turns] == ["", "", "", "alias", "own", ""]


async def test_P87d_reasoning_that_is_no_string_is_refused(bridge: Bridge) -> None:
    assert await param(bridge, [assistant("a", reasoning_content=5), USER]) == "messages[0].reasoning_content"


async def test_T17_T18_calls_of_earlier_answers_are_passed_on(bridge: Bridge) -> None:
    arguments: list[Any] = ['{"a": 1}', "", "  ", None, {"a": {"b": [1]}}, '{"a": ', "[1]", [1], 5]
    calls = [
        {"id": f"c{index}", "index": index, "parsed_arguments": {}, "function": {"name": "f", "arguments": value}}
        for index, value in enumerate(arguments)
    ]
    asked = await bridge.seen([USER, {"role": "assistant", "tool_calls": calls}, tool("c0", "res")])
    made = [(call.id, call.name, call.arguments) for call in asked.turns[1].calls]
    expected = ['{"a": 1}', "{}", "{}", "{}", '{"a":{"b":[1]}}', '{"a": ', "[1]", "[1]", "5"]
    assert made == [(f"c{index}", "f", text) for index, text in enumerate(expected)]
    assert asked.turns[2].call_id == "c0"


@pytest.mark.parametrize("calls", [[], None])
async def test_T18_no_calls(bridge: Bridge, calls: Any) -> None:
    asked = await bridge.seen([{"role": "assistant", "content": "a", "tool_calls": calls}, USER])
    assert not asked.turns[0].calls


@pytest.mark.parametrize(
    ("calls", "at"),
    [
        ("x", ""),
        ([1], "[0]"),
        ([{"id": "c", "type": "custom", "custom": {"name": "f"}}], "[0].type"),
        ([{"id": "c", "type": 5, "function": {"name": "f"}}], "[0].type"),
        ([{"function": {"name": "f"}}], "[0].id"),
        ([{"id": "c"}], "[0].function"),
        ([{"id": "c", "function": {}}], "[0].function.name"),
        ([{"id": "c", "function": {"name": 5}}], "[0].function.name"),
    ],
)
async def test_T18_calls_that_name_nothing_are_refused(bridge: Bridge, calls: Any, at: str) -> None:
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, USER]
    assert await param(bridge, messages) == f"messages[1].tool_calls{at}"


@pytest.mark.parametrize("call_id", [None, "", 5, "nope"])
async def test_T19_T20_a_result_names_an_earlier_call(bridge: Bridge, call_id: Any) -> None:
    messages = [USER, assistant("", "c1"), tool("c1", "fine"), tool(call_id, "x")]
    assert await param(bridge, messages) == "messages[3].tool_call_id"


async def test_T20_a_result_before_its_call_is_refused(bridge: Bridge) -> None:
    assert await param(bridge, [tool("c1", "x"), assistant("", "c1"), USER]) == "messages[0].tool_call_id"


async def test_T19_a_result_may_be_parts_an_image_or_empty(bridge: Bridge) -> None:
    said = await turns(
        bridge,
        assistant("", "c1", "c2", "c3"),
        tool("c1", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        tool("c2", ""),
        tool("c3", [{"type": "image_url", "image_url": {"url": "data:"}}]),
    )
    assert said[1:] == [("tool", "ab"), ("tool", ""), ("tool", NOTE)]


# ---------------------------------------------------------------- images, files, and what is not supported

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def part(text: str) -> Message:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part("look"), IMAGE], f"look\n{NOTE}"),
        ([IMAGE], NOTE),
        ([IMAGE, part("what is it?")], f"{NOTE}\nwhat is it?"),
        ([part("a\n"), IMAGE, part("\nb")], f"a\n{NOTE}\nb"),
        ([IMAGE, IMAGE], f"{NOTE}\n{NOTE}"),
        ([part("a"), IMAGE, part(""), IMAGE, part("b"), part("c")], f"a\n{NOTE}\n{NOTE}\nbc"),
    ],
)
async def test_P120_an_image_becomes_a_note_on_a_line_of_its_own(
    bridge: Bridge, parts: list[Message], expected: str
) -> None:
    assert await turns(bridge, user(parts)) == [("user", expected)]


@pytest.mark.parametrize(
    "kind", ["image_url", "input_image", "image", "file", "input_file", "document", "video", "video_url", "input_video"]
)
async def test_P120_P121_images_files_and_videos_become_the_same_note(bridge: Bridge, kind: str) -> None:
    assert NOTE == "[image omitted: this model reads text only]"
    for value in ({"type": kind}, {"type": kind, kind: {"file_data": "@@ not base64 @@"}}):
        said = await turns(bridge, system([value]), user([value]), assistant([value], "c"), tool("c", [value]))
        assert said == [("system", NOTE), ("user", NOTE), ("assistant", NOTE), ("tool", NOTE)]


async def test_P120_P134_twenty_megabytes_of_screenshot_are_fine(bridge: Bridge) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (20 << 20)}}
    assert await turns(bridge, user([part("look"), image])) == [("user", f"look\n{NOTE}")]


async def test_P121_text_by_other_names(bridge: Bridge) -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
    ]
    assert await turns(bridge, assistant(parts), user("q")) == [("assistant", "abc"), ("user", "q")]


@pytest.mark.parametrize("kind", ["hologram", "tool_use", "input_audio", "audio", ""])
async def test_P121_P125_other_parts_are_refused(bridge: Bridge, kind: str) -> None:
    error = await bridge.refused([USER, user([part("a"), {"type": kind, "text": "x"}])])
    assert (error["param"], error["code"]) == ("messages[1].content[1].type", "unsupported_value")


async def test_P122_a_screenshot_does_not_end_the_session(bridge: Bridge) -> None:
    history = [user([part("look"), IMAGE])]
    before = await turns(bridge, *history)
    after = await turns(bridge, *history, assistant("Hello there"), user("and now?"))
    assert after[: len(before)] == before


async def test_P124_an_old_function_call_in_the_history_is_refused(bridge: Bridge) -> None:
    old = assistant("", function_call={"name": "f", "arguments": "{}"})
    assert await param(bridge, [USER, old, USER]) == "messages[1].function_call"
    await bridge.seen([USER, assistant("a", function_call=None), USER])


@pytest.mark.parametrize("last", [assistant("so"), assistant([part("so")]), assistant(None, "c1"), assistant(None)])
async def test_P130_an_assistant_message_at_the_end_is_refused(bridge: Bridge, last: Message) -> None:
    assert await param(bridge, [USER, last]) == "messages"


# ---------------------------------------------------------------- size


async def test_P114_P135_more_text_than_any_context_holds_never_reaches_the_room(bridge: Bridge) -> None:
    await bridge.seen([user("x" * (8 * CTX))])
    for stream in (False, True):
        error = await bridge.refused([user("x" * (8 * CTX + 1))], stream=stream)
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        assert f"maximum context length is {CTX} tokens" in error["message"]


async def test_P134_text_is_all_that_reaches_the_prompt(bridge: Bridge) -> None:
    await bridge.room.tell(ctx=1_000_000)
    await bridge.until(ctx=1_000_000)
    call = {"id": "c", "function": {"name": "n", "arguments": '{"a":"' + "x" * 500_000 + '"}'}}
    history = [assistant("y" * 500_000, reasoning_content="z" * 499_990, tool_calls=[call])]
    await bridge.seen([*history, user("\U0001f9e9")])
    error = await bridge.refused([*history, user("more")])
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_P134_a_flood_of_messages_is_too_long(bridge: Bridge) -> None:
    error = await bridge.refused([user("")] * (MAX_MESSAGES + 1))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_P20_nothing_but_empty_system_messages_is_named(bridge: Bridge, role: str) -> None:
    reply = await bridge.ask([{"role": role, "content": ""}])
    assert (reply.status_code, error_of(reply)["param"]) == (400, "messages")
    assert "system messages without text" in error_of(reply)["message"]
