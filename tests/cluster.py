"""A whole room as real processes on loopback, started through the command line. For end-to-end tests and bench."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

from protos.invite import Invite
from tests.warm import Warm

T = TypeVar("T")

COMMAND = (sys.executable, "-m", "cli.start")
START_WITHIN = 240.0
"""Seconds until a room of a small model is ready on a busy machine."""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Process:
    """One `pooled` command, its output in files. It is forked where `warm` is given."""

    def __init__(
        self,
        folder: Path,
        name: str,
        command: Sequence[str],
        env: dict[str, str],
        warm: Warm | None = None,
        stdin: int | None = None,
    ) -> None:
        self.name = name
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.popen = (
                warm.start(command[len(COMMAND) :], env, self.out, self.err)
                if warm is not None
                else subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err, env=env, text=True)
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def event(self, kind: str, within: float = START_WITHIN) -> dict[str, object]:
        """Wait for a line {"event": kind, ...} on its output."""
        return self.until(lambda event: event if event.get("event") == kind else None, kind, within)

    def until(self, look: Callable[[dict[str, Any]], T | None], what: str, within: float = START_WITHIN) -> T:
        """Wait for an event in which `look` finds something."""

        def found() -> T | None:
            for event in self.events():
                if (seen := look(event)) is not None:
                    return seen
            if self.popen.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.popen.returncode}:\n{self.said()}")
            return None

        return _until(found, within, lambda: f"{self.name} never said {what!r}:\n{self.said()}")

    def events(self) -> list[dict[str, object]]:
        """All that it has told so far. The latest line may still be being written."""
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def said(self) -> str:
        return f"{self.out.read_text()[-2000:]}\n{self.err.read_text()[-4000:]}"

    def signal(self, number: int) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(10)


class Cluster:
    """Room, peers and bridge, or what the test starts itself (`started=False`). Use as a context manager; ends all.

    `folder` takes outputs and is the processes' home, so that nothing of the user's is read or written.
    """

    warm: ClassVar[Warm | None] = None
    """Where peers are forked from, unless they get an environment or a prefix of their own."""

    def __init__(
        self,
        model: Path | str,
        folder: Path,
        *,
        peers: int = 2,
        host: Sequence[str] = (),
        join: Sequence[str] = (),
        serve: Sequence[str] = (),
        memory: str = "2GB",
        threads: int = 2,
        fetch: bool = False,
        started: bool = True,
        patience: float = START_WITHIN,
    ) -> None:
        """`patience` is how many seconds the room and the bridge get to start, and the peers to load."""
        self._started = started
        self._patience = patience
        self.folder = folder
        self.model = str(model)
        self.peer_count = peers
        self._host = list(host)
        # Peers read the model in place, unless fetching it is what matters.
        copy = [] if fetch or not Path(model).exists() else ["--models", str(model)]
        self._join = ["--memory", memory, "--threads", str(threads), *copy, *join]
        self._serve = list(serve)
        self.listen = "127.0.0.1:0"
        self._stack = ExitStack()
        self.processes: list[Process] = []
        self.peers: list[Process] = []
        self.room: Process
        self.bridge: Process
        self.invite: Invite
        """For peers."""
        self.client_invite: Invite
        self.base_url = ""

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            stack.callback(self._end)
            if self._started:
                self._start()
            self._stack = stack.pop_all()
        return self

    def _start(self) -> None:
        self.open_room(self.listen)
        for _ in range(self.peer_count):
            self.join()
        self.bridge = self.start("bridge", "serve", "--port", "0", "--json", *self._serve, invite=True)
        self.base_url = str(self.bridge.event("listening", self._patience)["base_url"])
        if self.peer_count:
            self.wait_ready()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open_room(self, listen: str = "127.0.0.1:0") -> None:
        arguments = ["--no-lend", "--listen", listen, "--json", *self._host]
        if self.peer_count:
            arguments += ["--devices", str(self.peer_count)]
        self.room = self.start("room", "host", self.model, *arguments)
        listening: dict[str, Any] = self.room.event("listening", self._patience)
        self.invite, self.client_invite = (Invite.parse(listening[side][0]) for side in ("peer", "client"))

    def join(
        self,
        *arguments: str,
        invite: Invite | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        stdin: int | None = None,
    ) -> Process:
        """One more peer, or one of that name again; it may dial another address than the room's, such as a proxy's."""
        name = name or f"p{len(self.peers) + 1}"
        command = ("join", "--json", "--name", name, *self._join, *arguments)
        peer = self.start(name, *command, invite=invite or self.invite, env=env, prefix=prefix, stdin=stdin)
        self.peers.append(peer)
        return peer

    def start(
        self,
        name: str,
        *arguments: str,
        invite: Invite | bool = False,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        stdin: int | None = None,
    ) -> Process:
        """A command of ours, which the one in `prefix` is to run."""
        given = {
            **os.environ,
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        if invite:
            given["POOLED_INVITE"] = str(self.client_invite if invite is True else invite)
        warm = None if env or prefix or arguments[0] != "join" else self.warm
        process = Process(self.folder, name, [*prefix, *COMMAND, *arguments], given, warm, stdin)
        self.processes.append(process)
        return process

    def wait_ready(self) -> None:
        def ready() -> bool | None:
            for process in (self.room, *self.peers):
                if process.popen.poll() is not None:
                    raise AssertionError(f"{process.name} ended with {process.popen.returncode}:\n{process.said()}")
            return get(f"{self.origin}/ready") == 200 or None

        _until(ready, self._patience, lambda: f"never ready:\n{''.join(each.said() for each in self.processes)}")

    @property
    def origin(self) -> str:
        return self.base_url.removesuffix("/v1")

    def _end(self) -> None:
        for process in reversed(self.processes):
            process.end()


def wait_for_port(port: int) -> None:
    """Wait until something listens on a port of loopback."""

    def listens() -> bool | None:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0 or None

    _until(listens, 10, lambda: f"nobody listens on port {port}")


def get(url: str) -> int:
    """The status of a GET."""
    try:
        with urlopen(url, timeout=60) as reply:
            return int(reply.status)
    except HTTPError as error:
        with error:
            return error.code


def _until(look: Callable[[], T | None], within: float, otherwise: Callable[[], str]) -> T:
    """Look until there is something."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(otherwise())
