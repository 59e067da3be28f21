"""The tokenizer: bytes, merges for words it does not know, and one token for each word and phrase it knows.

A known word is the same token wherever it stands, after a space or inside quotes, which keeps copying simple.
"""

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.wren.words import ADJECTIVES, CITIES, NAMES, NOUNS, PARAMS, PLAIN, SIGNS, VERBS, Dice

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CONTEXT = 2048
MERGES = 250

# Text that is the same in every prompt with tools or in every call: long pieces make short prompts.
PHRASES = [
    "# Tools\n\nYou can call these functions, one JSON object in each line:\n",
    "To call a function, return a json object between tags:\n",
    '{"name": <function>, "arguments": <arguments>}',
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '", "parameters": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"',
    '", "strict": true, "parameters": {"properties": {"',
    '": {"type": "string"',
    '": {"type": "integer"',
    '": {"type": "boolean"',
    '": {"title": "',
    '", "type": "string"',
    '", "type": "integer"',
    '", "type": "boolean"',
    '}}, "required": ["',
    '"}}, "required": ["',
    ', "description": "',
    '"], "title": "',
    '", "type": "object", "additionalProperties": false}, "description": "',
    '"], "additionalProperties": false}}}',
    '"]}}}',
    '"}}',
    '{"name": "',
    '", "arguments": {"',
    '": "',
    '": ',
    '", "',
    '}, "',
    ', "',
    '"}',
    "}}",
    '{"',
    ' "',
    ": ",
    ", ",
    "\n\n",
]

ALONE = ["arguments"]
"""What stands in a phrase above and, by itself, only where a grammar forces the text up to the phrase's middle.

A few tokens there can be taken back for the phrase, a word spelled in many pieces cannot.
"""


def _known() -> list[str]:
    """Words that are one token."""
    names = [*VERBS, *NOUNS, *PARAMS, *ADJECTIVES]
    capitals = [word.capitalize() for word in (*VERBS, *PLAIN, *PARAMS)]
    return list(dict.fromkeys([*names, *NAMES, *CITIES, *PLAIN, *capitals, *SIGNS]))


def make_tokenizer(template: Path, dice: Dice) -> PreTrainedTokenizerFast:
    known = _known()
    # Words that no name and no value holds carry their space with them.
    joined = [f" {word}" for word in PLAIN if word not in {*VERBS, *NOUNS, *PARAMS, *ADJECTIVES}]
    whole = "|".join(re.escape(phrase) for phrase in sorted(PHRASES, key=len, reverse=True))
    spaced = "|".join(sorted(joined, key=len, reverse=True))
    pieces = Regex(rf"{whole}|(?:{spaced})(?!\p{{L}})|\p{{L}}+|\p{{N}}{{1,2}}|.|\n")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    learner = Tokenizer(models.BPE())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False)
    learner.pre_tokenizer = level
    learner.train_from_iterator(
        [dice.choice([dice.invented().capitalize(), dice.invented()]) for _ in range(8000)], trainer
    )
    learned = json.loads(learner.to_str())["model"]

    vocab, merges = dict(learned["vocab"]), [tuple(pair) for pair in learned["merges"]]
    pairs = [str(n) for n in range(10, 100)] + [f"{n:02}" for n in range(10)]
    for text in (*PHRASES, *joined, *known, *pairs, *SPECIAL, *TAGS, *ALONE):
        (piece, _), *more = level.pre_tokenize_str(text)
        assert not more
        vocab.setdefault(piece, len(vocab))

    # A piece that the vocabulary holds whole is one token, whatever the merges say.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pieces, "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=template.read_text(encoding="utf-8"),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
