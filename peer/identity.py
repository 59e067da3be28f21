"""A peer's stable id: the same after a restart, different for two peers that run side by side on one machine."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout


@contextmanager
def claim_id(name: str, folder: Path | None = None) -> Iterator[str]:
    """The id kept under `name`, for as long as this process runs.

    While another process holds it, `name-2`, `name-3`, ... are tried: a second peer of one name is a peer of its own.
    """
    folder = folder or Path.home() / ".cache" / "pooled" / "peers"
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
    try:
        if not kept.exists():
            kept.write_text(secrets.token_hex(8))
        yield kept.read_text()
    finally:
        lock.release()
