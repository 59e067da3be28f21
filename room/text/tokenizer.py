"""A model's text side: tokenizer, chat template, end-of-turn tokens and own sampling setting. Needs no torch."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from protos import room_pb2
from room.model_errors import NoTokenizer
from room.text.detokenize import Detokenizer
from room.text.template import ChatTemplate
from room.text.traits import Traits
from room.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class SamplingDefaults:
    """How a model samples when nobody says otherwise. The defaults are neutral, and greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class TextModel:
    """Everything the room does between text and token ids."""

    def __init__(self, tokenizer: Any, generation: dict[str, Any], config: dict[str, Any]) -> None:
        self.vocabulary = Vocabulary(tokenizer)
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self.default_sampling = _sampling(generation)
        shown = map(self.token_named, self.traits.format.SHOWN)
        self._shown = frozenset(token for token in shown if token is not None)
        self.eos_ids = self._eos_ids(tokenizer, generation, config)
        self.eos_mask = self.mask_without(self.eos_ids)
        """Bits of all tokens but those that end an answer."""

    @classmethod
    def load(cls, text_dir: Path) -> Self:
        """Read tokenizer, template and generation_config.json from a directory. Takes seconds, and blocks.

        Raises NoTokenizer.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(text_dir), local_files_only=True, trust_remote_code=False)
        except Exception as error:
            # The library below raises bare Exceptions.
            raise NoTokenizer(f"the tokenizer in {text_dir} cannot be read; download its files again") from error
        if not tokenizer.is_fast:
            raise NoTokenizer(f"the tokenizer in {text_dir} has no tokenizer.json and cannot be converted to one")
        return cls(tokenizer, _read(text_dir / "generation_config.json"), _read(text_dir / "config.json"))

    @property
    def vocab_size(self) -> int:
        """Ids that stand for something; a model's logits may be padded beyond."""
        return self.vocabulary.size

    @property
    def controls(self) -> frozenset[int]:
        """Ids of all added tokens, the special ones among them."""
        return self.vocabulary.controls

    @property
    def traits(self) -> Traits:
        """What the model can do, and how."""
        return self._template.traits

    def render(
        self, turns: Sequence[room_pb2.Turn], *, thinking: bool, effort: str, tools: Sequence[str] = ()
    ) -> list[int]:
        """The prompt's token ids, up to where the model is to write. `tools` are definitions as JSON text.

        Any conversation can be rendered. Text in `turns` and `tools` never becomes a control token.
        """
        return self._template.render(turns, thinking=thinking, effort=effort, tools=tools)

    def remember(self, key: bytes, lead: str, ids: Sequence[int]) -> None:
        """An answer was written with these tokens after `lead`: let a turn of this key come back as they are."""
        self._template.memory.keep(key, lead, ids)

    def encode(self, markup: str) -> list[int]:
        """The ids of text of our own, in which control tokens are control tokens."""
        return self._template.encode(markup)

    def token_named(self, name: str) -> int | None:
        """The added token that is spelled `name`."""
        found: int | None = self.tokenizer.added_tokens_encoder.get(name)
        return found

    def mask_without(self, ids: Iterable[int]) -> bytes:
        """Bits of all tokens but `ids`: token n is bit n % 8 of byte n // 8."""
        bits = bytearray(b"\xff" * ((self.vocab_size + 7) // 8))
        for token in ids:
            if token < self.vocab_size:
                bits[token // 8] &= ~(1 << token % 8)
        return bytes(bits)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text; nothing for special tokens and ids beyond the vocabulary."""
        return self.vocabulary.bytes_of(token)

    def token_spelling(self, token: int) -> bytes:
        """The bytes of a token; of a special one, its name."""
        return self.vocabulary.spelling(token)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.vocabulary, self._shown)

    def _eos_ids(self, tokenizer: Any, generation: dict[str, Any], config: dict[str, Any]) -> frozenset[int]:
        """Tokens that end an answer: those the model's files name, and the one its template ends a turn with."""
        ids = {*_ids(generation), tokenizer.eos_token_id, self._template.end_of_turn}
        if not generation:
            # Configs are full of defaults of other vocabularies, where such an id is an ordinary word.
            ids.update(set(_ids(config) + _ids(config.get("text_config") or {})) & self.vocabulary.special)
        return frozenset(token for token in ids if token is not None) - self._shown


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise NoTokenizer(f"{path} is not JSON; download it again") from error
    return found if isinstance(found, dict) else {}


def _ids(config: dict[str, Any]) -> list[int]:
    ids = config.get("eos_token_id")
    return [token for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int)]


def _sampling(generation: dict[str, Any]) -> SamplingDefaults:
    """What generation_config.json says; what it leaves out is neutral."""

    def value(name: str, neutral: float) -> float:
        found = generation.get(name)
        return neutral if found is None else float(found)

    penalty = value("repetition_penalty", 1.0)
    if not generation.get("do_sample"):
        return SamplingDefaults(repetition_penalty=penalty)
    return SamplingDefaults(
        temperature=value("temperature", 1.0),
        top_k=int(value("top_k", 0)),
        top_p=value("top_p", 1.0),
        min_p=value("min_p", 0.0),
        repetition_penalty=penalty,
    )
