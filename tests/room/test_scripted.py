"""The script that a scripted room plays: how it is read, and how it is followed."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from room.config import RoomConfig
from room.errors import StartError
from room.scripted import Play, Position, Script, Speller, read_scripts
from room.text.tokenizer import TextModel
from tests.tiny_model import save_tiny_tokenizer

END = ord("$")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """Every byte is a token, and some runs of bytes are too."""
    folder = tmp_path_factory.mktemp("text")
    save_tiny_tokenizer(folder)
    return TextModel.load(folder)


def read(text: TextModel, folder: Path, *lines: Any) -> list[Script]:
    file = folder / "script.jsonl"
    file.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return read_scripts(file, text)


def spelled(text: TextModel, script: Script) -> list[str]:
    return [text.token_spelling(token).decode() for token in script.tokens]


# ---------------------------------------------------------------- reading


def test_a_string_is_one_token_where_the_vocabulary_has_it(text: TextModel, tmp_path: Path) -> None:
    (script,) = read(text, tmp_path, {"tokens": ["the", "room", "x"]})
    assert spelled(text, script) == ["the", "room", "x"]


def test_other_strings_are_the_longest_tokens_that_spell_them(text: TextModel, tmp_path: Path) -> None:
    (script,) = read(text, tmp_path, {"tokens": ["the room?", "\U0001f9e9"]})
    assert b"".join(map(text.token_spelling, script.tokens)).decode() == "the room?\U0001f9e9"
    assert spelled(text, Script(script.tokens[:4])) == ["the", " ", "room", "?"]
    assert len(script.tokens) == 4 + 4


def test_control_tokens_go_by_their_names_and_ids_as_they_are(text: TextModel, tmp_path: Path) -> None:
    (script,) = read(text, tmp_path, {"tokens": ["<|im_end|>", 5, "a<|im_end|>"]})
    (end,) = Speller(text).ids("<|im_end|>")
    assert end in text.eos_ids
    assert script.tokens[:2] == (end, 5)
    assert script.tokens[-1] == end


def test_times_belong_to_strings_and_one_more_to_the_end(text: TextModel, tmp_path: Path) -> None:
    (script,) = read(text, tmp_path, {"tokens": ["\u00e9", "x"], "at_ms": [100, 250, 1000]})
    assert script.due == (0.1, 0.1, 0.25, 1.0)


def test_the_rest_is_optional_and_blank_lines_are_skipped(text: TextModel, tmp_path: Path) -> None:
    nothing, hang = read(text, tmp_path, "{}", "", {"ctx": 64, "fault": "hang", "tokens": [], "at_ms": []})
    assert nothing == Script()
    assert hang == Script(ctx=64, fault="hang")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "line 2 of .* is not JSON"),
        ("[]", "line 2 of .* must be an object"),
        ({"token": []}, "line 2 of .* must be an object with tokens"),
        ({"tokens": "abc"}, "tokens is a list"),
        ({"tokens": [1.5]}, "tokens is a list"),
        ({"tokens": [True]}, "tokens is a list"),
        ({"tokens": [100_000]}, "no token of this model"),
        ({"tokens": [-1]}, "no token of this model"),
        ({"tokens": [""]}, "no token of this model"),
        ({"at_ms": [-1]}, "at_ms is a list"),
        ({"at_ms": 5}, "at_ms is a list"),
        ({"ctx": 0}, "ctx is a number"),
        ({"ctx": "1"}, "ctx is a number"),
        ({"fault": "crash"}, "fault is null or one of error, hang, drop"),
    ],
)
def test_what_is_no_script_stops_the_start(text: TextModel, tmp_path: Path, line: Any, wrong: str) -> None:
    with pytest.raises(StartError, match=wrong):
        read(text, tmp_path, {}, line)


def test_a_script_has_a_line(text: TextModel, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="has no line"):
        read(text, tmp_path)
    with pytest.raises(StartError, match="cannot read the script"):
        read_scripts(tmp_path / "missing", text)
    (tmp_path / "bad").write_bytes(b"\xff\n")
    with pytest.raises(StartError, match="not UTF-8"):
        read_scripts(tmp_path / "bad", text)


@pytest.mark.parametrize("settings", [{"devices": 2}, {"layers": (1, 2)}])
def test_a_scripted_room_waits_for_no_peers(settings: dict[str, Any]) -> None:
    with pytest.raises(StartError, match="a scripted room needs no peers"):
        RoomConfig("m", scripted=Path("s"), **settings)


def test_a_record_belongs_to_a_script() -> None:
    with pytest.raises(StartError, match="--record goes with --scripted"):
        RoomConfig("m", record=Path("r"))


# ---------------------------------------------------------------- following


class Letters:
    """A vocabulary of single letters, and of two words."""

    words: ClassVar = {200: b"bc", 201: b"cd"}
    controls: ClassVar = {ord("!")}

    def spelling(self, token: int) -> bytes:
        return self.words.get(token, bytes([token]))

    def longest(self, data: bytes) -> int:
        return data[0]


def play(script: str | list[int], **members: Any) -> Play:
    tokens = tuple(script.encode() if isinstance(script, str) else script)
    return Play(Script(tokens, **members), Letters(), END, 0.0)  # type: ignore[arg-type]


def said(play: Play, answer: str, *masks: bytes, sampled: int = 1) -> str:
    """What comes after `answer`, whose last letters are a draft when more than one is asked for."""
    return bytes(Position(play, answer.encode(), sampled).say(masks)).decode()


def only(letters: str) -> bytes:
    bits = bytearray(16)
    for token in letters.encode():
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


def test_the_script_comes_token_by_token_and_then_the_end() -> None:
    playing, answer = play("abc"), ""
    for _ in range(5):
        answer += said(playing, answer)
    assert answer == "abc$$"


def test_a_token_of_the_rooms_own_uses_nothing_up_unless_it_is_the_scripts() -> None:
    playing = play("abc")
    assert said(playing, "aX") == "b"
    assert said(playing, "aXbc") == "$"


def test_the_room_may_write_the_same_in_other_tokens() -> None:
    assert list(Position(play("abcd"), [ord("a"), 200], 1).say([])) == [ord("d")]
    assert said(play([ord("a"), 201]), "ac") == "d", "the rest of a token it has begun"


def test_what_stands_before_a_control_token_of_the_rooms_is_left_out() -> None:
    assert said(play("abc!d"), "a!") == "d"
    assert said(play("abc"), "a!") == "b", "it is none of the script's"


def test_what_is_not_allowed_is_left_out() -> None:
    playing = play("abcd")
    assert said(playing, "", only("cd")) == "c"
    assert said(playing, "c") == "d"
    assert said(play("a"), "", only("$")) == "$"
    assert said(play("a"), "", only("xy")) == "x", "nothing of the script fits: the first that is allowed"


def test_a_draft_is_continued_as_if_accepted_and_forgotten_when_it_was_not() -> None:
    playing = play("abcd")
    assert said(playing, "abX", sampled=3) == "bcc"
    assert said(playing, "abc") == "d"


def test_the_same_place_asked_again_says_the_same() -> None:
    playing = play("abc")
    assert said(playing, "a") == said(playing, "a") == "b"


def test_the_fault_comes_when_all_is_said() -> None:
    playing = play("a", fault="error")
    assert Position(playing, b"", 1).fault is None
    assert Position(playing, b"a", 1).fault == "error"


def test_tokens_are_due_when_the_script_says_so() -> None:
    playing = play("abc", due=(0.5, 2.0))
    assert [Position(playing, answer, 1).due for answer in (b"", b"a", b"ab", b"abc")] == [0.5, 2.0, 2.0, 2.0]
