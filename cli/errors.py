"""What the commands fail with. `main` prints the message as one sentence and ends with the class's exit code.

CommandError
├── Failed       exit 1: the command was right, the world was not
│   └── ChildEnded (cli.processes)
└── WrongUse     exit 2: the command line was wrong
"""

from collections.abc import Iterator
from contextlib import contextmanager

from typer import TyperException

SPEAKER = "pooled: "
"""What a sentence on stderr begins with."""


class CommandError(TyperException):
    """Base of this tree."""


class Failed(CommandError):
    exit_code = 1


class WrongUse(CommandError):
    exit_code = 2


@contextmanager
def failing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn a house's own errors into Failed, keeping their sentence."""
    try:
        yield
    except kinds as error:
        raise Failed(str(error)) from error


@contextmanager
def wrong_use(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors about values that came from the command line into WrongUse."""
    try:
        yield
    except kinds as error:
        raise WrongUse(str(error)) from error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Let the first error of a task group through alone: the later ones are its consequences."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
