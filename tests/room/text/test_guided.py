"""Answers held to a form: what may come at each place, what is forced, and when it is over."""

import json
import random
from typing import Any

import jsonschema
import pytest

from protos import peer_pb2, room_pb2
from room.errors import InternalError, InvalidSchema, InvalidValue, SchemaTooComplex
from room.text.answer import Answer
from room.text.rules import Form, FormMaker
from room.text.tokenizer import TextModel
from room.text.tools import Call
from tests.room.text.families import ids_of, model_of
from tests.room.text.told import Told
from tests.room.text.walks import takes

pytestmark = pytest.mark.anyio

STOP, LENGTH, CALLS = (
    room_pb2.FINISH_REASON_STOP,
    room_pb2.FINISH_REASON_LENGTH,
    room_pb2.FINISH_REASON_TOOL_CALLS,
)
AUTO, NONE, REQUIRED = room_pb2.TOOL_MODE_AUTO, room_pb2.TOOL_MODE_NONE, room_pb2.TOOL_MODE_REQUIRED
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 20},
        "deep": {"type": "object", "properties": {"x": {"type": ["boolean", "null"]}}, "required": ["x"]},
    },
    "required": ["city", "days"],
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FAMILIES = ["qwen3", "qwen35", "llama", "harmony", "plain"]


def asked(
    mode: int = AUTO, *, allowed: tuple[str, ...] = (), most: int = 0, schema: Any = None, thinking: bool = False
) -> room_pb2.GenerateRequest:
    tools = {"weather": WEATHER, "now": None}
    request = room_pb2.GenerateRequest(thinking=thinking)
    if mode:
        request.tools.mode = mode  # type: ignore[assignment]
        for name, parameters in tools.items():
            request.tools.tools.add(name=name, definition="{}", parameters=json.dumps(parameters) if parameters else "")
    request.tools.allowed.extend(allowed)
    request.tools.most = most
    if schema is not None:
        request.format, request.schema = room_pb2.ANSWER_FORMAT_SCHEMA, json.dumps(schema)
    return request


async def answer_to(family: str, request: room_pb2.GenerateRequest, max_new: int = 3000) -> Answer:
    form: Form = await FormMaker(model_of(family)).make(request)
    return Answer(
        model_of(family),
        [],
        max_new,
        False,
        thinking=request.thinking,
        tools=form.tools,
        most=form.most,
        rules=form.rules,
    )


class Model:
    """Plays a model under a room: what the answer forces comes first, then what a chooser picks of what is allowed."""

    def __init__(self, family: str, answer: Answer) -> None:
        self.family = family
        self.text: TextModel = model_of(family)
        self.answer = answer
        self.ids: list[int] = []
        self.forced: list[int] = []
        self.told = Told()

    def force(self) -> None:
        ids, events = self.answer.force()
        self.ids += ids
        self.forced += ids
        self.told.hear(events)

    def allowed(self, token: int) -> bool:
        mask = self.answer.mask()
        return mask is None or bool(mask[token // 8] >> token % 8 & 1)

    def take(self, token: int) -> None:
        assert self.allowed(token)
        self.ids.append(token)
        self.told.hear(self.answer.feed([peer_pb2.SampledToken(id=token)]))
        self.force()

    @property
    def spelled(self) -> bytes:
        return b"".join(map(self.text.token_spelling, self.ids))

    def say(self, text: str) -> None:
        """Say this as far as it is not forced; what is forced has to be part of it."""
        self.force()
        whole = text.encode()
        while self.spelled != whole and self.answer.finished is None:
            assert whole.startswith(self.spelled), self.spelled
            self.take(ids_of(self.family, whole[len(self.spelled) :].decode())[0])

    def end(self) -> None:
        if self.answer.finished is None:
            self.take(min(self.text.eos_ids))

    def ramble(self, rng: random.Random, end_at: float = 0.3) -> None:
        """Say anything that is allowed, and stop as soon as that is, or a little later."""
        ends = self.text.eos_ids
        self.force()
        while self.answer.finished is None:
            mask = self.answer.mask()
            tokens = [
                token for token in range(self.text.vocab_size) if mask is None or mask[token // 8] >> token % 8 & 1
            ]
            stops = [token for token in tokens if token in ends]
            self.take(rng.choice(stops if stops and rng.random() < end_at else tokens))


def validate(arguments: str, name: str) -> None:
    value = json.loads(arguments)
    if name == "now":
        assert value == {}
    else:
        jsonschema.validate(value, {**WEATHER, "additionalProperties": False})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(6))
async def test_T6_T11_required_calls_fit_their_tools_whatever_the_model_wants(family: str, seed: int) -> None:
    rng = random.Random(seed)
    thinking = seed % 2 == 1
    answer = await answer_to(family, asked(REQUIRED, thinking=thinking), 400)
    model = Model(family, answer)
    model.ramble(rng)
    if answer.finished == LENGTH:
        return
    assert answer.finished == CALLS
    assert model.told.text.strip() == ""
    assert 1 <= len(model.told.calls) <= 16
    for name, arguments in model.told.calls:
        validate(arguments, name)
    assert answer.completion_tokens == len(model.ids)


@pytest.mark.parametrize("family", FAMILIES)
async def test_T7_T9_one_call_of_one_tool_ends_the_answer(family: str) -> None:
    answer = await answer_to(family, asked(REQUIRED, allowed=("now",), most=1))
    model = Model(family, answer)
    model.ramble(random.Random(3))
    assert model.told.calls == [("now", "{}")]
    assert answer.finished == CALLS
    assert answer.mask() is not None or family == "harmony"


def calling(family: str, arguments: str = '{"city": "Rome", "days": 2}') -> str:

    value = json.loads(arguments)
    return model_of(family).traits.format.render_answer("", [Call("weather", arguments, value)])


@pytest.mark.parametrize("family", FAMILIES)
async def test_T4_auto_takes_text(family: str) -> None:
    lead = "<|channel|>analysis<|message|>m<|end|><|start|>assistant<|channel|>final<|message|>" * (family == "harmony")
    answer = await answer_to(family, asked(AUTO))
    model = Model(family, answer)
    model.say(lead + "It is 5 < 6, <tool and {")
    model.end()
    assert (model.told.text, model.told.calls, answer.finished) == ("It is 5 < 6, <tool and {", [], STOP)


@pytest.mark.parametrize("family", FAMILIES)
async def test_T4_T11_auto_holds_calls_to_their_tools(family: str) -> None:
    before = {"harmony": "<|channel|>analysis<|message|>m<|end|><|start|>assistant", "llama": ""}.get(family, "Well.\n")
    answer = await answer_to(family, asked(AUTO))
    model = Model(family, answer)
    model.say(before + calling(family))
    assert model.told.calls == [("weather", '{"city": "Rome", "days": 2}')]
    assert model.told.text == ("Well." if before == "Well.\n" else "")
    if answer.finished is None:
        assert not model.allowed(ids_of(family, "x")[0])
    model.end()
    assert answer.finished == CALLS
    other = Model(family, await answer_to(family, asked(AUTO)))
    with pytest.raises(AssertionError):
        other.say(before + calling(family).replace("weather", "weathxr"))


async def test_T8_only_allowed_tools_can_be_called() -> None:
    answer = await answer_to("qwen3", asked(AUTO, allowed=("now",)))
    model = Model("qwen3", answer)
    model.take(*ids_of("qwen3", "<tool_call>"))
    assert model.told.calls == [("now", "{}")], "there is no choice left"


@pytest.mark.parametrize("request_", [asked(NONE), asked(0)])
async def test_T5_a_one_token_opener_is_masked_without_tools(request_: room_pb2.GenerateRequest) -> None:
    model = Model("qwen3", await answer_to("qwen3", request_))
    (opener,) = ids_of("qwen3", "<tool_call>")
    assert not model.allowed(opener)
    assert model.allowed(ids_of("qwen3", "<")[0])
    assert (await answer_to("plain", request_)).mask() is None


async def test_free_text_has_no_mask() -> None:
    answer = await answer_to("qwen3", asked(AUTO))
    assert answer.mask() is None
    assert answer.force() == ([], [])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinking", [False, True])
async def test_S3_S14_the_grammar_begins_after_the_thoughts(family: str, thinking: bool) -> None:
    answer = await answer_to(family, asked(0, schema=SCHEMA, thinking=thinking))
    model = Model(family, answer)
    traits = model.text.traits
    if traits.thinking(thinking):
        assert traits.tags is not None
        model.force()
        for token in ids_of(family, "the ok"):
            model.take(token)
        assert not any(model.allowed(token) for token in model.text.eos_ids)
        for token in ids_of(family, traits.tags.close):
            model.take(token)
        assert model.told.reasoning == "the ok"
    model.ramble(random.Random(1))
    assert json.loads(model.told.text)["ok"] in (True, False)
    assert answer.finished == STOP
    assert not model.told.calls


@pytest.mark.parametrize("family", ["qwen3", "qwen35", "harmony"])
async def test_S14_thoughts_are_closed_when_their_tokens_are_spent(family: str) -> None:
    answer = await answer_to(family, asked(0, schema=SCHEMA, thinking=True), 80)
    model = Model(family, answer)
    model.force()
    (letter,) = ids_of(family, "x")
    while not json_has_begun(model) and answer.finished is None:
        model.take(letter)
    assert 38 <= len(model.told.reasoning) <= answer.reasoning_tokens == 40
    assert set(model.told.reasoning) == {"x"}
    model.ramble(random.Random(2))
    assert answer.finished == STOP
    assert json.loads(model.told.text)


def json_has_begun(model: Model) -> bool:
    return model.told.text.startswith("{") or not model.allowed(ids_of("qwen3", "x")[0])


async def test_S14_forced_tokens_end_at_the_limit() -> None:
    answer = await answer_to("qwen35", asked(REQUIRED, thinking=True), 3)
    model = Model("qwen35", answer)
    (letter,) = ids_of("qwen35", "x")
    model.force()
    while answer.finished is None:
        model.take(letter)
    assert (answer.finished, answer.completion_tokens, len(model.ids)) == (LENGTH, 3, 3)


async def test_T23_a_schema_and_tools() -> None:
    for family in FAMILIES:
        lead = "<|channel|>analysis<|message|>m<|end|><|start|>assistant" * (family == "harmony")
        called = Model(family, await answer_to(family, asked(AUTO, schema=SCHEMA)))
        called.say(lead + calling(family))
        assert [name for name, _ in called.told.calls] == ["weather"]
        told = Model(family, await answer_to(family, asked(AUTO, schema=SCHEMA)))
        final = "<|channel|>final<|message|>" * (family == "harmony")
        told.say(lead + final + '{"ok": true}')
        assert (told.told.text, told.told.calls, told.answer.finished) == ('{"ok": true}', [], STOP)


async def test_T13_a_call_cut_by_the_limit_stays_open() -> None:
    answer = await answer_to("qwen3", asked(REQUIRED), 45)
    model = Model("qwen3", answer)
    model.say(calling("qwen3"))
    assert (answer.finished, answer.completion_tokens) == (LENGTH, 45)
    ((name, arguments),) = model.told.calls
    assert name == "weather"
    assert '{"city": "Rome", "days": 2}'.startswith(arguments)
    assert not arguments.endswith("}")


@pytest.mark.parametrize(("most", "finish"), [(1, CALLS), (2, LENGTH)])
async def test_P39_a_call_that_closes_exactly_at_the_limit(most: int, finish: int) -> None:
    whole = Model("qwen3", await answer_to("qwen3", asked(REQUIRED, most=most)))
    whole.say(calling("qwen3"))
    answer = await answer_to("qwen3", asked(REQUIRED, most=most), len(whole.ids))
    model = Model("qwen3", answer)
    model.say(calling("qwen3"))
    assert model.told.calls == [("weather", '{"city": "Rome", "days": 2}')]
    assert answer.finished == finish


async def test_a_token_that_is_not_allowed_is_the_peers_fault() -> None:
    answer = await answer_to("qwen3", asked(REQUIRED))
    model = Model("qwen3", answer)
    model.force()
    with pytest.raises(InternalError):
        answer.feed([peer_pb2.SampledToken(id=ids_of("qwen3", "}")[0])])


async def test_S6_T2_what_cannot_be_enforced_is_refused_for_answers_only() -> None:
    odd = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    with pytest.raises(InvalidSchema) as refused:
        await answer_to("qwen3", asked(0, schema=odd))
    assert refused.value.param == "response_format"
    assert refused.value.code == "invalid_schema"
    request = asked(AUTO)
    request.tools.tools[0].parameters = json.dumps(odd)
    assert await answer_to("qwen3", request)


async def test_S17_what_is_too_much_is_refused_before_the_answer_begins() -> None:
    huge = {"type": "object", "properties": {"key": {"type": "string", "pattern": "^(a{1000}){1000}$"}}}
    with pytest.raises(SchemaTooComplex) as refused:
        await answer_to("qwen3", asked(0, schema=huge))
    assert refused.value.param == "response_format"
    request = asked(REQUIRED, allowed=("weather",))
    request.tools.tools[0].parameters = json.dumps(huge)
    model = Model("qwen3", await answer_to("qwen3", request))
    model.say('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>')
    model.end()
    assert (model.told.calls, model.answer.finished) == ([("weather", "{}")], CALLS)


def with_tools(mode: int, tools: dict[str, Any]) -> room_pb2.GenerateRequest:
    request = room_pb2.GenerateRequest()
    request.tools.mode = mode  # type: ignore[assignment]
    for name, parameters in tools.items():
        request.tools.tools.add(name=name, definition="{}", parameters=json.dumps(parameters))
    return request


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
async def test_T11_T25_many_tools_and_a_wide_one_are_held_to_their_schemas(family: str) -> None:
    """Two hundred tools, one of them with 1,500 optional arguments: none is left open."""
    kinds = [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, WEATHER]
    tools = {
        f"tool_{at}": {"type": "object", "properties": {f"p{n}": kinds[(at + n) % 4] for n in range(10)}}
        for at in range(200)
    }
    tools["wide"] = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(1500)}}
    forms = FormMaker(model_of(family))
    form = await forms.make(with_tools(REQUIRED, tools))
    assert not forms._left_open
    assert form.rules.grammar
    for name, value, fits in (("wide", 1, True), ("wide", "x", False), ("tool_4", "x", True), ("tool_4", 1, False)):
        argument = json.dumps({"p1499" if name == "wide" else "p0": value})
        said = {"qwen3": f'{{"name": "{name}", "arguments": {argument}}}'}.get(family) or xml(name, argument)
        text = f"<tool_call>\n{said}\n</tool_call>"
        # What stands there as a tag's text is a string whatever it looks like.
        expected = fits or (family == "qwen35" and name == "tool_4")
        assert takes(form.rules.grammar.matcher(), model_of(family), text) is expected, text


def xml(name: str, arguments: str) -> str:
    ((key, value),) = json.loads(arguments).items()
    return f"<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2024-02-30", "today"]),
        ({"type": "string", "format": "date", "pattern": "^2024"}, ["2024-02-29"], ["2023-01-01", "2024"]),
        ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ["ab", "a b"], ["a", "b", "ba"]),
        ({"type": "string", "enum": ["ab", "b"], "pattern": "^a"}, ["ab"], ["b"]),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, ["2024-02-29", "null"], ["x", "nul"]),
        ({"anyOf": [{"enum": ["low", "high"]}, {"type": "null"}]}, ["low", "null"], ["mid", '"low"']),
        ({"type": ["string", "null"]}, ["anything", "null"], []),
        ({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^x*$"}, ["xx", "xxx"], ["x", "xxxx"]),
    ],
)
async def test_T11_strings_between_tags_fit_their_schemas(schema: Any, fitting: list[str], others: list[str]) -> None:
    tool = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    grammar = (await FormMaker(model_of("qwen35")).make(with_tools(REQUIRED, {"f": tool}))).rules.grammar
    assert grammar
    for value in [*fitting, *others]:
        text = f"<tool_call>\n{xml('f', json.dumps({'p': value}))}\n</tool_call>"
        assert takes(grammar.matcher(), model_of("qwen35"), text) is (value in fitting), value


async def test_T11_one_tool_that_cannot_be_enforced_opens_no_other() -> None:
    huge = {"type": "object", "properties": {"key": {"type": "string", "pattern": "^(a{1000}){1000}$"}}}
    forms = FormMaker(model_of("qwen3"))
    request = with_tools(REQUIRED, {"huge": huge, "weather": WEATHER})
    for _ in range(2):
        grammar = (await forms.make(request)).rules.grammar
        assert grammar
        for said, fits in (
            ('{"name": "weather", "arguments": {"city": "Rome", "days": 2}}', True),
            ('{"name": "weather", "arguments": {"town": 1}}', False),
            ('{"name": "huge", "arguments": {"town": 1}}', True),
        ):
            text = f"<tool_call>\n{said}\n</tool_call>"
            assert takes(grammar.matcher(), model_of("qwen3"), text) is fits, said
    assert list(forms._left_open.values()) == [{"huge"}]


@pytest.mark.parametrize("fault", ["required", "allowed", "parameters", "schema"])
async def test_requests_that_make_no_sense_are_refused(fault: str) -> None:
    request = asked(REQUIRED)
    if fault == "required":
        del request.tools.tools[:]
    elif fault == "allowed":
        request.tools.allowed.append("nothing")
    elif fault == "parameters":
        request.tools.tools[0].parameters = "{"
    else:
        request = asked(0, schema={})
        request.schema = "{"
    with pytest.raises((InvalidValue, InvalidSchema)):
        await answer_to("qwen3", request)


async def test_P41_thinking_tokens_count() -> None:
    answer = await answer_to("qwen35", asked(0, thinking=True), 4)
    model = Model("qwen35", answer)
    for token in ids_of("qwen35", *"abcdefghij")[:4]:
        model.take(token)
    assert model.told.what == ("abcd", "", [])
    assert (answer.finished, answer.completion_tokens, answer.reasoning_tokens) == (LENGTH, 4, 4)
