"""`pooled demo`: one command to a working API, and nothing left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from tests.cluster import COMMAND, free_port, get

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SOAK = "POOLED_SOAK" in os.environ
"""`make soak` ends every process in every way; `make test` a sample."""

ONE_PEER = ("--peers", "1")


class Demo:
    def __init__(self, popen: "subprocess.Popen[str]", port: int, out: Path, err: Path) -> None:
        self.popen, self.port, self.out, self.err = popen, port, out, err
        self.children: list[psutil.Process] = []

    def wait_ready(self) -> None:
        """Until the banner is there."""
        while "Pooled is ready" not in self.out.read_text():
            assert self.popen.poll() is None, self.err.read_text()
            time.sleep(0.1)
        self.children = psutil.Process(self.popen.pid).children(recursive=True)

    def child(self, command: str) -> psutil.Process:
        return next(child for child in self.children if command in child.cmdline())

    def left(self) -> list[psutil.Process]:
        """Children still there once the demo has ended and they had time to be reaped."""
        _, alive = psutil.wait_procs(self.children, timeout=60)
        return list(alive)


@contextmanager
def demo(model: Path, folder: Path, *arguments: str) -> Iterator[Demo]:
    port, out, err = free_port(), folder / "out", folder / "err"
    env = {**os.environ, "HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    command = [*COMMAND, "demo", "--model", str(model), "--port", str(port), *arguments]
    with out.open("w") as to_out, err.open("w") as to_err:
        popen = subprocess.Popen(command, stdout=to_out, stderr=to_err, text=True, env=env)
    try:
        yield Demo(popen, port, out, err)
    finally:
        if popen.poll() is None:
            popen.kill()
            popen.wait(10)


# Peers take longest to start, so one demo has as many as people get.
@pytest.mark.parametrize(
    ("number", "options", "processes"),
    [(signal.SIGINT, (), 4), *([(signal.SIGTERM, ONE_PEER, 3)] if SOAK else [])],
)
def test_the_demo_answers_and_ends_cleanly(
    tiny: Path, tmp_path: Path, number: signal.Signals, options: tuple[str, ...], processes: int
) -> None:
    with demo(tiny, tmp_path, *options) as running:
        running.wait_ready()
        assert len({child.pid for child in running.children}) >= processes, "a room, its peers and a bridge"
        base_url = f"http://127.0.0.1:{running.port}/v1"
        assert base_url in running.out.read_text()
        assert get(f"http://127.0.0.1:{running.port}/ready") == 200, "the banner comes when it is"
        with OpenAI(base_url=base_url, api_key="pooled") as client:
            stream = client.chat.completions.create(
                model="pooled", messages=[{"role": "user", "content": "What is a KV cache?"}], stream=True, max_tokens=5
            )
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        running.popen.send_signal(number)
        assert running.popen.wait(60) == 0
        assert running.left() == []
        assert "Traceback" not in running.err.read_text()


@pytest.mark.parametrize("who", ["join", "host", "serve"] if SOAK else ["join"])
def test_when_one_process_crashes_all_end_and_it_is_named(tiny: Path, tmp_path: Path, who: str) -> None:
    with demo(tiny, tmp_path, *ONE_PEER) as running:
        running.wait_ready()
        running.child(who).kill()
        assert running.popen.wait(60) == 1
        assert running.left() == []
        said = running.err.read_text()
        assert {"join": "peer", "host": "room", "serve": "bridge"}[who] in said
        assert "Traceback" not in said


def test_killing_the_demo_itself_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    with demo(tiny, tmp_path, *ONE_PEER) as running:
        running.wait_ready()
        running.popen.kill()
        running.popen.wait(60)
        assert running.left() == []
