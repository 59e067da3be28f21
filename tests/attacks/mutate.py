"""Messages with a few things wrong in their bytes, and bytes that never were one."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

Mutation = Callable[[Random, bytearray, bytes], None]


def mutated(random: Random, valid: Sequence[bytes]) -> Iterator[bytes]:
    """Without end: one of `valid`, changed in one to four places."""
    while True:
        data = bytearray(random.choice(valid))
        for _ in range(random.randint(1, 4)):
            random.choice(_MUTATIONS)(random, data, random.choice(valid))
        yield bytes(data)


def _flip(random: Random, data: bytearray, other: bytes) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _cut(random: Random, data: bytearray, other: bytes) -> None:
    del data[random.randint(0, len(data)) :]


def _drop(random: Random, data: bytearray, other: bytes) -> None:
    at = random.randint(0, len(data))
    del data[at : at + random.randint(1, 8)]


def _insert(random: Random, data: bytearray, other: bytes) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.randbytes(random.randint(1, 8))


def _splice(random: Random, data: bytearray, other: bytes) -> None:
    at, of_other = random.randint(0, len(data)), random.randint(0, len(other))
    data[at:] = other[of_other:]


def _huge(random: Random, data: bytearray, other: bytes) -> None:
    """A number or a length as large as protobuf can write."""
    at = random.randint(0, len(data))
    data[at : at + 1] = random.choice([b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"])


_MUTATIONS: tuple[Mutation, ...] = (_flip, _cut, _drop, _insert, _splice, _huge)
