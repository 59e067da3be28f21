import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from room.model_errors import NoTokenizer
from room.text.detokenize import Detokenizer
from room.text.tokenizer import TextModel
from room.text.vocabulary import Vocabulary
from tests.room.text.kinds import KINDS, library_tokenizer
from tests.tiny_model import save_tiny_tokenizer

FAMILY = "👨‍👩‍👧‍👦"
TRICKY = [
    "plain words, and more.",
    f"emoji 🧩 and a family {FAMILY}!",
    " leading blank",
    "   three blanks   inside   ",
    "日本語とé and n\u0303",
    "\n\n\ttabs\r\nand lines\n",
    "עברית مرحبا",
    "a\x00b",
    "🏳️‍🌈🇩🇪",
]
pieces = st.lists(st.one_of(st.sampled_from([*TRICKY, FAMILY, "🧩", " the", " "]), st.text(max_size=8)), max_size=6)


def stream(text: TextModel, ids: list[int], cuts: random.Random | None = None) -> list[str]:
    """The pieces that come out when `ids` are fed one by one, or in bunches."""
    detokenizer, out, at = text.detokenizer(), [], 0
    while at < len(ids):
        step = cuts.randint(1, 4) if cuts else 1
        out.append(detokenizer.feed(ids[at : at + step]))
        at += step
    return out


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> Path:
    return kinds[request.param]


@pytest.fixture(scope="module")
def text(kind: Path) -> TextModel:
    return TextModel.load(kind)


@settings(max_examples=150)
@given(pieces, st.randoms(use_true_random=False))
def test_streamed_text_is_what_the_tokenizer_decodes(
    kind: Path, text: TextModel, parts: list[str], cuts: random.Random
) -> None:
    tokenizer = library_tokenizer(kind)
    ids = tokenizer("".join(parts), add_special_tokens=False).input_ids
    whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert "".join(stream(text, ids)) == whole
    assert "".join(stream(text, ids, cuts)) == whole


@settings(max_examples=150)
@given(st.text(max_size=30))
def test_P109_no_piece_holds_half_a_character(tiny_text: TextModel, tiny_tokenizer: Any, content: str) -> None:
    ids = ids_of(tiny_tokenizer, content)
    out = stream(tiny_text, ids)
    assert "".join(out) == content
    for piece, ids_so_far in zip(out, range(len(ids)), strict=True):
        assert "\ufffd" not in piece or "\ufffd" in content, ids_so_far


def ids_of(tokenizer: Any, content: str) -> list[int]:
    ids: list[int] = tokenizer(content, add_special_tokens=False).input_ids
    return ids


def test_P109_an_emoji_of_four_tokens_comes_whole_with_its_last(tiny_text: TextModel, tiny_tokenizer: Any) -> None:
    ids = ids_of(tiny_tokenizer, "🧩")
    assert len(ids) == 4
    assert stream(tiny_text, ids) == ["", "", "", "🧩"]


def test_P109_an_unfinished_character_at_the_end_is_dropped(tiny_text: TextModel, tiny_tokenizer: Any) -> None:
    ids = ids_of(tiny_tokenizer, "ok🧩")[:-1]
    assert "".join(stream(tiny_text, ids)) == "ok"


def test_bytes_that_cannot_become_a_character_come_out_at_once(tiny_text: TextModel, tiny_tokenizer: Any) -> None:
    detokenizer = tiny_text.detokenizer()
    begun = ids_of(tiny_tokenizer, "🧩")[:2]
    assert detokenizer.feed(begun) == ""
    assert detokenizer.holding
    assert detokenizer.feed(ids_of(tiny_tokenizer, "x")) == "\ufffdx"
    assert not detokenizer.holding


def test_special_tokens_and_ids_beyond_the_vocabulary_say_nothing(tiny_text: TextModel, tiny_tokenizer: Any) -> None:
    (end,) = tiny_text.eos_ids
    ids = [end, *ids_of(tiny_tokenizer, "hi"), tiny_text.vocab_size, 10**6, end, *ids_of(tiny_tokenizer, "!")]
    assert "".join(stream(tiny_text, ids)) == "hi!"
    assert tiny_text.token_bytes(end) == b""
    assert tiny_text.token_spelling(end) == b"<|im_end|>"


def test_a_special_token_first_does_not_save_the_leading_blank(kinds: dict[str, Path]) -> None:
    tokenizer = library_tokenizer(kinds["sentencepiece"])
    ids = [tokenizer.bos_token_id, *tokenizer("the inner", add_special_tokens=False).input_ids]
    text = TextModel.load(kinds["sentencepiece"])
    assert "".join(stream(text, ids)) == tokenizer.decode(ids, skip_special_tokens=True) == "the inner"


def test_tokens_are_spelled_in_bytes(kinds: dict[str, Path]) -> None:
    text = TextModel.load(kinds["sentencepiece"])
    ids = library_tokenizer(kinds["sentencepiece"])("the é", add_special_tokens=False).input_ids
    assert [text.token_bytes(token) for token in ids] == [b" the", b" ", b"\xc3", b"\xa9"]


def test_a_tokenizer_whose_tokens_have_no_bytes_is_refused(tmp_path: Path) -> None:
    from tokenizers import decoders

    tokenizer = save_tiny_tokenizer(tmp_path)
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(NoTokenizer, match="cannot be streamed"):
        Vocabulary(tokenizer)


def test_each_token_is_looked_at_once(tiny_tokenizer: Any) -> None:
    asked: list[int] = []

    class Counting(Vocabulary):
        def bytes_of(self, token: int) -> bytes:
            asked.append(token)
            return super().bytes_of(token)

    ids = ids_of(tiny_tokenizer, "a word and 🧩 " * 200)
    detokenizer = Detokenizer(Counting(tiny_tokenizer))
    for token in ids:
        detokenizer.feed([token])
    assert asked == ids


@pytest.mark.model
def test_smollm2_streams_what_it_decodes(smollm2: Path) -> None:
    text, tokenizer = TextModel.load(smollm2), library_tokenizer(smollm2)
    for content in [*TRICKY, " ".join(TRICKY)]:
        ids = tokenizer(content, add_special_tokens=False).input_ids
        assert "".join(stream(text, ids)) == content
    everything = list(range(text.vocab_size))
    random.Random(0).shuffle(everything)
    decoded = tokenizer.decode(everything, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert decoded.removesuffix("\ufffd") == "".join(stream(text, everything)).removesuffix("\ufffd")
