"""A peer's identity: the same after a restart, different for two peers that run side by side on one machine."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock, Timeout

from peer.errors import UnusableKey
from protos.certificate import Certificate
from protos.identity import peer_id_of, to_sign

_KEY = ".key"
"""Ending of the files that hold private keys."""

REST, SERVE = signal.SIGUSR1, signal.SIGUSR2
"""What tells a running peer to serve nothing, and to serve again."""

_RUNNING = ".running"
"""Ending of the files that tell which process goes by an id."""


@dataclass(frozen=True)
class RunningPeer:
    """One of this user's on this machine."""

    process: psutil.Process
    room: str
    """The code of the room that it joined, or tries to."""


@dataclass(frozen=True)
class Identity:
    """A key that proves who this peer is, and a certificate for the peers before it."""

    key: Ed25519PrivateKey = field(repr=False)
    certificate: Certificate = field(default_factory=Certificate.made, repr=False)

    @classmethod
    def made(cls) -> "Identity":
        """A fresh one, kept nowhere."""
        return cls(Ed25519PrivateKey.generate())

    @cached_property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    @property
    def id(self) -> str:
        """The peer's stable id."""
        return peer_id_of(self.public_key)

    def sign(self, nonce: bytes, room_fingerprint: str | None) -> bytes:
        """What the room of that certificate asks of whoever goes by this id."""
        return self.key.sign(to_sign(nonce, room_fingerprint, self.certificate.der))


@contextmanager
def claim(name: str, room: str, folder: Path | None = None) -> Iterator[Identity]:
    """The identity kept under `name`, for as long as this process runs in the room of that code. Raises UnusableKey.

    While another process holds it, `name-2`, `name-3`, ... are tried: a second peer of one name is a peer of its own.
    """
    folder = folder or _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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
        identity = Identity(_kept_key(Path(f"{kept}{_KEY}")))
        process = psutil.Process()
        running.write_text(json.dumps([process.pid, process.create_time(), room]))
        yield identity
    finally:
        running.unlink(missing_ok=True)
        lock.release()


def _kept_key(file: Path) -> Ed25519PrivateKey:
    """The private key in `file`, which is made if there is none. Only its owner can read it."""
    if not file.exists():
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(Ed25519PrivateKey.generate().private_bytes_raw())
    try:
        return Ed25519PrivateKey.from_private_bytes(file.read_bytes())
    except ValueError as error:
        raise UnusableKey(f"{file} does not hold a peer's key; remove it, and this peer gets a new id") from error


def running_peers(folder: Path | None = None) -> dict[str, RunningPeer]:
    """The peers of this user that run on this machine, by name."""
    found = {}
    for file in sorted((folder or _folder()).glob(f"*{_RUNNING}")):
        # Gone or cut off: that peer is ending or starting. Another process of that id: it was killed.
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            pid, created, room = json.loads(file.read_text())
            process = psutil.Process(pid)
            if process.create_time() == created:
                found[unquote(file.name.removesuffix(_RUNNING))] = RunningPeer(process, room)
    return found


def ask_to_rest(peer: RunningPeer, resting: bool) -> None:
    """Have a peer serve nothing, or serve again. One that has ended already is fine."""
    with suppress(psutil.NoSuchProcess):
        peer.process.send_signal(REST if resting else SERVE)


def ask_to_leave(peer: RunningPeer) -> None:
    """Have a peer hand over and end. One that has ended already is fine."""
    with suppress(psutil.NoSuchProcess):
        peer.process.terminate()


def wait_ended(name: str, within: float, folder: Path | None = None) -> bool:
    """Whether the peer of that name has ended, in `within` seconds at most. It holds its lock until then."""
    try:
        with FileLock(f"{(folder or _folder()) / quote(name, safe='')}.lock", timeout=within):
            return True
    except Timeout:
        return False


def _folder() -> Path:
    return Path.home() / ".cache" / "pooled" / "peers"
