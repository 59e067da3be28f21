"""A peer's stable id: the same after a restart, different for two peers that run side by side on one machine."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

import psutil
from filelock import FileLock, Timeout

_RUNNING = ".running"
"""Ending of the files that tell which process goes by an id."""


@contextmanager
def claim_id(name: str, folder: Path | None = None) -> Iterator[str]:
    """The id kept under `name`, for as long as this process runs.

    While another process holds it, `name-2`, `name-3`, ... are tried: a second peer of one name is a peer of its own.
    """
    folder = folder or _folder()
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        kept = folder / quote(name if number == 1 else f"{name}-{number}", safe="")
        lock = FileLock(f"{kept}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            number += 1
            continue
        break
    running = Path(f"{kept}{_RUNNING}")
    try:
        if not kept.exists():
            kept.write_text(secrets.token_hex(8))
        process = psutil.Process()
        running.write_text(json.dumps([process.pid, process.create_time()]))
        yield kept.read_text()
    finally:
        running.unlink(missing_ok=True)
        lock.release()


def running_peers(folder: Path | None = None) -> dict[str, psutil.Process]:
    """The peers of this user that run on this machine, by name."""
    found = {}
    for file in sorted((folder or _folder()).glob(f"*{_RUNNING}")):
        # Gone or cut off: that peer is ending or starting. Another process of that id: it was killed.
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            pid, created = json.loads(file.read_text())
            process = psutil.Process(pid)
            if process.create_time() == created:
                found[unquote(file.name.removesuffix(_RUNNING))] = process
    return found


def ask_to_leave(process: psutil.Process) -> None:
    """Have a peer hand over and end. One that has ended already is fine."""
    with suppress(psutil.NoSuchProcess):
        process.terminate()


def wait_ended(name: str, within: float, folder: Path | None = None) -> bool:
    """Whether the peer of that name has ended, in `within` seconds at most. It holds its lock until then."""
    try:
        with FileLock(f"{(folder or _folder()) / quote(name, safe='')}.lock", timeout=within):
            return True
    except Timeout:
        return False


def _folder() -> Path:
    return Path.home() / ".cache" / "pooled" / "peers"
