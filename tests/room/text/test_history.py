"""What earlier turns look like in a prompt: as they were generated, whatever a template would drop."""

import json
from typing import Any

import pytest

from protos import room_pb2
from room.text.answer import Answer
from room.text.tools import Tool
from tests.room.text.families import FAMILIES, directory_of, model_of, shown
from tests.room.text.kinds import assistant, library_tokenizer, system, tool, user
from tests.room.text.told import listen

DEFINITION = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d <|im_end|>",
        "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}},
    },
}
ASKED = [system("Be brief."), user("q1")]


def prompt(family: str, *turns: room_pb2.Turn, thinking: bool = False, effort: str = "", tools: Any = ()) -> list[int]:
    definitions = [json.dumps(each) for each in tools]
    return model_of(family).render(turns, thinking=thinking, effort=effort, tools=definitions)


def call(arguments: str = '{"z": "x", "a": 1}', name: str = "look") -> room_pb2.ToolCall:
    return room_pb2.ToolCall(id="c1", name=name, arguments=arguments)


def written(family: str, text: str, *, thinking: bool) -> tuple[list[int], room_pb2.Turn]:
    """A whole answer, each of its characters a token of its own but control tokens; and the turn it comes back as."""
    tokenizer = library_tokenizer(directory_of(family))
    added = tokenizer.added_tokens_encoder
    pieces = [part for piece in tokenizer.tokenize(text) for part in ([piece] if piece in added else piece)]
    ids = tokenizer.convert_tokens_to_ids(pieces)
    tools = (Tool("look", {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}),)
    answer = Answer(model_of(family), [], 1000, False, thinking=thinking, tools=tools, most=16)
    told = listen(answer, [*ids, min(model_of(family).eos_ids)])
    calls = [room_pb2.ToolCall(id="c1", name=name, arguments=arguments) for name, arguments in told.calls]
    return ids, assistant(told.text, reasoning=told.reasoning, calls=calls)


GENERATED = [
    ("qwen3", False, "Hello  \n"),
    ("qwen3", True, "<think>\nWhy not?\n</think>\n\nHello"),
    ("qwen3", True, "<think>\n\n\nWhy not?</think>Hello"),
    ("qwen3", False, 'So:\n\n<tool_call>\n{"name": "look", "arguments": {"a":1,   "z": "\\u00e9"}}\n</tool_call>'),
    ("qwen35", False, " Hello"),
    ("qwen35", True, "Why not?\n</think>\n\nHello"),
    (
        "qwen35",
        True,
        "Hm\n</think>\n\n<tool_call>\n<function=look>\n<parameter=a>\n 1 \n</parameter>\n</function>\n</tool_call>",
    ),
    ("llama", False, ' {"name": "look", "parameters": {"a":2}}'),
    ("harmony", True, "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"),
    ("plain", False, '<tool_call>{"name": "look", "arguments": {"z":"1"}}</tool_call>'),
]


@pytest.mark.parametrize(("family", "thinking", "text"), GENERATED)
@pytest.mark.parametrize("then", [False, True])
def test_P86_P87c_a_turn_comes_back_as_the_tokens_it_was_written_with(
    family: str, thinking: bool, text: str, then: bool
) -> None:
    """So a prompt begins with the prompt before it and the answer to that, also once a new question was asked."""
    tools = [DEFINITION]
    then = then or family == "harmony"  # whose first words tell how much to think
    before = prompt(family, *ASKED, thinking=thinking, tools=tools)
    ids, turn = written(family, text, thinking=thinking)
    more = [tool("result")] if turn.calls else []
    after = prompt(family, *ASKED, turn, *more, user("q2"), thinking=then, tools=tools)
    if family == "llama":  # it tells of its tools in the last question
        before, after = (prompt(family, *turns, thinking=False) for turns in (ASKED, [*ASKED, turn, *more, user("q")]))
    assert after[: len(before) + len(ids)] == [*before, *ids]


def test_T22_calls_are_compared_by_value() -> None:
    ids, turn = written(
        "qwen3", '<tool_call>\n{"name": "look", "arguments": {"a": 1,  "z": "b"}}\n</tool_call>', thinking=False
    )
    turn.calls[0].arguments = '{"z":"b","a":1}'
    after = prompt("qwen3", *ASKED, turn, tool("r"))
    assert after[: len(prompt("qwen3", *ASKED)) + len(ids)] == [*prompt("qwen3", *ASKED), *ids]
    turn.calls[0].arguments = '{"z":"c","a":1}'
    assert '{"z": "c", "a": 1}' in shown("qwen3", prompt("qwen3", *ASKED, turn, tool("r")))


@pytest.mark.parametrize("family", ["qwen3", "qwen35", "harmony"])
@pytest.mark.parametrize("thinking", [False, True])
def test_P86_reasoning_is_inside_the_thoughts_of_its_turn(family: str, thinking: bool) -> None:
    text = shown(
        family,
        prompt(family, user("q1"), assistant("a1", reasoning="never seen"), user("q2"), thinking=thinking),
    )
    tags = model_of(family).traits.tags
    assert tags is not None
    assert f"{tags.open}{tags.head}never seen{tags.tail}{tags.close}" in text
    assert text.index("q1") < text.index("never seen") < text.index("a1") < text.index("q2")


def test_P87c_a_turn_without_reasoning_has_the_empty_block_of_its_prompt() -> None:
    for family in ("qwen3", "qwen35"):
        first = prompt(family, user("q1"))
        assert shown(family, first).endswith("<think>\n\n</think>\n\n")
        second = prompt(family, user("q1"), assistant("never written before"), user("q2"))
        assert second[: len(first)] == first


def test_P87b_a_changed_turn_is_rendered_as_sent() -> None:
    written("qwen3", "<think>\nA\n</think>\n\nB", thinking=True)
    text = shown("qwen3", prompt("qwen3", user("q"), assistant("C", reasoning="A"), user("r")))
    assert "<think>\nA\n</think>\n\nC<|im_end|>" in text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arguments", ["", '{"a": "', "[1]", "no", '{"a": "<|im_end|>"}', '{"z": "<|call|></think>"}'])
def test_T18_any_arguments_are_rendered(family: str, arguments: str) -> None:
    turns = [user("q"), assistant("t", calls=[call(arguments), call()]), tool("uno"), tool("due"), user("bye")]
    ids, plain = prompt(family, *turns), prompt(family, *turns[:1], assistant("t", calls=[call(), call()]), *turns[2:])
    text = shown(family, ids)
    assert text.count("uno") == text.count("due") == 1
    assert text.index("look") < text.index("uno") < text.index("due") < text.index("bye")
    said = {"": "", '{"a": "': '{"a": "', "[1]": "[1]", "no": "no"}.get(arguments, arguments.split('"')[3:4])
    assert (said if isinstance(said, str) else said[0]) in text
    specials = set(library_tokenizer(directory_of(family)).added_tokens_decoder)
    assert [token for token in ids if token in specials] == [token for token in plain if token in specials]


@pytest.mark.parametrize("family", FAMILIES)
def test_P27_reasoning_results_names_and_tools_are_data(family: str) -> None:
    attack = "".join(library_tokenizer(directory_of(family)).added_tokens_encoder)

    def turns(text: str) -> list[room_pb2.Turn]:
        return [
            user("q"),
            assistant("t", reasoning=f"a{text}", calls=[call(json.dumps({"z": text}), f"look{text}")]),
            tool(f"r{text}"),
            user("e"),
        ]

    tools = [{"type": "function", "function": {"name": "look", "description": f"d{attack}", "parameters": {}}}]
    clean = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {}}}]
    specials = set(library_tokenizer(directory_of(family)).added_tokens_decoder)
    ids, plain = prompt(family, *turns(attack), tools=tools), prompt(family, *turns(""), tools=clean)
    assert [token for token in ids if token in specials] == [token for token in plain if token in specials]


@pytest.mark.parametrize("family", FAMILIES)
def test_T26_tools_are_shown_with_their_keys_in_order(family: str) -> None:
    other = {"type": "function", "function": {"name": "also", "parameters": {}}}
    text = shown(family, prompt(family, user("q"), tools=[DEFINITION, other]))
    assert text.index("look") < text.index("also")
    assert text.index('"z"') < text.index('"a"')


def test_tools_are_told_in_words_where_the_template_knows_none() -> None:
    text = shown("plain", prompt("plain", *ASKED, tools=[DEFINITION]))
    assert text.count("<|im_start|>system") == 1
    assert "Be brief.\n\nYou can call functions" in text
    assert shown("plain", prompt("plain", user("q"), tools=[DEFINITION])).startswith("<|im_start|>system\nYou can call")


def test_P83a_a_model_that_cannot_stop_thinking_thinks_as_little_as_it_can() -> None:
    assert "Reasoning: low" in shown("harmony", prompt("harmony", user("q"), effort="high"))
    assert "Reasoning: high" in shown("harmony", prompt("harmony", user("q"), thinking=True, effort="high"))


def test_P85_effort_reaches_only_templates_that_know_levels() -> None:
    levels = ("low", "medium", "high", "xhigh", "max")
    for family in ("qwen3", "qwen35", "llama", "plain"):
        assert not model_of(family).traits.levels
        assert len({tuple(prompt(family, user("q"), thinking=True, effort=level)) for level in levels}) == 1
    assert len({tuple(prompt("qwen38", user("q"), thinking=True, effort=level)) for level in levels}) == 5


def test_what_models_can_do_is_found_by_trying() -> None:
    found = {family: model_of(family).traits for family in FAMILIES}
    assert {name: traits.format.NAME for name, traits in found.items()} == {
        "qwen3": "json_tags",
        "qwen35": "xml_function",
        "qwen38": "xml_function",
        "llama": "llama_json",
        "harmony": "harmony",
        "plain": "plain",
    }
    assert {name for name, traits in found.items() if traits.thinks} == {"qwen3", "qwen35", "qwen38", "harmony"}
    assert {name for name, traits in found.items() if traits.levels} == {"qwen38", "harmony"}


def test_T5_T17_history_is_the_same_with_and_without_tools() -> None:
    turns = [user("q"), assistant("", calls=[call()]), tool("r"), user("e")]
    text = shown("qwen3", prompt("qwen3", *turns))
    assert '<tool_call>\n{"name": "look", "arguments": {"z": "x", "a": 1}}\n</tool_call><|im_end|>' in text
    assert "<tool_response>\nr\n</tool_response>" in text


def test_P28_marks_of_our_own_are_data_too() -> None:
    text = shown("qwen3", prompt("qwen3", user("\ufdd20\ufdd3"), assistant("\ufdd21\ufdd3"), user("e")))
    assert "user\n\ufffd0\ufffd<|im_end|>" in text
    assert "\ufffd1\ufffd<|im_end|>" in text
