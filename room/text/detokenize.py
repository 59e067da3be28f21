"""Token ids to text, as they come: never half a character, and no token is looked at twice."""

import codecs
from collections.abc import Iterable

from room.text.vocabulary import Vocabulary


class Detokenizer:
    """The text of one answer. Bytes wait until their character is whole; what never gets whole never comes out.

    What can no longer become a character comes out as U+FFFD at once. Of special tokens only those `shown` have text.
    """

    def __init__(self, vocabulary: Vocabulary, shown: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = vocabulary.stripped

    @property
    def holding(self) -> bool:
        """Bytes of an unfinished character are waiting."""
        return bool(self._decoder.getstate()[0])

    def feed(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete."""
        return self._decoder.decode(b"".join(map(self._bytes, ids)))

    def _bytes(self, token: int) -> bytes:
        if token in self._shown:
            return self._vocabulary.spelling(token)
        data = self._vocabulary.bytes_of(token)
        if self._strip and data:
            spaces = len(data) - len(data.lstrip(b" "))
            data = data[min(spaces, self._strip) :]
            self._strip = 0
        return data
