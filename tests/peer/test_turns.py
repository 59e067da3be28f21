import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peer import turns
from peer.turns import Turns

HOLDER = """
import sys
from pathlib import Path
from peer.turns import Turns

with Turns(Path(sys.argv[1])).turn():
    print("its turn", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(file: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process whose turn it is until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "its turn\n"
        try:
            yield process
        finally:
            process.kill()


def test_one_computes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 60.0)
    file, counted, inside, together = tmp_path / "turns", [0], [0], [0]

    def count() -> None:
        mine = Turns(file)
        for _ in range(10):
            with mine.turn():
                inside[0] += 1
                time.sleep(0.001)
                together[0] = max(together[0], inside[0])
                counted[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counted[0], together[0]) == (40, 1)


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_a_turn_passes_on_when_it_is_over_and_when_its_process_dies(end: signal.Signals | None, tmp_path: Path) -> None:
    file = tmp_path / "turns"
    mine = Turns(file)
    with another(file) as process:
        if end is None:
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(end)
        process.wait(60)
        assert turns._locked(lock_of(mine))


def test_a_process_that_is_stopped_in_its_turn_holds_up_one_frame_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = [100.0], [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept[0] += seconds

    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns.time, "sleep", sleep)
    file = tmp_path / "turns"
    mine = Turns(file)
    with another(file) as process:
        process.send_signal(signal.SIGSTOP)
        for _ in range(10):
            with mine.turn():
                now[0] += 0.1
        assert slept[0] == pytest.approx(turns._PATIENCE, abs=2 * turns._LOOK)
        now[0] += turns._ALONE
        with mine.turn():
            pass
        assert slept[0] == pytest.approx(2 * turns._PATIENCE, abs=4 * turns._LOOK)
    with mine.turn():
        assert not turns._locked(lock_of(Turns(file)))


def test_peers_that_have_room_beside_each_other_take_no_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path))
    for threads, cores, wanted in ((1, 2, False), (2, 2, True), (4, 8, False), (5, 8, True), (1, 1, True)):
        made = Turns.among(threads, cores)
        assert (made._lock is not None) is wanted, (threads, cores)
    with made.turn():
        assert not turns._locked(lock_of(Turns.among(2, 2))), "all of them take turns with each other"


def test_where_no_file_can_be_everybody_computes_at_once(tmp_path: Path) -> None:
    trap = tmp_path / "link"
    trap.symlink_to(tmp_path / "elsewhere")
    for file in (tmp_path / "missing" / "turns", trap):
        with Turns(file).turn():
            pass
    assert os.listdir(tmp_path) == ["link"]


def lock_of(one: Turns) -> int:
    assert one._lock is not None
    return one._lock
