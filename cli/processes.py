"""The processes a command starts: when one ends, all end; when the command ends, none is left.

Each child leads a session of its own, so that Ctrl-C in a terminal reaches the command alone and the command decides
who ends how: SIGTERM, a bounded wait, then SIGKILL to the child's whole process group.
"""

import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup
from anyio.streams.text import TextReceiveStream

from cli import lifeline
from cli.errors import SPEAKER, Failed, WrongUse, ungrouped

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""

_TAIL = 5
"""How many of a child's last stderr lines are told when it crashed."""

_DRAIN = 0.5
"""Seconds to wait for the rest of a dead child's stderr, which its own children may hold open."""

_LONGEST_LINE = 1 << 16

Event = dict[str, Any]


class ChildEnded(Failed):
    """A child ended although nobody asked it to."""

    def __init__(self, name: str, code: int, tail: list[str]) -> None:
        self.name, self.code = name, code
        super().__init__(_obituary(name, code, tail))


@dataclass
class Child:
    name: str
    process: Process
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))

    @property
    def pid(self) -> int:
        return self.process.pid

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self.process.terminate()

    def kill_group(self) -> None:
        """End the child and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Children:
    """The children of one command; see `supervised`."""

    def __init__(self, group: TaskGroup, show: Callable[[str, str], None] | None) -> None:
        self._group = group
        self._show = show
        self._all: list[Child] = []
        self._stopping = False

    async def start(
        self,
        name: str,
        argv: tuple[str, ...],
        *,
        env: Mapping[str, str] | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_end: Callable[[ChildEnded], None] | None = None,
    ) -> Child:
        """Start a process named `name` (as in "peer 2") and look after it from now on.

        env: added to our own environment. on_event: called with each JSON object it prints on a line of its stdout.
        on_end: called when it ends although nobody asked it to; the others go on then.
        """
        process = await anyio.open_process(
            argv,
            env={**os.environ, **import_path(os.environ), **lifeline.ENVIRONMENT, **(env or {})},
            start_new_session=True,
        )
        child = Child(name, process)
        self._all.append(child)
        self._group.start_soon(self._look_after, child, on_event, on_end)
        return child

    async def stop(self) -> None:
        """End them all, within GRACE and a little."""
        self._stopping = True
        with anyio.CancelScope(shield=True):
            for child in self._all:
                child.terminate()
            with anyio.move_on_after(GRACE):
                for child in self._all:
                    await child.process.wait()
            for child in self._all:
                child.kill_group()
                await child.process.wait()

    async def close(self) -> None:
        """Close the pipes, when nobody reads them any more."""
        with anyio.CancelScope(shield=True):
            for child in self._all:
                await child.process.aclose()

    async def _look_after(
        self,
        child: Child,
        on_event: Callable[[Event], None] | None,
        on_end: Callable[[ChildEnded], None] | None,
    ) -> None:
        assert child.process.stdout is not None
        assert child.process.stderr is not None
        async with anyio.create_task_group() as readers:
            readers.start_soon(self._read_events, child.process.stdout, on_event)
            readers.start_soon(self._read_stderr, child.process.stderr, child)
            code = await child.process.wait()
            readers.cancel_scope.deadline = anyio.current_time() + _DRAIN
        if self._stopping:
            return
        ended = ChildEnded(child.name, code, list(child.tail))
        if on_end is None:
            raise ended
        on_end(ended)

    async def _read_events(self, stream: ByteReceiveStream, on_event: Callable[[Event], None] | None) -> None:
        async for line in _lines(stream):
            event = _parse(line)
            if event is not None and on_event is not None:
                on_event(event)

    async def _read_stderr(self, stream: ByteReceiveStream, child: Child) -> None:
        async for line in _lines(stream):
            child.tail.append(line)
            if self._show is not None:
                self._show(child.name, line)


@asynccontextmanager
async def supervised(show: Callable[[str, str], None] | None = None) -> AsyncIterator[Children]:
    """Children that end with this block, however it ends. A child that ends first cancels the block: ChildEnded.

    show: gets a child's name and a line it wrote to stderr.
    """
    with ungrouped():
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            children = Children(group, show)
            stack.push_async_callback(children.close)
            try:
                yield children
            finally:
                await children.stop()


def pooled(*arguments: str) -> tuple[str, ...]:
    """The command line that runs `pooled` once more, with this interpreter.

    -P: the current folder must not lend its modules to the child.
    """
    return (sys.executable, "-P", "-m", "cli.start", *arguments)


def import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """What lets a child of ours import these packages when they run from a checkout that is not installed."""
    root = Path(__file__).resolve().parents[1]
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), environ.get("PYTHONPATH"))))}


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[str]:
    rest = ""
    async for piece in TextReceiveStream(stream, errors="replace"):
        *whole, rest = (rest + piece).split("\n")
        for line in whole:
            yield line
        rest = rest[-_LONGEST_LINE:]
    if rest:
        yield rest


def _parse(line: str) -> Event | None:
    """The JSON object in `line`; None for anything else, such as what a library prints."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _obituary(name: str, code: int, tail: list[str]) -> str:
    said = [_message(line) for line in tail if line.strip()]
    if code in (Failed.exit_code, WrongUse.exit_code) and said:
        return f"{name}: {said[-1]}"
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return "\n    ".join([f"{name} {how}" + (", after saying:" if said else ""), *said])


def _message(line: str) -> str:
    """What a stderr line of ours says: the message of a JSON record, or the sentence without the program's name."""
    record = _parse(line) or {}
    return str(record.get("message", line)).removeprefix(SPEAKER)
