"""Ctrl-C and SIGTERM, in processes of their own: a signal to the test runner would end it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CODE = """
import asyncio, sys
from cli.stopping import run_until_stopped

async def work():
    print("working", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaning", flush=True)
        if sys.argv[1] == "hang":
            await asyncio.sleep(60)

run_until_stopped(work())
print("returned", flush=True)
"""


ASKED = """
import asyncio, sys
from cli.stopping import run_until_stopped

asked = asyncio.Event()

async def work():
    print("working", flush=True)
    await asked.wait()
    print("cleaning", flush=True)
    if sys.argv[1] == "hang":
        await asyncio.sleep(60)

run_until_stopped(work(), asked.set)
print("returned", flush=True)
"""


@contextmanager
def working(how: str, code: str = CODE) -> Iterator["subprocess.Popen[str]"]:
    """A process that says when it works; it is over at the end of the block."""
    command = [sys.executable, "-c", code, how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert line(process) == "working"
            yield process
        finally:
            process.kill()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("code", [CODE, ASKED])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_it_clean_up_and_return(number: signal.Signals, code: str) -> None:
    with working("well", code) as process:
        process.send_signal(number)
        out, err = process.communicate()
    assert (out.split(), err, process.returncode) == (["cleaning", "returned"], "", 0)


@pytest.mark.parametrize("code", [CODE, ASKED])
def test_a_second_signal_ends_it_at_once(code: str) -> None:
    with working("hang", code) as process:
        process.send_signal(signal.SIGTERM)
        assert line(process) == "cleaning"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_cancellation_that_no_signal_asked_for_is_not_hidden() -> None:
    code = "import asyncio\nfrom cli.stopping import run_until_stopped\n"
    code += "async def work():\n    asyncio.current_task().cancel()\n    await asyncio.sleep(1)\n"
    done = subprocess.run([sys.executable, "-c", f"{code}run_until_stopped(work())"], cwd=ROOT, capture_output=True)
    assert b"CancelledError" in done.stderr


SLOW_TO_START = """
import sys, time, types
from cli import start

def main():
    try:
        print("runs", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(7)

class Loading(types.ModuleType):
    @property
    def main(self):
        if sys.argv[1] == "loads":
            print("loads", flush=True)
            time.sleep(60)
        return main

sys.modules["cli.main"] = Loading("cli.main")
start.main()
"""


@pytest.mark.parametrize(("stage", "code"), [("loads", 130), ("runs", 7)])
def test_sigterm_as_a_command_starts_is_as_ctrl_c(stage: str, code: int) -> None:
    command = [sys.executable, "-c", SLOW_TO_START, stage]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert line(process) == stage
        process.send_signal(signal.SIGTERM)
        assert process.wait() == code
