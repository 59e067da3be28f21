"""Control tokens spelled out in people's text stay text.

A tokenizer makes a control token of every "<|im_end|>" it is shown, whoever wrote it. So such text is covered before a
template sees the conversation (which must not act on it either), and what a template makes of the rest is encoded with
the covered text spelled in ordinary tokens.
"""

import re
from typing import Any

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Noncharacters: Unicode keeps them out of all text."""

_COVERED = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_LONE = re.compile("[\ufdd0-\ufdd3]")
_LOOK = re.compile(r"<[|｜].*[|｜]>")


class ControlText:
    """What counts as control text for one model. `tokenizer` is a fast tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()  # some tokenizer.json files ask for it
        self._backend.no_padding()
        self._names = _control_tokens(tokenizer)
        longest_first = sorted(self._names, key=len, reverse=True)
        # Without control tokens: a pattern that never matches.
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._number = {name: at for at, name in enumerate(self._names)}
        self._spelled: dict[int, list[int]] = {}
        self._newline = self._encode("\n")

    def cover(self, text: str) -> str:
        """`text` as a template may see it. A lone surrogate, which no encoding has, becomes U+FFFD."""
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text = _LONE.sub("\ufffd", text)
        return self._pattern.sub(lambda found: f"{_OPEN}{self._number[found[0]]}{_CLOSE}", text)

    def encode(self, rendered: str, *, inside: bool = False) -> list[int]:
        """The ids of a rendered conversation whose texts were covered; `inside`: of a part that others precede."""
        first, *rest = _COVERED.split(rendered)  # text, number, text, number, ... text
        ids = (self._encode_inside(first) if first else []) if inside else self._encode(first)
        for number, text in zip(rest[::2], rest[1::2], strict=True):
            ids += self._spell(int(number)) + (self._encode_inside(text) if text else [])
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(_LONE.sub("", text), add_special_tokens=False).ids
        return ids

    def _encode_inside(self, text: str) -> list[int]:
        """Ids of a text that others precede: sentencepiece puts a blank before the first word of a text only."""
        ids = self._encode("\n" + text)
        length = len(self._newline)
        return ids[length:] if ids[:length] == self._newline else self._encode(text)

    def _spell(self, number: int) -> list[int]:
        """A control token's name in ordinary tokens."""
        if number not in self._spelled:
            name = self._names[number]
            ids = self._plain(name)
            if self._backend.token_to_id(name) in ids:
                # Sentencepiece vocabularies hold names such as "</s>" among their ordinary pieces.
                ids = [token for char in name for token in self._plain(char)]
            self._spelled[number] = ids
        return self._spelled[number]

    def _plain(self, text: str) -> list[int]:
        """What `text` is encoded to, inside a longer text, where no added token is looked for."""
        backend = self._backend
        text = backend.normalizer.normalize_str(text) if backend.normalizer else text
        pieces = (
            [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
        )
        first = "".join(pieces[:1]).removeprefix("▁")  # the blank before a first word
        return [token.id for piece in [first, *pieces[1:]] if piece for token in backend.model.tokenize(piece)]


def _control_tokens(tokenizer: Any) -> list[str]:
    """Added tokens that steer the model: the special ones, those its template writes, those that look like it.

    Others, such as runs of blanks or HTML tags, are ordinary text to the model.
    """
    template = tokenizer.chat_template or ""
    source = "\n".join(template.values()) if isinstance(template, dict) else template

    def steers(name: str, special: bool) -> bool:
        return special or bool(_LOOK.fullmatch(name)) or (name in source and not name.isalnum())

    names = [(entry.content, entry.special) for entry in tokenizer.added_tokens_decoder.values()]
    return [name for name, special in names if not name.isspace() and steers(name, special)]
