"""Peers on one machine compute one at a time.

Two of them at once, each with a thread for every core, take longer than one after the other, since each thread waits in
every operation for one of its team that is not running: on 2 cores 1.3 to 6 times as long.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("pooled.peer")

_PATIENCE = 0.5
"""Seconds that a frame waits for its turn at most. Whoever has it may be reading a long prompt, or be stopped."""
_ALONE = 2.0
"""Seconds for which frames do not wait after one did in vain."""
_LOOK = 0.0005
"""Seconds between two looks at whether it is free: a lock of files cannot be waited for with a limit."""


class Turns:
    """A lock that the peers of one user on a machine share; the system frees it when one dies.

    Without a file everybody computes at once.
    """

    def __init__(self, file: Path | None) -> None:
        self._lock: int | None = None
        self._wait_from = 0.0
        if file is None:
            return
        try:
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.info("peers on this machine do not take turns: %s", error)

    @classmethod
    def among(cls, threads: int, cores: int) -> "Turns":
        """For a peer with so many threads: none are needed where two such peers have room beside each other."""
        if 2 * threads <= cores or fcntl is None:
            return cls(None)
        return cls(Path(tempfile.gettempdir(), f"pooled-turns-{os.getuid()}"))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For the time of the block nobody else computes, unless it took too long to wait for that."""
        if self._lock is None or not self._taken(self._lock):
            yield
            return
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _taken(self, lock: int) -> bool:
        began = time.monotonic()
        until = began + _PATIENCE if began >= self._wait_from else began
        while not _locked(lock):
            if time.monotonic() >= until:
                if until > began:
                    self._wait_from = until + _ALONE
                return False
            time.sleep(_LOOK)
        return True


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
