import random

from hypothesis import example, given
from hypothesis import strategies as st

from room.text.stops import StopScanner

few_letters = st.text(alphabet="abAé\u0301e", max_size=40)
stop_lists = st.lists(st.text(alphabet="abAé\u0301e", min_size=1, max_size=5), max_size=4)


def scan(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """All that is released, and whether a stop string came."""
    scanner, out = StopScanner(stops), ""
    for piece in pieces:
        released, hit = scanner.feed(piece)
        out += released
        if hit:
            return out, True
    return out + scanner.flush(), False


def reference(stops: list[str], text: str) -> tuple[str, bool]:
    """Character by character: the first stop string that is complete, the longest of several."""
    for end in range(len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


@given(stop_lists, few_letters, st.randoms(use_true_random=False))
@example(["abab"], "aababab", random.Random(1))
@example(["abcd", "bc"], "abcd", random.Random(1))
def test_P58_any_cutting_gives_the_same_text_as_uncut(stops: list[str], text: str, cuts: random.Random) -> None:
    pieces, rest = [], text
    while rest:
        size = cuts.randint(1, 4)
        pieces.append(rest[:size])
        rest = rest[size:]
    assert scan(stops, pieces) == scan(stops, [text]) == reference(stops, text)


@given(stop_lists, few_letters)
def test_P60_only_what_can_still_become_a_stop_string_is_held_back(stops: list[str], text: str) -> None:
    scanner, out, fed = StopScanner(stops), "", ""
    for char in text:
        released, hit = scanner.feed(char)
        out, fed = out + released, fed + char
        if hit:
            return
        held = fed[len(out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_P59_a_stop_string_across_pieces_never_begins_to_show() -> None:
    scanner = StopScanner(["DEFG"])
    assert [scanner.feed(piece) for piece in ("ABC", "DE", "F", "G")] == [
        ("ABC", False),
        ("", False),
        ("", False),
        ("", True),
    ]


def test_P60_held_text_comes_out_when_it_cannot_match() -> None:
    scanner = StopScanner(["DEFG"])
    assert [scanner.feed(piece) for piece in ("ABC", "DE", "X")] == [("ABC", False), ("", False), ("DEX", False)]
    assert scanner.flush() == ""


def test_P60_the_first_token_is_sent_at_once() -> None:
    assert StopScanner(["DEFG", "\n\nHuman:"]).feed("I") == ("I", False)


def test_P60_held_text_comes_out_at_the_end_once() -> None:
    scanner = StopScanner(["DEFG"])
    scanner.feed("ABCDE")
    assert (scanner.flush(), scanner.flush()) == ("DE", "")


def test_P66_characters_are_compared_as_they_are() -> None:
    assert scan(["\u00e9"], ["caf\u0065\u0301"]) == ("caf\u0065\u0301", False)
    assert scan(["stop"], ["STOP"]) == ("STOP", False)
    assert scan(["\u00e9"], ["caf\u00e9!"]) == ("caf", True)


def test_without_stop_strings_everything_passes() -> None:
    assert scan([], ["a", "b"]) == scan([""], ["a", "b"]) == ("ab", False)
