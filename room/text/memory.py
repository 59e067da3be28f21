"""The exact tokens of answers the room wrote, found again by what callers send back of them.

A text can be cut into tokens in many ways, and calls can be spelled in many; a model's own way is rarely the one an
encoder would choose. Caches match only if a turn of the history comes back as the tokens that were generated.
"""

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_TOKENS = 4_000_000
"""Tokens of answers kept, of 4 bytes each."""


class Generated(NamedTuple):
    """A turn as the model wrote it: `lead` is what the prompt had begun it with, `ids` what followed."""

    lead: str
    ids: Sequence[int]


class Memory:
    """Forgets what was used longest ago once it holds more than `most` tokens."""

    def __init__(self, most: int = MAX_TOKENS) -> None:
        self._most = most
        self._tokens = 0
        self._kept: OrderedDict[bytes, Generated] = OrderedDict()

    def keep(self, key: bytes, lead: str, ids: Sequence[int]) -> None:
        self._drop(key)
        self._kept[key] = Generated(lead, array("I", ids))
        self._tokens += len(ids)
        while self._tokens > self._most:
            self._drop(next(iter(self._kept)))

    def recall(self, key: bytes) -> Generated | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def _drop(self, key: bytes) -> None:
        found = self._kept.pop(key, None)
        self._tokens -= len(found.ids) if found else 0


def turn_key(reasoning: str, text: str, calls: Sequence[tuple[str, str]]) -> bytes:
    """What tells turns apart. `calls` are names and JSON texts; these are compared by value, not by spelling."""
    said = [reasoning, text, [[name, _value(arguments)] for name, arguments in calls]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).digest()


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {"text": arguments}
