"""Supervision with small dummy children: who ends whom, and what is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest

from cli import processes
from cli.processes import Child, ChildEnded, Event, supervised

pytestmark = pytest.mark.anyio


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


SLEEPS = python("import time; time.sleep(60)")
IGNORES_SIGTERM = python(
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(60)"
)
HAS_A_CHILD = python(
    "import json, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(json.dumps({'pid': child.pid}), flush=True)\n"
    "time.sleep(60)"
)


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def gone(pid: int) -> None:
    """Wait until the process is gone; the test's time limit ends the wait."""
    while alive(pid):  # noqa: ASYNC110  (the end of a process that is not our child is no event)
        await anyio.sleep(0.02)


async def run_one(name: str, code: str, show: Callable[[str, str], None] | None = None) -> None:
    """Run one child beside a block that never ends by itself."""
    async with supervised(show) as children:
        await children.start(name, python(code))
        await anyio.sleep_forever()


async def test_children_end_with_the_block() -> None:
    async with supervised() as children:
        started = [await children.start(f"child {n}", SLEEPS) for n in range(3)]
        assert all(alive(child.pid) for child in started)
    assert not any(alive(child.pid) for child in started)


async def test_a_crash_ends_the_block_and_the_others() -> None:
    others: list[Child] = []

    async def run_two() -> None:
        async with supervised() as children:
            others.append(await children.start("other", SLEEPS))
            await children.start("weak", python("raise SystemExit(7)"))
            await anyio.sleep_forever()

    with pytest.raises(ChildEnded) as caught:
        await run_two()
    assert (caught.value.name, caught.value.code, str(caught.value)) == ("weak", 7, "weak ended with exit code 7")
    assert not alive(others[0].pid)


async def test_a_child_that_others_can_do_without() -> None:
    ended: list[ChildEnded] = []
    heard = anyio.Event()

    def note(end: ChildEnded) -> None:
        ended.append(end)
        heard.set()

    async with supervised() as children:
        other = await children.start("other", SLEEPS)
        await children.start("weak", python("raise SystemExit(7)"), on_end=note)
        await heard.wait()
        assert alive(other.pid)
    assert [str(each) for each in ended] == ["weak ended with exit code 7"]


async def test_a_crash_tells_the_last_stderr_lines() -> None:
    code = "import os, sys; [print('line', n, file=sys.stderr, flush=True) for n in range(9)]; os.kill(os.getpid(), 9)"
    with pytest.raises(ChildEnded) as caught:
        await run_one("weak", code)
    first, *said = str(caught.value).splitlines()
    assert first == "weak was killed by SIGKILL, after saying:"
    assert [line.strip() for line in said] == [f"line {n}" for n in range(4, 9)]


@pytest.mark.parametrize("line", ["pooled: the port is taken", '{"level": "error", "message": "the port is taken"}'])
async def test_a_childs_own_sentence_is_passed_on(line: str) -> None:
    with pytest.raises(ChildEnded, match=r"^weak: the port is taken$"):
        await run_one("weak", f"import sys; print({line!r}, file=sys.stderr); sys.exit(1)")


async def test_a_child_that_ends_well_too_early_ends_the_block() -> None:
    with pytest.raises(ChildEnded, match="brief ended with exit code 0"):
        await run_one("brief", "pass")


async def test_an_error_of_the_block_comes_through_alone() -> None:
    started: list[Child] = []

    async def fail() -> None:
        async with supervised() as children:
            started.append(await children.start("child", SLEEPS))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not alive(started[0].pid)


async def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.2)
    ready = anyio.Event()
    async with supervised() as children:
        child = await children.start("stubborn", IGNORES_SIGTERM, on_event=lambda _: ready.set())
        await ready.wait()
    assert child.process.returncode == -signal.SIGKILL


async def test_a_childs_own_children_end_too() -> None:
    pids: list[int] = []
    ready = anyio.Event()

    def note(event: Event) -> None:
        pids.append(event["pid"])
        ready.set()

    async with supervised() as children:
        await children.start("parent", HAS_A_CHILD, on_event=note)
        await ready.wait()
        assert alive(pids[0])
    await gone(pids[0])


async def test_events_are_the_json_objects_on_stdout() -> None:
    seen: list[Event] = []
    done = anyio.Event()
    code = "print('noise'); print('[1]'); print('{\"n\": 1}'); print('{\"n\": 2}', flush=True); input()"

    def note(event: Event) -> None:
        seen.append(event)
        if event["n"] == 2:
            done.set()

    async with supervised() as children:
        await children.start("speaker", python(code), on_event=note)
        await done.wait()
    assert seen == [{"n": 1}, {"n": 2}]


async def test_stderr_is_shown_line_by_line_whatever_its_bytes() -> None:
    shown: list[str] = []
    code = "import os; os.write(2, b'one\\n\\xff\\n' + b'x' * 200_000 + b'\\nlast')"
    with pytest.raises(ChildEnded):
        await run_one("speaker", code, lambda name, line: shown.append(line))
    assert shown[:2] == ["one", "�"]
    assert shown[-1] == "last"
    assert set(shown[2]) == {"x"}


CHILD = """
import os, signal, sys, time
from cli import lifeline

lifeline.GRACE = 0.3
lifeline.hold(os.environ)
if sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("{}", flush=True)
time.sleep(60)
"""

PARENT = f"""
import anyio, sys
from cli.processes import supervised

async def main():
    async with supervised() as children:
        for arguments in ((), ("stubborn",)):
            ready = anyio.Event()
            command = (sys.executable, "-c", {CHILD!r}, *arguments)
            child = await children.start("child", command, on_event=lambda _: ready.set())
            await ready.wait()
            print(child.pid, end=" ", flush=True)
        print(flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
def parent() -> Iterator["subprocess.Popen[str]"]:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=root, start_new_session=True
    ) as process:
        yield process
        process.kill()


async def test_children_end_when_their_parent_is_killed(parent: "subprocess.Popen[str]") -> None:
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    for pid in pids:
        await gone(pid)
