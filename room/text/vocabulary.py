"""The bytes each token stands for, and how a sequence of them becomes text."""

import json
import re
from typing import Any

from room.model_errors import NoTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_ALL = 1 << 16
_KNOWN = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


class Vocabulary:
    """Byte-level BPE and sentencepiece vocabularies, in which every token has bytes of its own.

    `tokenizer` is a fast tokenizer of transformers. Raises NoTokenizer for one whose tokens have no bytes of their own.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, bytes] = {}
        added = tokenizer.added_tokens_decoder
        self.size: int = len(tokenizer)
        self.special = frozenset(token for token, entry in added.items() if entry.special)
        """Ids that never show up in text: they steer."""
        self.controls = frozenset(added)
        """Ids that text spelled like them never becomes."""
        self._added: dict[int, bytes] = {token: entry.content.encode() for token, entry in added.items()}
        steps = _decoder_steps(tokenizer.backend_tokenizer.decoder)
        kinds = {step["type"] for step in steps}
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"} or not kinds <= _KNOWN:
            raise NoTokenizer("the model's tokenizer is of a kind whose text cannot be streamed; choose another model")
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._space = next((mark for step in steps if (mark := _space_mark(step))), "")
        self.stripped = max(map(_stripped, steps), default=0)
        """How many leading spaces the first token loses: sentencepiece writes a space before the first word too."""

    def bytes_of(self, token: int) -> bytes:
        """What `token` adds to the text; nothing for special tokens and ids beyond the vocabulary."""
        return b"" if token in self.special else self.spelling(token)

    def spelling(self, token: int) -> bytes:
        """The bytes of `token`; of a special one, its name."""
        found = self._cache.get(token)
        if found is None:
            found = self._cache[token] = self._spell(token)
        return found

    def _spell(self, token: int) -> bytes:
        if self._byte_level and token in self._added:
            return self._added[token]  # as it is, not in the alphabet for bytes
        text: str | None = self._tokenizer.convert_ids_to_tokens(token) if 0 <= token < self.size else None
        if text is None:
            return b""
        if self._byte_level and all(char in _BYTES for char in text):
            return bytes(map(_BYTES.__getitem__, text))
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        return (text.replace(self._space, " ") if self._space else text).encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable bytes as themselves and the other 68 as the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()


def _decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    """The steps of a tokenizers decoder, as its JSON form describes them."""
    if decoder is None:
        return []
    spec: dict[str, Any] = json.loads(decoder.__getstate__())
    return spec["decoders"] if spec["type"] == "Sequence" else [spec]


def _space_mark(step: dict[str, Any]) -> str:
    """The character that stands for a space in tokens."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " ":
        return str(step["pattern"].get("String", ""))
    return ""


def _stripped(step: dict[str, Any]) -> int:
    if step["type"] == "Strip" and step["content"] == " ":
        return int(step["start"])
    return _ALL if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never" else 0
