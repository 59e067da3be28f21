"""Machines of their own on one machine: network namespaces, with wires between them."""

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Net:
    """One namespace."""

    name: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with that is to run in it."""
        return ("ip", "netns", "exec", self.name)

    def enter(self) -> None:
        """Take the thread that calls this into it: what sockets it makes from now on are there."""
        with open(f"/run/netns/{self.name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")


@dataclass(frozen=True)
class Triangle:
    """A room's namespace, to which those of two peers have a wire each, and a wire between the two, cut at first."""

    room: Net
    peers: tuple[Net, Net]

    def room_at(self, peer: int) -> str:
        """The room's address as that peer knows it."""
        return f"10.213.{peer}.1"

    def wire(self, *, whole: bool) -> None:
        """Join or cut the wire between the peers. What is on its way in a cut one is lost without a word."""
        run(*self.peers[0].prefix, "ip", "link", "set", "direct", "up" if whole else "down")

    def between(self) -> int:
        """Bytes that the wire between the peers has carried."""
        told = json.loads(run(*self.peers[0].prefix, "ip", "-json", "-statistics", "link", "show", "direct"))
        return sum(told[0]["stats64"][way]["bytes"] for way in ("tx", "rx"))


@contextmanager
def triangle() -> Iterator[Triangle]:
    """Skips where namespaces are not to be had."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2, from 'apt-get install iproute2' say")
    nets = [Net(f"pooled{os.getpid()}{part}") for part in ("room", "a", "b")]
    with ExitStack() as stack:
        for net in nets:
            made = subprocess.run(("ip", "netns", "add", net.name), capture_output=True, text=True)
            if made.returncode != 0:
                pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
            stack.callback(run, "ip", "netns", "del", net.name)
            run(*net.prefix, "ip", "link", "set", "lo", "up")
        room, first, second = nets
        for number, peer in enumerate((first, second)):
            _wire((room, f"peer{number}", f"10.213.{number}.1"), (peer, "room", f"10.213.{number}.2"))
        _wire((first, "direct", "10.213.9.1"), (second, "direct", "10.213.9.2"))
        made_up = Triangle(room, (first, second))
        made_up.wire(whole=False)
        yield made_up


def _wire(*ends: tuple[Net, str, str]) -> None:
    (near, device, _), (far, other, _) = ends
    run("ip", "link", "add", device, "netns", near.name, "type", "veth", "peer", "name", other, "netns", far.name)
    for net, name, address in ends:
        run(*net.prefix, "ip", "address", "add", f"{address}/24", "dev", name)
        run(*net.prefix, "ip", "link", "set", name, "up")


def run(*command: str) -> str:
    """What the command says."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
