"""How many threads a peer computes with on its CPU, and how they wait for each other.

To be settled before torch is imported, which reads the environment once.
"""

import os
from pathlib import Path

_SPINS = "100000"
"""Turns of a thread that waits for its team before it sleeps, about 2 ms. OpenMP's own 300,000 keep a core from the
machine's other peers for longer after each frame. With a fifth of it a team sleeps and wakes in every operation once
other programs want the cores: a thread that is woken waits there until another one's slice of 2 to 3 ms is over."""

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def settle_waiting() -> None:
    """Let threads that wait give up their core soon, but not at once; what the environment says already stands."""
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def usable(cores: int) -> int:
    """How many of `cores` threads can run at once: a container may be granted less time than it sees cores.

    Peers that share a machine each use all of them, by turns (`peer.turns`).
    """
    quota = _quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota() -> float | None:
    """Cores' worth of time that the container is granted; None: no limit."""
    try:
        granted, period = _CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)
