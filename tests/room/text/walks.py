"""Walks through a grammar: is a text let through, and what does a model without a plan write?"""

import json
import random
from typing import Any

from room.text.grammar import Matcher
from room.text.tokenizer import TextModel

LONGEST = 20_000
"""Tokens of a random text, which tries to come to its end long before."""


def json_grammar(schema: dict[str, Any]) -> str:
    return "start: %json " + json.dumps(schema)


def takes(matcher: Matcher, text: TextModel, written: str) -> bool:
    """`written`, as its tokenizer cuts it, is let through and is complete."""
    ids = text.encode(written)
    assert b"".join(map(text.token_bytes, ids)) == written.encode()
    return (
        all(matcher.mask()[token // 8] >> token % 8 & 1 and matcher.accept(token) for token in ids)
        and matcher.accepting
    )


def prefix_taken(matcher: Matcher, text: TextModel, written: str) -> str:
    """How far `written` is let through, as a help in failures."""
    taken = b""
    for token in text.encode(written):
        if not matcher.accept(token):
            break
        taken += text.token_bytes(token)
    return taken.decode(errors="replace")


def allowed(mask: bytes) -> list[int]:
    return [8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]


def random_walk(matcher: Matcher, text: TextModel, rng: random.Random, patience: int = 60) -> str:
    """A text of random tokens from the masks; after `patience` tokens it takes the shortest way out it sees.

    Raises AssertionError if there is no way on, or no end.
    """
    written = b""
    for step in range(LONGEST):
        choices = allowed(matcher.mask())
        assert choices, f"no way on after {written!r}"
        if matcher.accepting and (step > patience or rng.random() < 0.3):
            assert all(token in choices for token in text.eos_ids)
            return written.decode()
        choices = [token for token in choices if token not in text.eos_ids]
        if not choices:
            assert matcher.finished
            return written.decode()
        token = rng.choice(choices) if step <= patience else _way_out(choices, text, written, rng)
        assert matcher.accept(token), f"the mask lies after {written!r}"
        written += text.token_bytes(token)
    raise AssertionError(f"no end: {written[:200]!r}")


def _way_out(choices: list[int], text: TextModel, written: bytes, rng: random.Random) -> int:
    order = b'"\\' if _in_string(written) else b'}],"0123456789tfn:-{['
    best = [token for token in choices if text.token_bytes(token)[:1] in {bytes([byte]) for byte in order}]
    ranked = sorted(best, key=lambda token: (order.index(text.token_bytes(token)[0]), len(text.token_bytes(token))))
    if not ranked or (_in_string(written) and text.token_bytes(ranked[0]) != b'"'):
        return rng.choice(choices)
    return ranked[0]


def _in_string(written: bytes) -> bool:
    return written.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') % 2 == 1
