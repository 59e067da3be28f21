"""Machines of their own on one machine: network namespaces, with wires between them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

SLOW = "50mbit"
"""What the wires to the middle carry: the one between the peers carries more."""


@dataclass(frozen=True)
class Net:
    """One namespace."""

    name: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with that is to run in it."""
        return ("ip", "netns", "exec", self.name)


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
            _slow(room, f"peer{number}")
            _slow(peer, "room")
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


def _slow(net: Net, device: str) -> None:
    shaped = ("rate", SLOW, "burst", "32kbit", "latency", "100ms")
    run(*net.prefix, "tc", "qdisc", "add", "dev", device, "root", "tbf", *shaped)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
