"""What a room takes over from the one before it: its invites, its peers' places and its latest deals, in files."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protos.certificate import Certificate
from room.deal import Slice
from room.errors import CannotSave, StartError
from room.invites import Invitation, Side

_FILE, _LOCK = "room.json", "lock"
_CERTIFICATE, _INVITES = "certificate.json", "invites.json"


@dataclass(frozen=True)
class KeptPlace:
    """A peer's place, by its id."""

    peer: str
    name: str
    rank: int
    paused: bool
    removed: bool


@dataclass(frozen=True)
class Kept:
    code: str
    model: str
    """The deals are of this one: a room of another model deals anew."""
    places: tuple[KeptPlace, ...] = ()
    deals: tuple[tuple[Slice, ...], ...] = ()
    """Of each chain."""


class Store:
    """A directory that belongs to one room. Its files hold keys, so only their owner can read them."""

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> "Iterator[Store]":
        """The directory's, which is made, and which no other room has as long as the block runs. Raises StartError."""
        file = folder / _LOCK
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise CannotSave(file, error.strerror) from error
        with open(number, "r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StartError(
                    f"{folder} is the state of a room that is running (process {lock.read() or 'unknown'}); stop that "
                    "one first, or open this one with another --state"
                ) from error
            lock.truncate(0)
            print(os.getpid(), end="", file=lock, flush=True)
            yield cls(folder)

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._certificate, self._invites = folder / _CERTIFICATE, folder / _INVITES

    def certificate(self) -> Certificate:
        """The room's own, made at its first start. Raises StartError."""
        try:
            return Certificate(**json.loads(self._certificate.read_text()))
        except FileNotFoundError:
            made = Certificate.made()
            _write(self._certificate, asdict(made))
            return made
        except OSError as error:
            raise StartError(f"cannot read the room's certificate in {self._certificate}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise StartError(f"{self._certificate} is no certificate; move it away for a new one") from error

    def load(self) -> Kept | None:
        """What was saved last; None where there is nothing yet. Raises StartError."""
        try:
            found = json.loads(self._file.read_text())
            return Kept(
                code=found["code"],
                model=found["model"],
                places=tuple(KeptPlace(**place) for place in found["places"]),
                deals=tuple(tuple(Slice(**part) for part in deal) for deal in found["deals"]),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StartError(f"cannot read the room's state in {self._file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StartError(
                f"{self._file} is not the state of a room of this version; move it away to open a new room"
            ) from error

    def save(self, kept: Kept) -> None:
        """Replace what is saved, whole or not at all. Raises CannotSave."""
        _write(self._file, asdict(kept))

    def load_invites(self) -> list[Invitation]:
        """What was saved last. Raises StartError."""
        try:
            found = json.loads(self._invites.read_text())["invites"]
            return [Invitation(**{**each, "side": Side(each["side"])}) for each in found]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StartError(f"cannot read the room's invites in {self._invites}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StartError(f"{self._invites} holds no invites; move it away to make new ones") from error

    def save_invites(self, invites: list[dict[str, Any]]) -> None:
        """Replace what is saved, whole or not at all. Raises CannotSave."""
        _write(self._invites, {"invites": invites})


def _write(file: Path, content: dict[str, Any]) -> None:
    new = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
    except OSError as error:
        raise CannotSave(file, error.strerror) from error
