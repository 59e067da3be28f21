"""Tool calling (T1 to T27), with models that write calls in three ways; grammar and parser are the room's own."""

import json
from typing import Any

import pytest

from tests.contract.rig import Rig, assistant, called, function, line, system, tool, user

pytestmark = pytest.mark.anyio

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WRITE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    "required": ["path", "text"],
}
WEATHER, NOW, FILE = function("get_weather", CITY), function("now"), function("write_file", WRITE)
TOOLS = [WEATHER, NOW, FILE]

JSON_TAGS, XML, PLAIN = "thinker", "levels", "rig"


@pytest.fixture(params=[JSON_TAGS, XML, PLAIN])
def model(request: pytest.FixtureRequest) -> Rig:
    """A model for each way of calling: JSON between tags that are tokens, XML, and our own for who knows none."""
    rig: Rig = request.getfixturevalue(request.param)
    return rig


def way(rig: Rig) -> str:
    return str(rig.text.traits.format.NAME)


def written(rig: Rig, name: str, **arguments: Any) -> list[str]:
    """A call as the model writes it, in pieces that are tokens where its vocabulary has them."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    if way(rig) == "plain":
        return [f"<tool_call>{body}</tool_call>"]
    if way(rig) == "json_tags":
        return ["<tool_call>", "\n", body, "\n", "</tool_call>"]
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return ["<tool_call>", f"\n<function={name}>\n{parameters}</function>\n", "</tool_call>"]


def made(said: Any) -> list[tuple[str, Any]]:
    """The names and arguments of an answer's calls."""
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in said.calls]


PARIS = ("get_weather", {"city": "Paris"})


# ---------------------------------------------------------------- what may be called


async def test_T4_T14_T15_P95_P101_B9_B20_B21_B39_a_call(model: Rig) -> None:
    said = await model.both(written(model, "get_weather", city="Paris"), tools=TOOLS)
    assert made(said) == [PARIS]
    assert (said.content, said.finish) == (None, "tool_calls")
    assert all(call["type"] == "function" for call in said.calls)


@pytest.mark.parametrize("choice", [{}, {"tool_choice": None}, {"tool_choice": "auto"}])
async def test_T4_auto_takes_text_calls_or_both(model: Rig, choice: dict[str, Any]) -> None:
    assert (await model.both(["Hel", "lo"], tools=TOOLS, **choice)).content == "Hello"
    said = await model.both(["Let me look.\n", *written(model, "now")], tools=TOOLS, **choice)
    assert (made(said), said.finish) == ([("now", {})], "tool_calls")
    assert (said.content or "").strip() == "Let me look."
    assert model.seen["grammar"]["mode"] == "auto"


async def test_T1_T26_tools_are_shown_as_they_came(model: Rig) -> None:
    odd = function("zeta:b.c-d", {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}}, description="D")
    prompt = (await model.see(tools=[odd, NOW]))["prompt"]
    order = ["zeta:b.c-d", '"z"', '"a"', "now"]
    assert [prompt.index(each) for each in order] == sorted(prompt.index(each) for each in order)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}])
async def test_T2_T12_without_parameters_there_are_no_arguments(model: Rig, parameters: Any) -> None:
    said = await model.both(written(model, "ping"), tools=[function("ping", parameters)])
    assert [call["function"]["arguments"] for call in said.calls] == ["{}"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"type": "int"}}},
        {"type": "object", "properties": {"x": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"x": {"pattern": "(?=a)", "type": "string"}}, "patternProperties": {}},
        {"type": "object", "properties": {"x": {"$ref": "https://example.org/s"}}, "if": {}, "weird": 1},
    ],
)
async def test_T2_what_cannot_be_enforced_never_refuses_a_tool(model: Rig, schema: Any) -> None:
    assert (await model.post(tools=[function("f", schema)])).status_code == 200


@pytest.mark.parametrize("tools", [[], None])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": None}])
async def test_T3_B17_B18_no_tools_are_no_tools(model: Rig, tools: Any, choice: dict[str, Any]) -> None:
    assert await model.see(tools=tools, **choice) == await model.see()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
async def test_T3_T7_a_call_needs_tools(model: Rig, choice: Any) -> None:
    assert (await model.refused(tools=[], tool_choice=choice))["param"] == "tool_choice"


async def test_T5_none_hides_the_tools_and_never_calls(model: Rig) -> None:
    plain = await model.see()
    assert await model.see(tools=TOOLS, tool_choice="none") == plain
    script = ["a", *written(model, "now"), "b"]
    for members in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        said = await model.both(script, **members)
        assert (said.calls, said.finish) == ([], "stop")
        assert (said.content or "").startswith("a")
        assert (said.content or "").endswith("b")


async def test_T6_P101_B7_B8_required_is_a_call_from_the_start(model: Rig) -> None:
    said = await model.both(["Hi there! ", *written(model, "now")], tools=TOOLS, tool_choice="required")
    assert (made(said), said.content, said.finish) == ([("now", {})], None, "tool_calls")


async def test_T7_P101_B8_a_named_function_is_called_once(model: Rig) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    calls = [*written(model, "get_weather", city="Paris"), "\n", *written(model, "get_weather", city="Rome")]
    said = await model.both(calls, tools=TOOLS, tool_choice=named)
    assert (made(said), said.content, said.finish) == ([PARIS], None, "tool_calls")


@pytest.mark.parametrize("choice", ["bogus", "any", {}, {"type": "function", "function": {"name": "nope"}}])
async def test_T7_other_choices(model: Rig, choice: Any) -> None:
    assert (await model.refused(tools=TOOLS, tool_choice=choice))["param"] == "tool_choice"


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_T8_allowed_tools_narrow_what_is_called_not_what_is_shown(model: Rig, mode: str) -> None:
    names = [{"type": "function", "function": {"name": "now"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}
    auto = await model.see(tools=TOOLS)
    model.play(line(*written(model, "now")))
    seen = await model.see(tools=TOOLS, tool_choice=choice)
    assert seen["prompt"] == auto["prompt"]
    assert (seen["grammar"]["mode"], seen["grammar"]["allowed"]) == (mode, ["now"])
    said = await model.both(written(model, "now"), tools=TOOLS, tool_choice=choice)
    assert made(said) == [("now", {})]


async def test_T9_without_parallel_calls_there_is_one(model: Rig) -> None:
    calls = [*written(model, "get_weather", city="Paris"), "\n", *written(model, "now")]
    said = await model.both(calls, tools=TOOLS, parallel_tool_calls=False)
    assert (made(said), said.finish) == ([PARIS], "tool_calls")


async def test_T4_T9_T10_T14_B9_B10_B11_parallel_calls(model: Rig) -> None:
    calls = [*written(model, "get_weather", city="Paris"), "\n", *written(model, "now")]
    said = await model.both(calls, tools=TOOLS)
    assert made(said) == [PARIS, ("now", {})]
    ids = [call["id"] for call in said.calls]
    assert len(set(ids)) == 2
    assert all(each.startswith("call_") and len(each) == 29 and each[5:].isalnum() for each in ids)


async def test_T27_sixteen_calls_at_most(model: Rig) -> None:
    calls = [piece for _ in range(18) for piece in (*written(model, "now"), "\n")]
    said = await model.both([*calls, "and text"], tools=TOOLS)
    assert (len(said.calls), said.content, said.finish) == (16, None, "tool_calls")


async def test_T27_after_a_call_there_is_no_text(model: Rig) -> None:
    said = await model.both([*written(model, "now"), "and text"], tools=TOOLS)
    assert (made(said), said.content, said.finish) == ([("now", {})], None, "tool_calls")


# ---------------------------------------------------------------- how calls come out


@pytest.mark.parametrize("value", ['line\nand "quote" \\ back', "\U0001f9e9\u6a21\u578b", "a" * 300, "</tag> }{ ]["])
async def test_T11_T16_B34_arguments_are_their_json(model: Rig, value: str) -> None:
    said = await model.both(written(model, "write_file", path="p", text=value), tools=TOOLS)
    assert made(said) == [("write_file", {"path": "p", "text": value})]
    assert said.calls[0]["function"]["arguments"].isprintable()
    assert "\\ud" not in said.calls[0]["function"]["arguments"]


async def test_T16_long_arguments_stream_piece_by_piece(model: Rig) -> None:
    said = await model.both(written(model, "write_file", path="p", text="word " * 60), tools=TOOLS)
    pieces = [delta["tool_calls"][0] for delta in said.deltas if "tool_calls" in delta]
    assert len(pieces) > 20
    assert all("\ufffd" not in piece["function"]["arguments"] for piece in pieces)


async def test_P109_T16_characters_in_arguments_arrive_whole(model: Rig) -> None:
    said = await model.both(written(model, "get_weather", city="\U0001f9e9"), tools=TOOLS)
    pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in said.deltas if "tool_calls" in delta]
    assert sum("\U0001f9e9" in piece for piece in pieces) == 1
    assert "\ufffd" not in "".join(pieces)


async def test_T13_P96_a_call_the_limit_cuts(model: Rig) -> None:
    whole = await model.both(written(model, "write_file", path="p", text="long enough"), tools=TOOLS)
    limit = whole.usage["completion_tokens"] - 30
    cut = await model.ask(tools=TOOLS, max_tokens=limit)
    assert (cut.calls, cut.finish) == ([], "length")
    streamed = await model.listen(tools=TOOLS, max_tokens=limit)
    assert streamed.finish == "length"
    for call in streamed.calls:
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            json.loads(call["function"]["arguments"])


async def test_T13_whole_calls_before_the_cut_are_delivered(model: Rig) -> None:
    calls = [*written(model, "get_weather", city="Paris"), "\n", *written(model, "write_file", path="p", text="x" * 99)]
    model.play(line(*calls))
    said = await model.ask(tools=TOOLS)
    cut = await model.ask(tools=TOOLS, max_tokens=said.usage["completion_tokens"] - 20)
    assert (made(cut), cut.finish) == ([PARIS], "length")


async def test_P39_T13_a_call_that_closes_exactly_at_the_limit(model: Rig) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    said = await model.both(written(model, "now"), tools=TOOLS, tool_choice=named)
    last = said.usage["completion_tokens"]
    for limit in (last - 1, last, last + 1):
        cut = await model.ask(tools=TOOLS, tool_choice=named, max_tokens=limit)
        assert cut.finish == ("length" if limit < last else "tool_calls"), limit
        assert cut.usage["completion_tokens"] == min(limit, last)


@pytest.mark.parametrize(
    "text", ["a <tool", "see <tool_box> and <tools>", "snake[", "x < y", "<", "a <function=1", '{"name": "now"}']
)
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_T15_B13_B21_what_only_looks_like_a_call_is_text(model: Rig, text: str, size: int) -> None:
    said = await model.both([text[at : at + size] for at in range(0, len(text), size)], tools=TOOLS)
    assert (said.content, said.calls, said.finish) == (text, [], "stop")


@pytest.mark.parametrize("stop", ["\n", "}", '"', "city"])
async def test_P61_stop_strings_do_not_cut_calls(model: Rig, stop: str) -> None:
    said = await model.both(written(model, "get_weather", city="Paris"), tools=TOOLS, stop=stop)
    assert (made(said), said.finish) == ([PARIS], "tool_calls")


async def test_P63_B13_text_held_for_a_stop_string_comes_before_the_call(model: Rig) -> None:
    said = await model.both(["Now DE", *written(model, "now")], tools=TOOLS, stop="DEFG")
    assert ((said.content or "").rstrip(), made(said)) == ("Now DE", [("now", {})])


@pytest.mark.parametrize("tail", ["<tool", "<", "<tool_cal"])
async def test_P63_B13_text_held_for_a_call_comes_before_a_stop_string(model: Rig, tail: str) -> None:
    said = await model.both([*f"a{tail}X"], tools=TOOLS, stop="X")
    assert (said.content, said.finish) == (f"a{tail}", "stop")


async def test_T24_thoughts_come_before_calls(thinker: Rig, levels: Rig) -> None:
    for rig, start in ((thinker, ["<think>", "\n"]), (levels, [])):
        script = [*start, "look it up", "\n", "</think>", "\n\n", *written(rig, "now")]
        for choice in ("auto", "required"):
            said = await rig.both(script, tools=TOOLS, tool_choice=choice, reasoning_effort="low")
            assert (said.reasoning, said.content, made(said)) == ("look it up", None, [("now", {})]), choice


@pytest.mark.parametrize("size", [1, 2, 5, 9])
async def test_P100_B8_any_cutting_says_the_same(model: Rig, size: int) -> None:
    pieces = written(model, "write_file", path="a/b.txt", text="say <b>hi</b>\n\n{x}")
    text = "".join(pieces) if way(model) == "plain" else "".join(pieces[1:-1])
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    script = ["Well.\n", *(cut if way(model) == "plain" else [pieces[0], *cut, pieces[-1]])]
    said = await model.both(script, tools=TOOLS)
    assert made(said) == [("write_file", {"path": "a/b.txt", "text": "say <b>hi</b>\n\n{x}"})]
    assert (said.content or "").strip() == "Well."


async def test_T25_fifty_tools(model: Rig) -> None:
    tools = [function(f"tool_{number}") for number in range(30)]
    assert made(await model.both(written(model, "tool_7"), tools=tools)) == [("tool_7", {})]


# ---------------------------------------------------------------- calls of the past


def past(arguments: Any = '{"city": "Paris"}', **members: Any) -> list[dict[str, Any]]:
    call = called("c1", "get_weather", arguments)
    return [user("q"), assistant(None, tool_calls=[call], **members), tool("c1", "sunny"), user("and?")]


@pytest.mark.parametrize("members", [{}, {"tools": TOOLS}, {"tools": [NOW]}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_T5_T17_P24_B14_calls_of_the_past_are_shown(model: Rig, members: dict[str, Any]) -> None:
    prompt = (await model.see(past(), **members))["prompt"].partition("q<|im_end|>")[2]
    order = ["get_weather", "Paris", "sunny", "and?"]
    assert [prompt.index(each) for each in order] == sorted(prompt.index(each) for each in order)


@pytest.mark.parametrize("arguments", ["", '{"city": "', "[1]", "not json", {"city": "Paris"}, '{"city":"Paris"}'])
async def test_T18_B22_arguments_of_the_past_never_end_the_session(model: Rig, arguments: Any) -> None:
    prompt = (await model.see(past(arguments), tools=TOOLS))["prompt"]
    assert "sunny" in prompt
    if isinstance(arguments, str):
        assert arguments.replace('":"', '": "') in prompt.replace('":"', '": "') or way(model) == "xml_function"


async def test_T19_T20_B30_results_are_parts_too_and_of_known_calls(model: Rig) -> None:
    messages = past()
    messages[2]["content"] = [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]
    assert "sunny" in (await model.see(messages))["prompt"]
    messages[2]["tool_call_id"] = "nope"
    assert (await model.refused(messages=messages))["param"] == "messages[2].tool_call_id"


async def test_T21_results_out_of_order_twice_or_missing(model: Rig) -> None:
    calls = assistant(None, tool_calls=[called("a", "f", '{"x":"1"}'), called("b", "g"), called("c", "h")])
    prompt = (await model.see([user("q"), calls, tool("b", "two"), tool("a", "first"), tool("a", "one"), user("r")]))[
        "prompt"
    ]
    assert prompt.index("one") < prompt.index("two")
    assert "first" not in prompt, "of two results of one call the last is kept"


async def test_T21_a_result_belongs_to_the_nearest_call_of_its_id(model: Rig) -> None:
    turn = [assistant(None, tool_calls=[called("c", "f")])]
    seen = await model.see([user("q"), *turn, tool("c", "one"), *turn, tool("c", "two"), user("r")])
    assert [(each["role"], each["content"]) for each in seen["turns"]][1:5] == [
        ("assistant", ""), ("tool", "one"), ("assistant", ""), ("tool", "two"),
    ]  # fmt: skip


BLOCK = 16


@pytest.mark.parametrize(
    "respell", [lambda text: text, lambda text: json.dumps(json.loads(text), separators=(",", ":"))]
)
async def test_T22_P87a_a_call_sent_back_is_not_computed_again(model: Rig, respell: Any) -> None:
    question = [user(f"What is the weather, {model.room.code} {respell('[1, 2]')}?")]
    model.play(line(*written(model, "write_file", path="p", text="t")), line("ok"))
    first = await model.ask(question, tools=TOOLS)
    whole = first.usage["prompt_tokens"] + first.usage["completion_tokens"]
    (call,) = first.calls
    call["function"]["arguments"] = respell(call["function"]["arguments"])
    second = await model.ask(
        [*question, assistant(first.content, tool_calls=[call]), tool(call["id"], "done")], tools=TOOLS
    )
    assert second.usage["prompt_tokens_details"]["cached_tokens"] >= whole - 2 - BLOCK


async def test_T24_P86_thoughts_of_the_tool_loop_are_used(thinker: Rig) -> None:
    messages = past(reasoning_content="look it up")[:3]
    assert "<think>\nlook it up\n</think>" in (await thinker.see(messages, tools=TOOLS))["prompt"]


async def test_P17_P18_a_note_between_call_and_result(model: Rig) -> None:
    messages = [*past()[:2], system("note"), *past()[2:3]]
    prompt = (await model.see(messages, tools=TOOLS))["prompt"]
    assert prompt.index("sunny") < prompt.index("note")


async def test_T1_sizes_and_names_never_reach_the_room(rig: Rig) -> None:
    for tools, param in [
        ([function("")], "tools[0].function.name"),
        ([function("a b")], "tools[0].function.name"),
        ([function("x" * 129)], "tools[0].function.name"),
        ([NOW, NOW], "tools[1].function.name"),
        ([function("f", "x")], "tools[0].function.parameters"),
        ([function("f", {"description": "x" * 32_001})], "tools[0].function.parameters"),
        ([function(f"f{number}") for number in range(1025)], "tools"),
        ([{"type": "custom", "custom": {"name": "c"}}], "tools[0].type"),
    ]:
        assert (await rig.refused(tools=tools))["param"] == param


@pytest.mark.parametrize("value", [1, "true", []])
async def test_T9_parallel_tool_calls_is_a_boolean(rig: Rig, value: Any) -> None:
    assert (await rig.refused(tools=TOOLS, parallel_tool_calls=value))["param"] == "parallel_tool_calls"
