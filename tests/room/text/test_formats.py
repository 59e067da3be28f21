"""Real outputs of each call format, as the models write them, cut into tokens anywhere."""

import json
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import room_pb2
from room.text.answer import Answer
from room.text.tools import Call, Tool
from tests.room.text.families import ids_of, model_of
from tests.room.text.told import Told, listen, tokens

STOP, LENGTH, CALLS = (
    room_pb2.FINISH_REASON_STOP,
    room_pb2.FINISH_REASON_LENGTH,
    room_pb2.FINISH_REASON_TOOL_CALLS,
)
TOOLS = (
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": ["string", "null"]},
                "tags": {"type": "array"},
                "deep": {"$ref": "#/$defs/deep"},
            },
            "$defs": {"deep": {"type": "boolean"}},
        },
    ),
    Tool("now"),
    Tool("mcp__files.write-file", {"type": "object", "properties": {"content": {"type": "string"}}}),
)
PARIS = '{"city": "Paris", "days": 3}'
CODE = 'def f():\n\treturn "a\\b"  # </tool_call> <think> 🧩 é\n'


class Output(NamedTuple):
    family: str
    written: str
    text: str
    calls: list[tuple[str, str]]
    reasoning: str = ""
    finish: int = CALLS


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


WRITE = "mcp__files.write-file"
OUTPUTS = {
    "json": Output("qwen3", tagged("get_weather", PARIS), "", [("get_weather", PARIS)]),
    "json, no arguments": Output("qwen3", tagged("now", "{}"), "", [("now", "{}")]),
    "json after text": Output("qwen3", "Let me see.\n\n" + tagged("now", "{}"), "Let me see.", [("now", "{}")]),
    "json, two": Output(
        "qwen3",
        tagged("get_weather", PARIS) + "\n" + tagged("now", "{}"),
        "",
        [("get_weather", PARIS), ("now", "{}")],
    ),
    "json on one line": Output(
        "qwen3",
        '<tool_call>{"name":"get_weather","arguments":{"city":"a"}}</tool_call>',
        "",
        [("get_weather", '{"city":"a"}')],
    ),
    "json, braces and tags in strings": Output(
        "qwen3",
        tagged(WRITE, json.dumps({"content": CODE}, ensure_ascii=False)),
        "",
        [(WRITE, json.dumps({"content": CODE}, ensure_ascii=False))],
    ),
    "json after thoughts": Output(
        "qwen3",
        "<think>\nThe city\nis Paris.\n</think>\n\n" + tagged("get_weather", PARIS),
        "",
        [("get_weather", PARIS)],
        "The city\nis Paris.",
    ),
    "json, an opener in thoughts": Output(
        "qwen3",
        "<think>\nI could write <tool_call>.\n</think>\n\nNo.",
        "No.",
        [],
        "I could write <tool_call>.",
        STOP,
    ),
    "json, text that is no call": Output(
        "qwen3", "a <tool_call> b </tool_call> c <tool", "a <tool_call> b </tool_call> c <tool", [], "", STOP
    ),
    "json, a tool that is not there": Output("qwen3", tagged("rm", "{}"), tagged("rm", "{}"), [], "", STOP),
    "json, brackets of code": Output("qwen3", "snake[", "snake[", [], "", STOP),
    "xml": Output("qwen35", xml("get_weather", city="Paris", days="3"), "", [("get_weather", PARIS)]),
    "xml, no arguments": Output("qwen35", "Well.\n\n" + xml("now"), "Well.", [("now", "{}")]),
    "xml, several": Output(
        "qwen35",
        xml("get_weather", city="3", days="3", unit="null", tags='["a", 1]', deep="True") + "\n" + xml("now"),
        "",
        [
            ("get_weather", '{"city": "3", "days": 3, "unit": null, "tags": ["a", 1], "deep": true}'),
            ("now", "{}"),
        ],
    ),
    "xml, a string that could be a number or null": Output(
        "qwen35", xml("get_weather", unit="12"), "", [("get_weather", '{"unit": "12"}')]
    ),
    "xml, what is no JSON": Output(
        "qwen35", xml("get_weather", days="three"), "", [("get_weather", '{"days": "three"}')]
    ),
    "xml, code": Output(
        "qwen35", xml(WRITE, content=CODE), "", [(WRITE, json.dumps({"content": CODE}, ensure_ascii=False))]
    ),
    "xml, an empty value": Output(
        "qwen35",
        f"<tool_call>\n<function={WRITE}>\n<parameter=content>\n</parameter>\n</function>\n</tool_call>",
        "",
        [(WRITE, '{"content": ""}')],
    ),
    "xml, values in the line": Output(
        "qwen35",
        "<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call>",
        "",
        [("get_weather", '{"city": "Rome"}')],
    ),
    "xml, text that is no call": Output("qwen35", "<tool_call>\n<fun", "<tool_call>\n<fun", [], "", STOP),
    "llama": Output("llama", '{"name": "get_weather", "parameters": ' + PARIS + "}", "", [("get_weather", PARIS)]),
    "llama, two": Output(
        "llama",
        '{"name": "now", "parameters": {}}; {"name": "get_weather", "parameters": ' + PARIS + "}",
        "",
        [("now", "{}"), ("get_weather", PARIS)],
    ),
    "llama, JSON that is no call": Output("llama", '{"name": "Bob"}', '{"name": "Bob"}', [], "", STOP),
    "llama, text": Output("llama", 'Hi {"name": "now"', 'Hi {"name": "now"', [], "", STOP),
    "channels, text": Output(
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hi <b>!",
        "Hi <b>!",
        [],
        "Easy.",
        STOP,
    ),
    "channels, a call": Output(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        "<|constrain|>json<|message|>" + PARIS,
        "",
        [("get_weather", PARIS)],
        "Hm.",
    ),
    "channels, the recipient first": Output(
        "harmony",
        " to=functions.get_weather<|channel|>commentary json<|message|>" + PARIS,
        "",
        [("get_weather", PARIS)],
    ),
    "channels, text before a call": Output(
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
        "<|constrain|>json<|message|>{}",
        "I look.",
        [("now", "{}")],
    ),
    "plain": Output("plain", 'Yes.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>', "Yes.", [("now", "{}")]),
}


def answer_to(family: str, max_new: int = 10_000, tools: tuple[Tool, ...] = TOOLS, **options: object) -> Answer:
    return Answer(model_of(family), [], max_new, False, tools=tools, most=16, **options)  # type: ignore[arg-type]


def end_of(family: str) -> int:
    return min(model_of(family).eos_ids)


@pytest.mark.parametrize("name", OUTPUTS)
def test_T14_outputs_as_models_write_them(name: str) -> None:
    output = OUTPUTS[name]
    answer = answer_to(output.family)
    told = listen(answer, [*ids_of(output.family, output.written), end_of(output.family)])
    assert told.what == (output.reasoning, output.text, output.calls)
    assert answer.finished == output.finish
    for _, arguments in told.calls:
        assert isinstance(json.loads(arguments), dict)


def cut(text: str, rng: random.Random) -> list[str]:
    """Pieces of a text, between which its control tokens are cut too."""
    places = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(0, 12)))) if len(text) > 1 else []
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@settings(max_examples=150)
@given(name=st.sampled_from([name for name in OUTPUTS if not name.startswith("channels")]), rng=st.randoms())
def test_P82_T15_the_same_wherever_it_is_cut(name: str, rng: random.Random) -> None:
    output = OUTPUTS[name]
    ids = ids_of(output.family, *cut(output.written, rng))
    single, bunched = answer_to(output.family), answer_to(output.family)
    told = listen(single, [*ids, end_of(output.family)])
    again, at = Told(), 0
    while at <= len(ids):
        size = rng.randint(1, 7)
        again.hear(bunched.feed(tokens([*ids, end_of(output.family)][at : at + size])))
        at += size
    assert told.what == again.what == (output.reasoning, output.text, output.calls)
    assert single.finished == bunched.finished == output.finish


@settings(max_examples=150)
@given(name=st.sampled_from(sorted(OUTPUTS)), share=st.floats(0, 1))
def test_T13_a_cut_answer_shows_no_markup_and_closes_nothing(name: str, share: float) -> None:
    """All that is told is a beginning of what the whole answer tells."""
    output = OUTPUTS[name]
    ids = ids_of(output.family, output.written)
    most = max(1, int(share * len(ids)))
    answer = answer_to(output.family, most)
    told = listen(answer, ids)
    assert answer.finished == (LENGTH if answer.completion_tokens == most else output.finish)
    assert answer.completion_tokens == most
    assert output.reasoning.startswith(told.reasoning.rstrip("<"))
    assert [name for name, _ in told.calls] == [name for name, _ in output.calls][: len(told.calls)]
    for (_, part), (_, whole) in zip(told.calls, output.calls, strict=False):
        assert whole.startswith(part)


@pytest.mark.parametrize("family", ["qwen3", "qwen35", "llama", "plain", "harmony"])
def test_T17_calls_are_rendered_as_they_are_written(family: str) -> None:
    """What the history says of a call is what a parser takes for that call."""
    written = model_of(family).traits.format.render_answer("", [Call("get_weather", PARIS, json.loads(PARIS))])
    assert listen(answer_to(family), [*ids_of(family, written), end_of(family)]).calls == [("get_weather", PARIS)]


def test_T16_long_strings_come_piece_by_piece() -> None:
    written = xml(WRITE, content="word " * 50)
    answer = answer_to("qwen35")
    events = [event for token in tokens(ids_of("qwen35", written)) for event in answer.feed([token])]
    assert len(events) > 50


def test_T16_an_emoji_in_arguments_is_whole() -> None:
    events = []
    answer = answer_to("qwen3")
    for token in tokens(ids_of("qwen3", tagged(WRITE, '{"content": "a🧩b"}'))):
        events += answer.feed([token])
    assert "a🧩b" in "".join(event.call_delta.arguments for event in events)
    assert not any("\ufffd" in event.call_delta.arguments for event in events)


def test_T5_without_tools_what_looks_like_a_call_is_text() -> None:
    written = tagged("now", "{}")
    answer = answer_to("qwen3", tools=())
    told = listen(answer, [*ids_of("qwen3", written), end_of("qwen3")])
    assert (told.what, answer.finished) == (("", written, []), STOP)


def test_T27_the_last_call_allowed_ends_the_answer() -> None:
    answer = Answer(model_of("qwen3"), [], 1000, False, tools=TOOLS, most=1)
    told = listen(answer, ids_of("qwen3", tagged("now", "{}") + "\n" + tagged("now", "{}")))
    assert told.calls == [("now", "{}")]
    assert answer.finished == CALLS


def test_P61_stop_strings_are_not_looked_for_in_calls() -> None:
    answer = Answer(model_of("qwen3"), ["}", "\n", "Paris"], 1000, False, tools=TOOLS, most=16)
    told = listen(answer, [*ids_of("qwen3", tagged("get_weather", PARIS)), end_of("qwen3")])
    assert (told.calls, answer.finished) == ([("get_weather", PARIS)], CALLS)


def test_P62_nor_in_thoughts() -> None:
    answer = Answer(model_of("qwen3"), ["so"], 1000, False)
    told = listen(answer, ids_of("qwen3", "<think>\nso so\n</think>\n\nAnd so on"))
    assert (told.what, answer.finished) == (("so so", "And ", []), STOP)


@pytest.mark.parametrize("written", ["ab<tool_call>x", "abDE<tool_call>"])
def test_P63_held_text_is_delivered_before_a_stop_and_a_call(written: str) -> None:
    answer = Answer(model_of("qwen3"), ["DEF", "x"], 1000, False, tools=TOOLS, most=16)
    told = listen(answer, [*ids_of("qwen3", written), end_of("qwen3")])
    assert told.text == {"ab<tool_call>x": "ab<tool_call>", "abDE<tool_call>": "abDE<tool_call>"}[written]
    real = Answer(model_of("qwen3"), ["DEF"], 1000, False, tools=TOOLS, most=16)
    told = listen(real, [*ids_of("qwen3", "abDE" + tagged("now", "{}")), end_of("qwen3")])
    assert told.what == ("", "abDE", [("now", "{}")])
