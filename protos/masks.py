"""Which allowed-token masks have crossed a lane: both ends keep the same ones, so that a mask is sent once."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

KEPT = 512
"""Masks either end of a lane remembers; the oldest is forgotten on both at the same message."""


class MaskBook(Mapping[bytes, bytes]):
    """Masks by hash, in the order they were sent."""

    def __init__(self) -> None:
        self._masks: OrderedDict[bytes, bytes] = OrderedDict()

    def __getitem__(self, digest: bytes) -> bytes:
        return self._masks[digest]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def add(self, digest: bytes, bits: bytes) -> None:
        self._masks[digest] = bits
        if len(self._masks) > KEPT:
            self._masks.popitem(last=False)
