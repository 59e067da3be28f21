"""Masks, forced tokens and going back, over vocabularies of each kind."""

import json
import random
import statistics
import threading
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from room.text.grammar import Grammar, Grammars
from room.text.schema import InvalidSchema, SchemaTooComplex, strict
from room.text.schema_errors import TakesTooLong
from room.text.tokenizer import TextModel
from tests.room.text.kinds import KINDS, with_template
from tests.room.text.schemas import obj
from tests.room.text.walks import allowed, json_grammar, random_walk, takes
from tests.tiny_model import CHAT_TEMPLATE, IM_END, IM_START

pytestmark = pytest.mark.anyio

GREETING = 'start: "the" " the" "!"?'


@pytest.fixture(params=sorted(KINDS))
def text(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> TextModel:
    return TextModel.load(kinds[request.param])


def bytes_allowed(text: TextModel, mask: bytes) -> set[bytes]:
    return {text.token_spelling(token) for token in allowed(mask)}


async def test_a_grammar_is_walked_to_its_end(text: TextModel) -> None:
    matcher = (await Grammars(text).compile(GREETING)).matcher()
    eos = {text.token_spelling(token) for token in text.eos_ids}
    assert not matcher.accepting
    assert not matcher.finished
    assert not eos & bytes_allowed(text, matcher.mask())
    written = b""
    while not matcher.accepting:
        token = allowed(matcher.mask())[0]
        assert matcher.accept(token)
        written += text.token_bytes(token)
    assert written == b"the the"
    assert not matcher.finished
    assert bytes_allowed(text, matcher.mask()) == eos | {b"!"}
    assert matcher.accept(next(token for token in allowed(matcher.mask()) if text.token_bytes(token) == b"!"))
    assert matcher.accepting
    assert matcher.finished
    assert bytes_allowed(text, matcher.mask()) == eos
    assert matcher.forced() == []


async def test_the_end_of_turn_is_a_token_like_others(tiny_text: TextModel) -> None:
    matcher = (await Grammars(tiny_text).compile('start: "a" "b"?')).matcher()
    (eos,) = tiny_text.eos_ids
    (a,), (b,) = tiny_text.encode("a"), tiny_text.encode("b")
    assert not matcher.accept(eos)
    assert matcher.accept(a)
    assert matcher.accept(eos)
    assert matcher.finished
    assert allowed(matcher.mask()) == [eos]
    assert not matcher.accept(eos)
    assert not matcher.accept(b)


async def test_a_token_that_is_not_allowed_changes_nothing(tiny_text: TextModel) -> None:
    matcher = (await Grammars(tiny_text).compile('start: "ab"')).matcher()
    (a,), (b,) = tiny_text.encode("a"), tiny_text.encode("b")
    mask = matcher.mask()
    for token in (b, tiny_text.vocab_size + 5, *tiny_text.eos_ids):
        assert not matcher.accept(token)
    assert matcher.mask() == mask
    assert matcher.accept(a)
    assert matcher.accept(b)


async def test_forced_tokens_spell_what_comes_next(text: TextModel) -> None:
    matcher = (await Grammars(text).compile('start: "the" " the" ("." | "!")')).matcher()
    forced = matcher.forced()
    written = b"".join(map(text.token_bytes, forced))
    assert forced
    assert b"the the".startswith(written)
    assert not matcher.accepting
    for token in forced:
        assert matcher.accept(token)


async def test_a_guess_is_walked_without_moving(tiny_text: TextModel) -> None:
    matcher = (await Grammars(tiny_text).compile('start: "a" ("bcd" | "xy")')).matcher()
    a, b, c, d, x = (tiny_text.encode(letter)[0] for letter in "abcdx")
    start = matcher.mask()
    ids, masks = matcher.walk([a, b, x, x])
    assert b"".join(map(tiny_text.token_bytes, ids)) == b"abcd", "what leaves no choice replaces the rest of the guess"
    assert [allowed(mask) for mask in masks[:3]] == [[a], [b, x], [c]]
    assert len(masks) == len(ids) + 1
    assert matcher.walk([x, a]) == ([], [start])
    assert matcher.mask() == start
    assert d in ids or len(ids) < 4


async def test_matchers_of_one_grammar_do_not_meet(tiny_text: TextModel) -> None:
    grammar = await Grammars(tiny_text).compile('start: "a" "b"')
    one, other = grammar.matcher(), grammar.matcher()
    assert one.accept(tiny_text.encode("a")[0])
    assert other.mask() == grammar.matcher().mask() != one.mask()


async def test_a_walk_sees_the_masks_that_the_way_itself_has(tiny_text: TextModel) -> None:
    grammar = await Grammars(tiny_text).compile(json_grammar(strict(obj("a", a={"type": "string"}, b={}), "p")))
    rng = random.Random(3)
    matcher, masks, tokens = grammar.matcher(), [], []
    for _ in range(25):
        masks.append(matcher.mask())
        choices = [token for token in allowed(masks[-1]) if token not in tiny_text.eos_ids]
        if not choices:
            break
        tokens.append(rng.choice(choices))
        assert matcher.accept(tokens[-1])
    walker = grammar.matcher()
    for start, token in enumerate(tokens):
        ids, seen = walker.walk(tokens[start:])
        same = next(
            (at for at, (one, other) in enumerate(zip(ids, tokens[start:], strict=False)) if one != other), len(ids)
        )
        assert seen[:same] == masks[start : start + same]
        assert walker.accept(token)


async def test_special_tokens_are_named_and_text_is_quoted(tmp_path: Path) -> None:
    text = TextModel.load(with_template(tmp_path, CHAT_TEMPLATE, "<tool_call>", "</tool_call>"))
    grammars = Grammars(text)
    call = grammars.special("<tool_call>")
    assert grammars.special("no\n") == '"no\\n"'
    matcher = (await grammars.compile(f'start: {call} "a" {grammars.special(IM_START)}')).matcher()
    for name in ("<tool_call>", "a", IM_START):
        token = text.token_named(name)
        assert allowed(matcher.mask()) == [token if token is not None else text.encode(name)[0]]
        assert matcher.accept(allowed(matcher.mask())[0])
    assert matcher.finished


async def test_control_tokens_are_never_text(tiny_text: TextModel) -> None:
    """A string that may hold anything does not hold the tokens that steer."""
    matcher = (await Grammars(tiny_text).compile("start: /(.|\\n)*/")).matcher()
    inside = bytes_allowed(tiny_text, matcher.mask())
    assert IM_START.encode() not in inside
    assert IM_END.encode() in inside  # since the empty text is complete
    assert b"a" in inside


async def test_text_around_a_schema_and_blanks_in_it(tiny_text: TextModel) -> None:
    body = "%json " + json.dumps(strict(obj("a", a={"type": "integer"}), "p"))
    lark = f'start: call ("\\n" call)*\ncall: "<c>\\n" body "\\n</c>"\nbody: {body}'
    grammar = await Grammars(tiny_text).compile(lark)
    assert takes(grammar.matcher(), tiny_text, '<c>\n{"a": 1}\n</c>')
    assert takes(grammar.matcher(), tiny_text, '<c>\n{\n  "a": 1\n}\n</c>\n<c>\n{"a":2}\n</c>')
    assert not takes(grammar.matcher(), tiny_text, '<c>\n{"a": 1}\n\n</c>')
    assert not takes(grammar.matcher(), tiny_text, '<c>\n {"a": 1}\n</c>')


async def test_two_schemas_that_begin_alike(tiny_text: TextModel) -> None:
    bodies = [json.dumps(strict(obj(name, **{name: {"type": "integer"}}), "p")) for name in "ab"]
    grammar = await Grammars(tiny_text).compile(f"start: one | two\none: %json {bodies[0]}\ntwo: %json {bodies[1]}")
    assert takes(grammar.matcher(), tiny_text, '{"a":1}')
    assert takes(grammar.matcher(), tiny_text, '{"b":1}')


async def test_S17_compiled_grammars_are_kept(tiny_text: TextModel) -> None:
    grammars = Grammars(tiny_text)
    first = await grammars.compile(GREETING)
    assert await grammars.compile(GREETING) is first
    for at in range(100):
        await grammars.compile(f'start: "{at}"')
    assert await grammars.compile(GREETING) is not first


@pytest.mark.parametrize("schema", [False, {"allOf": [{"type": "string"}, {"type": "integer"}]}])
async def test_S7_an_impossible_schema_does_not_end_the_room(schema: object, tiny_text: TextModel) -> None:
    grammars = Grammars(tiny_text)
    with pytest.raises(InvalidSchema):
        await grammars.compile(f"start: %json {json.dumps(schema)}")
    assert await grammars.compile(GREETING)


async def test_what_is_no_grammar_is_refused_without_its_words(tiny_text: TextModel) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        await Grammars(tiny_text).compile('start: %json {"type": "secretword"}')
    assert "secretword" not in str(refusal.value)


async def test_S17_a_grammar_that_takes_too_long_is_refused_in_time(
    tiny_text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop goes on while others compile, and nobody waits longer than the limit: not for what never ends."""
    grammars, ended = Grammars(tiny_text), threading.Event()

    def compile_for_ever(lark: str) -> Grammar:
        ended.wait()
        raise AssertionError("nobody waits for this")

    monkeypatch.setattr(grammars, "compile_now", compile_for_ever)
    try:
        with pytest.raises(TakesTooLong):
            await grammars.compile(GREETING, within=0.05)
    finally:
        ended.set()


async def test_S17_what_took_too_long_is_there_for_the_next(
    tiny_text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(tiny_text)
    compiled, go_on = [], threading.Event()

    def compile_late(lark: str) -> Grammar:
        go_on.wait(60)
        compiled.append(lark)
        return Grammars(tiny_text).compile_now(lark)

    monkeypatch.setattr(grammars, "compile_now", compile_late)
    with pytest.raises(TakesTooLong):
        await grammars.compile(GREETING, within=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(grammars.compile, GREETING, 60)
        tasks.start_soon(grammars.compile, GREETING, 60)
        await anyio.lowlevel.checkpoint()
        go_on.set()
    assert compiled == [GREETING]


@pytest.mark.model
async def test_masks_of_a_large_vocabulary(smollm2: Path) -> None:
    """Correct there, too; the figures are printed, not judged."""
    text = TextModel.load(smollm2)
    grammars = Grammars(text)
    schema = obj(
        "name tags",
        name={"type": "string"},
        age={"type": "integer"},
        tags={"type": "array", "items": {"type": "string"}},
    )
    grammar = await grammars.compile(json_grammar(strict(schema, "p")))
    assert takes(grammar.matcher(), text, '{"name": "Zoë 😀", "age": 12, "tags": ["a", "b"]}')
    assert not takes(grammar.matcher(), text, '{"age": 12}')
    times = []
    matcher = grammar.matcher()
    written = '{"name": "a somewhat longer name of somebody", "age": 123456, "tags": ["one", "two words", "three"]}'
    for token in text.encode(written):
        start = time.perf_counter()
        mask = matcher.mask()
        times.append(1e3 * (time.perf_counter() - start))
        assert mask[token // 8] >> token % 8 & 1
        assert len(mask) == (text.vocab_size + 7) // 8
        assert matcher.accept(token)
    print(f"mask: median {statistics.median(times):.3f} ms, slowest {max(times):.3f} ms")
    assert json.loads(random_walk(grammar.matcher(), text, random.Random(2)))["name"] is not None


async def test_S17_a_pattern_that_outgrows_the_compiler_is_refused_before_it_begins(tiny_text: TextModel) -> None:
    schema = {
        "type": "object",
        "properties": {"p": {"type": "string", "pattern": "^(a{1000}){1000}$"}},
        "required": ["p"],
        "additionalProperties": False,
    }
    with pytest.raises(SchemaTooComplex):
        await Grammars(tiny_text).compile("start: %json " + json.dumps(strict(schema, "response_format")))
