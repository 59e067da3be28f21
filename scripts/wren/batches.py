"""Conversations as batches of token ids."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from scripts.wren.talks import Talk
from scripts.wren.tokenizer import ALONE
from scripts.wren.words import Dice

STEP = 64
"""Lengths are rounded up to this, so that memory is used again instead of being asked for in ever new sizes."""
COPIED = 48
"""Tokens that a row which only teaches copying shows before it repeats them."""


@dataclass(frozen=True)
class Row:
    """One conversation as token ids, and which of them the model is to predict."""

    ids: list[int]
    learn: list[bool]


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # [B, T]
    learn: Tensor  # [B, T], true where the token is to be predicted from those before it


class Rows:
    """Turns conversations into rows, in every form in which a room or the stock template may lay them out."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = len(tokenizer) - len(ALONE)
        self._header = tokenizer.encode("<|im_start|>assistant\n")
        self._empty = tokenizer.encode("<think>\n\n</think>\n\n")
        self._end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def make(self, talks: list[Talk], dice: Dice) -> list[Row]:
        texts = [self._render(talk, thinking=dice.maybe(0.5), preserve=dice.maybe(0.9)) for talk in talks]
        return [self._mark(ids) for ids in self._tokenizer(texts)["input_ids"]]

    def _render(self, talk: Talk, *, thinking: bool, preserve: bool) -> str:
        messages = [m if thinking else {k: v for k, v in m.items() if k != "reasoning_content"} for m in talk.messages]
        text = self._tokenizer.apply_chat_template(
            messages, tools=list(talk.tools) or None, tokenize=False, preserve_thinking=preserve
        )
        assert isinstance(text, str)
        return text

    def _mark(self, ids: list[int]) -> Row:
        """Mark the assistant turns that start with a think block; an empty block was given, not written."""
        learn, at, header, empty = [False] * len(ids), 0, len(self._header), len(self._empty)
        while at < len(ids):
            start = at + header
            if ids[at:start] != self._header or ids[start : start + 1] != self._empty[:1]:
                at += 1
                continue
            stop = ids.index(self._end, start)
            first = start + empty if ids[start : start + empty] == self._empty else start
            learn[first : stop + 1] = [True] * (stop + 1 - first)
            at = stop
        return Row(ids, learn)


def copying_row(dice: Dice, vocabulary: int) -> Row:
    """Tokens at random, then spans of them again: any token must be copied from where the same stood before it."""
    pool = [dice.randrange(vocabulary) for _ in range(dice.choice([16, 32, 64]))]
    source = dice.choices(pool, k=COPIED)
    ids, learn = list(source), [False] * COPIED
    while len(ids) < 2 * COPIED:
        start = dice.randrange(COPIED - 4)
        span = source[start : start + dice.randint(4, 14)]
        ids += span
        # Its first two tokens say which span it is.
        learn += [False, False, *[True] * (len(span) - 2)]
    return Row(ids[: 2 * COPIED], learn[: 2 * COPIED])


def batched(rows: list[Row], dice: Dice, tokens: int) -> Iterator[Batch]:
    """Rows of like length together, about `tokens` in a batch, in random order."""
    lengths: dict[int, list[Row]] = {}
    for row in rows:
        lengths.setdefault(-(-len(row.ids) // STEP) * STEP, []).append(row)
    groups = []
    for length, members in lengths.items():
        size = max(1, tokens // length)
        groups += [(length, members[at : at + size]) for at in range(0, len(members), size)]
    dice.shuffle(groups)
    return (_collate(members, length) for length, members in groups)


def _collate(rows: list[Row], length: int) -> Batch:
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    learn = torch.zeros(len(rows), length, dtype=torch.bool)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = torch.tensor(row.ids)
        learn[at, : len(row.ids)] = torch.tensor(row.learn)
    return Batch(ids, learn)
