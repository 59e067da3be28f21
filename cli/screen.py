"""What a person sees while a command works: bars on a terminal, plain lines elsewhere, log records with --json-log."""

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from cli.logs import LogOptions, log

_STEPS = 4
"""Without bars, loading is told in so many steps."""


def printable(text: str) -> str:
    """`text` without control characters: names and answers come from others and must not steer this terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def as_argument(name: str) -> str:
    """A name for a command line that a person pastes: others choose names, and a shell must read none of them."""
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)


class Screen(ABC):
    """Tells what happens, on stderr."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show one sentence."""

    @abstractmethod
    def loading(self, name: str, done: float, text: str = "", pace: str = "") -> None:
        """Show how far `name` has loaded: `done` goes from 0 to 1. May be called often, with a new `pace` each time."""

    @abstractmethod
    def settle(self) -> None:
        """Loading is over, or broken off: leave the screen as other output needs it."""


class Bars(Screen):
    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def loading(self, name: str, done: float, text: str = "", pace: str = "") -> None:
        text = ", ".join(filter(None, (text, pace)))
        if self._progress is None:
            who, what = (TextColumn(column, markup=False) for column in ("{task.description}", "{task.fields[text]}"))
            self._progress = Progress(who, BarColumn(), TaskProgressColumn(), what, console=self._console)
            self._progress.start()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(printable(name), total=1.0, text=text)
        self._progress.update(self._tasks[name], completed=done, text=text)

    def settle(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks = None, {}


class Lines(Screen):
    def __init__(self) -> None:
        self._told: dict[str, tuple[int, str]] = {}

    def say(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def loading(self, name: str, done: float, text: str = "", pace: str = "") -> None:
        step = int(done * _STEPS)
        if self._told.get(name) != (step, text):
            self._told[name] = (step, text)
            self._tell(name, step / _STEPS, text, pace)

    def settle(self) -> None:
        self._told.clear()

    def _tell(self, name: str, done: float, text: str, pace: str) -> None:
        self.say(f"{name}: {', '.join(filter(None, (f'{text} {done:.0%}'.strip(), pace)))}")


class Records(Lines):
    def say(self, text: str) -> None:
        log.info(text)

    def _tell(self, name: str, done: float, text: str, pace: str) -> None:
        log.info("loading", extra={"who": name, "done": done, "what": ", ".join(filter(None, (text, pace)))})


class Silent(Screen):
    """For programs, which read the events on stdout instead."""

    def say(self, text: str) -> None: ...

    def loading(self, name: str, done: float, text: str = "", pace: str = "") -> None: ...

    def settle(self) -> None: ...


@contextmanager
def showing(options: LogOptions, *, silent: bool = False) -> Iterator[Screen]:
    """The screen that suits where stderr goes; it is left tidy, however the block ends."""
    console = Console(stderr=True)
    screen: Screen
    if silent:
        screen = Silent()
    elif options.json_lines:
        screen = Records()
    else:
        screen = Bars(console) if console.is_terminal else Lines()
    try:
        yield screen
    finally:
        screen.settle()
