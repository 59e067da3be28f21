"""What the host may do to a room: a key of its own, in a file that only the host can read.

While a room runs, `~/.local/state/pooled/rooms/CODE` (or the same below XDG_STATE_HOME) holds where it is and its host
key, and is locked. So a room that was killed leaves a file nobody has locked, which counts for nothing.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from protos import dial
from protos.invite import Invite


@dataclass(frozen=True)
class HostKey:
    """Opens `service Host` of one room on this machine."""

    invite: Invite
    """How this machine reaches the room."""
    key: str = field(repr=False)

    def credentials(self, version: str) -> dial.Metadata:
        """The metadata of a call to `service Host`."""
        return (*dial.credentials(self.invite, version), (dial.HOST_KEY, self.key))


@contextmanager
def kept(host_key: HostKey, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Let this machine's commands find the key as long as the block runs.

    Raises OSError when it cannot be written, or a room of this code is running already.
    """
    folder = _folder(environ)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / host_key.invite.code
    if any(each.invite.code == file.name for each in open_rooms(environ)):
        raise OSError(errno.EBUSY, "a room of this code is running already", str(file))
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        json.dump({"invite": str(host_key.invite), "key": host_key.key}, out)
        out.flush()
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def open_rooms(environ: Mapping[str, str] = os.environ) -> list[HostKey]:
    """The rooms that run on this machine for this user, by their codes."""
    found = []
    for file in sorted(_folder(environ).glob("*")):
        with open(file) as text:
            if _is_locked(text):
                told = json.load(text)
                found.append(HostKey(Invite.parse(told["invite"]), told["key"]))
    return found


def _folder(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pooled" / "rooms"


def _is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
