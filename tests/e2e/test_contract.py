"""What the contract says of caches and of grammars, where a model that thinks and calls tools really generates."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, get
from tests.room.text.schemas import validator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Message = dict[str, Any]

THINKING = {"reasoning_effort": "low"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Asker:
    """Asks one room, greedily unless told otherwise."""

    def __init__(self, base_url: str) -> None:
        self._http = httpx.Client(base_url=base_url, trust_env=False, timeout=240)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, messages: list[Message], **members: Any) -> httpx.Response:
        body = {"messages": messages, "temperature": 0, "max_tokens": 200, **members}
        return self._http.post("/chat/completions", json=body)

    def ask(self, messages: list[Message], **members: Any) -> Any:
        """The answer's choice, with its usage beside."""
        reply = self.post(messages, **members)
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        return {**choice, "usage": reply.json()["usage"]}


@pytest.fixture(scope="module")
def wren(wren_room: Cluster) -> Iterator[Asker]:
    with Asker(wren_room.base_url) as asker:
        yield asker


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def cached(answer: Any) -> int:
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def spent(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"])


# ---------------------------------------------------------------- caches


@pytest.mark.parametrize("members", [{}, THINKING], ids=["plain", "thinking"])
def test_P19_P87a_P87b_turns_as_they_came_are_held_and_changed_ones_up_to_the_change(
    wren: Asker, members: dict[str, Any]
) -> None:
    talk = [user(f"Repeat: grebe {len(members)} heron")]
    first = wren.ask(talk, **members)
    assert bool(first["message"].get("reasoning_content")) == bool(members)
    following = wren.ask([*talk, first["message"], user("Thanks")], **members)
    assert cached(following) >= spent(first) - 2
    late = wren.ask([*talk, first["message"], {"role": "system", "content": "Be brief."}, user("Bye")], **members)
    assert cached(late) >= spent(first) - 2, "the note stands behind what is held"
    changed = {**first["message"], "content": f"{first['message']['content']} indeed"}
    other = wren.ask([*talk, changed, user("Thanks")], **members)
    assert first["usage"]["prompt_tokens"] - 2 <= cached(other) < spent(first)


def test_P87b_changed_thoughts_are_used_as_sent(wren: Asker) -> None:
    talk = [user("Repeat: curlew and dunlin")]
    first = wren.ask(talk, **THINKING)
    changed = {**first["message"], "reasoning_content": "I thought of something else."}
    other = wren.ask([*talk, changed, user("Thanks")], **THINKING)
    assert first["usage"]["prompt_tokens"] - 2 <= cached(other) < spent(first)


def test_P87c_thoughts_left_out_cost_no_more_than_their_turn(wren: Asker) -> None:
    """Many clients know no thoughts and send back the rest."""
    talk = [user("Repeat: plover, twice")]
    for members in ({}, THINKING):
        first = wren.ask(talk, **members)
        bare = {"role": "assistant", "content": first["message"]["content"]}
        following = wren.ask([*talk, bare, user("Thanks")], **members)
        assert cached(following) >= (first["usage"]["prompt_tokens"] if members else spent(first)) - 2


@pytest.mark.parametrize("members", [{}, THINKING], ids=["plain", "thinking"])
@pytest.mark.parametrize("blanks", [(", ", ": "), (",", ":")], ids=["as-written", "without-blanks"])
def test_T22_T24_P87a_a_call_sent_back_is_held_however_its_json_is_spelled(
    wren: Asker, members: dict[str, Any], blanks: tuple[str, str]
) -> None:
    talk = [user(f"What is the weather in Quilm{'o' * len(blanks[0])}{'a' * len(members)}r?")]
    first = wren.ask(talk, tools=[WEATHER], **members)
    assert first["finish_reason"] == "tool_calls"
    (call,) = first["message"]["tool_calls"]
    call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=blanks)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "7 C, drizzle"}
    second = wren.ask([*talk, first["message"], result], tools=[WEATHER], **members)
    assert cached(second) >= spent(first) - 2
    assert "7 C, drizzle" in second["message"]["content"]


def test_P97_P98_what_is_held_is_counted_to_the_token(wren: Asker) -> None:
    system = {"role": "system", "content": "Skagen has a harbour office, whose helpful assistant you are."}
    one, two = [system, user("Repeat: one gull")], [system, user("Count to three.")]
    first = wren.ask(one)
    assert cached(first) <= 3, "the template's first tokens at most"
    again = wren.ask(one)
    assert cached(again) == first["usage"]["prompt_tokens"] - 1, "the last token is always computed"
    shared = cached(wren.ask(two))
    assert 10 < shared < cached(again)
    assert shared > first["usage"]["prompt_tokens"] - 20, "all of the system prompt"


def test_P99_what_a_lost_peer_held_is_counted_no_more(tiny: Path, tmp_path: Path) -> None:
    talk = [user("Is this still held when the peer is gone?")]
    with Cluster(tiny, tmp_path, peers=1, threads=1) as cluster, Asker(cluster.base_url) as tiny_room:
        for _ in range(2):
            before = tiny_room.ask(talk, max_tokens=4)
        assert cached(before) == before["usage"]["prompt_tokens"] - 1
        cluster.peers.pop().popen.kill()
        while get(f"{cluster.origin}/ready") == 200:
            time.sleep(0.02)
        cluster.join(name="another")
        cluster.wait_ready()
        after = tiny_room.ask(talk, max_tokens=4)
        assert cached(after) == 0
        assert after["message"] == before["message"]


# ---------------------------------------------------------------- grammars

NESTED = {
    "type": "object",
    "properties": {
        "status": {"enum": ["open", "closed"]},
        "owner": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 3},
        "count": {"type": "integer", "minimum": -5, "maximum": 50},
    },
    "required": ["status", "owner", "tags", "count"],
    "additionalProperties": False,
    "$defs": {
        "Person": {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]+$", "maxLength": 12},
                           "born": {"type": "string", "format": "date"}},
            "required": ["name", "born"],
        }
    },
}  # fmt: skip
TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 1},
            },
            "required": ["value", "children"],
        }
    },
}
SCHEMAS: dict[str, Any] = {
    "S3_S5_S9_S10-nested": NESTED,
    "S9-tree": TREE,
    "S5-allOf": {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                           {"properties": {"b": {"const": [1, None]}}, "required": ["b"]}]},
    "S5-oneOf": {"oneOf": [{"type": "integer", "maximum": 3, "minimum": 0}, {"type": "boolean"}]},
    "S5-prefixItems": {"type": "array", "minItems": 2, "items": False,
                       "prefixItems": [{"type": "boolean"}, {"type": "integer", "minimum": 7, "maximum": 12}]},
    "S5-formats": {"type": "object", "properties": {name: {"type": "string", "format": name} for name in
                                                    ("date", "time", "date-time", "uuid", "ipv4")},
                   "required": ["date", "time", "date-time", "uuid", "ipv4"]},
    "S8-pattern-and-length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "S11-array": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    "S11-enum": {"enum": ["yes", "no", 5]},
    "S11-const": {"const": "42"},
    "S13-short-string": {"type": "string", "minLength": 3, "maxLength": 9},
    "S17-many": {"enum": [f"value {number} of many" for number in range(2000)]},
}  # fmt: skip
STRINGS, LINE_ENDS = re.compile(r'"(\\.|[^"\\])*("|$)'), re.compile(r"\n *")
"""Besides the ends of lines, at most one blank stands between two tokens of JSON."""
HOT = {"temperature": 1.3, "top_k": 64, "seed": 7}
"""Far from what the model would like to say, so that it is the grammar that holds; the same each time."""


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def valid(text: str, schema: Any) -> bool:
    return bool(validator(schema).is_valid(json.loads(text)))


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_S3_S5_S8_S9_S10_S11_S12_S13_S16_S17_answers_fit_their_schemas(wren: Asker, schema: Any) -> None:
    """Whatever is asked, also side by side (S18)."""
    asked = [user(text) for text in ("Hello", "Count to twelve.", 'Repeat: }}]] "x')]

    def one(message: Message) -> None:
        choice = wren.ask([message], response_format=form(schema), max_tokens=400, **HOT)
        content = choice["message"]["content"]
        assert not re.search(r"\s{2}", LINE_ENDS.sub("", STRINGS.sub('""', content))), content
        if choice["finish_reason"] == "length":
            assert schema is TREE, "which has no end of its own"
        else:
            assert valid(content, schema), content

    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(one, asked))


def test_S2_S15_an_object_that_is_cut_is_told_so(wren: Asker) -> None:
    choice = wren.ask([user("Repeat: no JSON at all")], response_format={"type": "json_object"}, max_tokens=5, **HOT)
    content = choice["message"]["content"]
    assert content.startswith("{")
    assert (choice["finish_reason"], choice["usage"]["completion_tokens"]) in (("length", 5), ("stop", 3), ("stop", 4))


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "(?=a)b"}, {"not": {}}, {"enum": []}, False])
def test_S6_S7_what_cannot_be_enforced_is_refused_and_the_room_lives_on(wren: Asker, schema: Any) -> None:
    reply = wren.post([user("Hello")], response_format=form(schema))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_schema")
    assert wren.ask([user("Hello")])["message"]["content"] == "Hello! How can I help you?"


@pytest.mark.parametrize("most", [200, 8], ids=["ends-by-itself", "closed-by-the-room"])
def test_S14_thoughts_are_free_and_the_answer_is_held(wren: Asker, most: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    choice = wren.ask([user("Hello")], response_format=form(schema), max_tokens=most, **THINKING)
    message, usage = choice["message"], choice["usage"]
    assert not message["reasoning_content"].startswith("{")
    assert "think>" not in message["content"] + message["reasoning_content"]
    assert most == 8 or valid(message["content"], schema)
    assert usage["completion_tokens_details"]["reasoning_tokens"] <= max(4, most // 2) + 1


def test_S18_T23_held_and_free_answers_side_by_side(wren: Asker) -> None:
    free = {"messages": [user("Count to seven.")]}
    held = {"messages": [user("Count to seven.")], "response_format": form(SCHEMAS["S11-array"])}
    either = {"messages": [user("What is the weather in Oslo?")], "tools": [WEATHER],
              "response_format": form(SCHEMAS["S11-array"])}  # fmt: skip
    with ThreadPoolExecutor(6) as pool:
        choices = list(pool.map(lambda members: wren.ask(**members), [free, held, either] * 2))
    for said, array, called in (choices[:3], choices[3:]):
        assert said["message"]["content"] == "1, 2, 3, 4, 5, 6, 7"
        assert valid(array["message"]["content"], SCHEMAS["S11-array"])
        (call,) = called["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


BOOK = {
    "type": "function",
    "function": {
        "name": "book_room",
        "parameters": {
            "type": "object",
            "properties": {
                "nights": {"type": "integer", "minimum": 1, "maximum": 30},
                "board": {"enum": ["none", "half", "full"]},
                "guests": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 2},
                "extra": {"type": "object", "properties": {"cot": {"type": "boolean"}}, "required": ["cot"]},
            },
            "required": ["nights", "board", "guests", "extra"],
        },
    },
}


@pytest.mark.parametrize("named", [False, True], ids=["required", "named"])
def test_T6_T7_T11_calls_fit_their_tools_whatever_the_model_would_say(wren: Asker, named: bool) -> None:
    tools = [BOOK, WEATHER]
    choice = {"type": "function", "function": {"name": "book_room"}} if named else "required"
    made = [
        wren.ask([user(text)], tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=400, **HOT)
        for text in ("Hello", "What is the weather in Oslo?", "Count to nine.")
    ]
    for answer in made:
        assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
        (call,) = answer["message"]["tool_calls"]
        tool = next(tool for tool in tools if tool["function"]["name"] == call["function"]["name"])
        assert not named or tool is BOOK
        assert valid(call["function"]["arguments"], tool["function"]["parameters"])
