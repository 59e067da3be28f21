"""What servers are asked. `salt` tells one round's questions from another's: none has been answered before."""

import random
from collections.abc import Iterator
from itertools import count, islice

from bench.asking import Messages, user

_TEXT = """
river stone lantern market harbour winter garden letter bridge engine valley copper orchard signal mirror thunder paper
silver shadow window morning castle feather island compass candle meadow anchor ribbon forest
"""
_WORDS = _TEXT.split()


def stories(count: int, salt: int) -> list[Messages]:
    """Plain questions that are answered at length, no two alike."""
    return [
        user(f"Write a long story about the number {salt * 100 + number} and its friends.") for number in range(count)
    ]


def renaming(salt: int) -> Messages:
    """A pasted file of 60 lines in which a variable is to be renamed: the answer copies nearly all of it."""
    lines = "\n".join(islice(_python_lines(random.Random(salt)), 60))
    return user(
        f"Rename the variable total to amount_{salt} in this file. Reply with the whole new file and nothing else.\n\n"
        f"```python\n{lines}\n```"
    )


def _python_lines(chance: random.Random) -> Iterator[str]:
    for number in count(1):
        noun, other = chance.sample(_WORDS, 2)
        yield f"def {noun}_{other}_{number}(values, limit={chance.randint(2, 99)}):"
        yield f"    total = {chance.randint(0, 9)}"
        yield "    for value in values:"
        yield f"        total += value * {chance.randint(2, 9)} if value < limit else {chance.randint(1, 9)}"
        yield "    return total"
        yield ""
