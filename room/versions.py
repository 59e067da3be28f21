"""Whether a peer with another version of transformers computes the room's model as the others do. Free of I/O.

Such a peer computes a test frame, with a tiny model of the same class whose weights follow from its tensors' names,
and is dealt layers only if a peer of the room's own version gets the same. What the two versions load differently from
a checkpoint is not found this way.
"""

import struct
from collections.abc import Iterable

from room.members import Member

CLOSE = 1e-3
"""Largest difference, relative to the largest value, that counts as rounding."""


class Versions:
    """`ours` is the version of transformers the room runs with. Another one differs in its first two numbers."""

    def __init__(self, ours: str) -> None:
        self.ours = ours
        self._reference: tuple[float, ...] | None = None

    def is_ours(self, member: Member) -> bool:
        theirs = member.hello.transformers_version
        return not theirs or _minor(theirs) == _minor(self.ours)

    def to_ask(self, members: Iterable[Member]) -> list[Member]:
        """Who is to compute the test frame now: each stranger, and one peer of our version if none has yet."""
        here = list(members)
        asked = [member for member in here if not member.proven]
        friends = [member for member in here if self.is_ours(member)]
        if asked and self._reference is None and not any(member.tested for member in friends):
            asked += friends[:1]
        return [member for member in asked if not member.tested]

    def answered(self, member: Member, values: bytes) -> None:
        """A peer has computed the test frame: float32 values."""
        found = struct.unpack(f"<{len(values) // 4}f", values[: len(values) // 4 * 4])
        member.test = found
        if self.is_ours(member):
            self._reference = found

    def judge(self, member: Member) -> str | None:
        """What is wrong with a stranger; None when nothing is, or that is not known yet. Proves it if all is well."""
        if member.proven or member.test is None or self._reference is None:
            return None
        if _are_close(self._reference, member.test):
            member.proven = True
            return None
        return (
            f"its transformers {member.hello.transformers_version} computes this model otherwise than the room's "
            f"{self.ours}; install that one with: pip install 'transformers=={_minor(self.ours)}.*'"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _are_close(reference: tuple[float, ...], found: tuple[float, ...]) -> bool:
    allowed = CLOSE * max(map(abs, reference), default=0.0)
    return len(found) == len(reference) > 0 and all(
        abs(a - b) <= allowed for a, b in zip(reference, found, strict=True)
    )
