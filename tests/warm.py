"""Peers that need not load their libraries: forked from a process that has.

Loading torch and transformers is most of what it takes to start a peer of a tiny model, 3.5 of 4.8 s of processor time.
What is forked runs the same command, as a process of its own that can be signalled and killed like any other. Nothing
of ours is loaded before the fork.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select

_Order = tuple[list[str], dict[str, str], str, str]
"""Arguments, environment, and the files for what it says on standard output and standard error."""

_NUMBER = 8
"""Bytes in which a process's id is told, and later its exit code."""


class Forked:
    """As much of a Popen as the tests use, for a process whose parent is another one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        weakref.finalize(self, connection.close)
        self.pid = int.from_bytes(connection.recv(_NUMBER))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal. Raises TimeoutExpired."""
        self._connection.settimeout(timeout)
        try:
            told = self._connection.recv(_NUMBER, socket.MSG_PEEK)  # threads may ask at the same time
        except (TimeoutError, BlockingIOError):
            raise subprocess.TimeoutExpired("forked", timeout or 0.0) from None
        self.returncode = int.from_bytes(told, signed=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """Forks commands of ours that need torch."""

    def __init__(self, address: str) -> None:
        self._address = address

    def start(self, arguments: Sequence[str], env: Mapping[str, str], out: Path, err: Path) -> Forked:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        order: _Order = list(arguments), dict(env), str(out), str(err)
        connection.sendall(json.dumps(order).encode() + b"\n")
        return Forked(connection)


@contextmanager
def warm() -> Iterator[Warm]:
    with tempfile.TemporaryDirectory() as home:
        address = f"{home}/warm"
        env = {**os.environ, "HOME": home, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        command, pipe = [sys.executable, "-m", "tests.warm", address], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield Warm(address)
            finally:
                process.terminate()


def main() -> None:
    """Take orders at the socket that the command line names, each in a process of its own."""
    import torch
    import transformers.modeling_utils
    import transformers.models.llama.modeling_llama

    assert torch.get_num_threads() == 1, "what has threads cannot be forked"
    assert transformers.__version__
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("ready", flush=True)
        while sys.stdin not in select([listening, sys.stdin], [], [])[0]:  # as long as the tests run
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _look_after(connection)
            connection.close()


def _look_after(connection: socket.socket) -> None:
    """Run what is ordered, and tell who it is and how it ended."""
    order: _Order = json.loads(connection.makefile().readline())
    child = os.fork()
    if not child:
        connection.close()
        _run(*order)
    connection.sendall(child.to_bytes(_NUMBER))
    _, status = os.waitpid(child, 0)
    try:
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(_NUMBER, signed=True))
    finally:
        os._exit(0)  # who ordered it may be gone


def _run(arguments: list[str], env: dict[str, str], out: str, err: str) -> None:
    for file, number in ((os.devnull, 0), (out, 1), (err, 2)):
        os.dup2(os.open(file, os.O_RDWR), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["pooled", *arguments]
    code = 1
    try:
        from cli.start import main as command

        command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
