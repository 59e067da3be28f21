"""Where the time of ours goes: what each stage computes and waits, what is left for links and Python, who uses CPU.

The room logs each frame at -vv: when it came back, and what every stage spent on it. All peers here share the
machine, so a stage also waits for the processor; that shows as computing that takes longer than its CPU time.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.asking import Together
from bench.measure import Report
from tests.cluster import Cluster


@dataclass(frozen=True)
class Frame:
    """One decode frame that had the chain to itself. Times in milliseconds."""

    sessions: int
    rows: int
    took: float
    waited: tuple[float, ...]
    """In front of each stage."""
    computed: tuple[float, ...]

    @property
    def rest(self) -> float:
        """Links, gRPC, and the event loops of room and peers."""
        return self.took - sum(self.waited) - sum(self.computed)


class Profiler:
    """Watches one room. `take` is to be called after each measurement; `tell` puts the medians into a report."""

    def __init__(self, cluster: Cluster) -> None:
        self._log: Path = cluster.room.err
        self._processes = {each.name: psutil.Process(each.pid) for each in (*cluster.processes,)}
        self._processes["asking and links"] = psutil.Process()
        self._frames: dict[str, list[Frame]] = defaultdict(list)
        self._cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._per_token: dict[str, list[float]] = defaultdict(list)
        self._read, self._used = self._log.stat().st_size, self._seconds()

    def skip(self) -> None:
        """What happened until now is nobody's."""
        self._read, self._used = self._log.stat().st_size, self._seconds()

    def take(self, what: str, together: Together) -> None:
        """What happened since the last call belongs to the measurement `what`."""
        before, read = self._used, self._read
        self.skip()
        with self._log.open("rb") as log:
            log.seek(read)
            self._frames[what] += frames(log.read().decode(errors="replace"))
        tokens = sum(answer.tokens for answer in together.answers)
        for name, seconds in self._used.items():
            self._cpu[what, name].append((seconds - before[name]) * 1e3 / tokens)
        self._per_token[what] += [answer.per_token * 1e3 for answer in together.answers]

    def tell(self, report: Report, who: str) -> None:
        for what, seen in self._frames.items():
            report.add(f"{what}: from token to token", who, "ms", [statistics.median(self._per_token[what])])
            if seen:
                self._tell_frames(report, f"{what}, a decode frame", who, seen)
            for name in self._processes:
                report.add(f"{what}, CPU a token: {name}", who, "ms", self._cpu[what, name])

    @staticmethod
    def _tell_frames(report: Report, what: str, who: str, seen: list[Frame]) -> None:
        report.add(f"{what}: sessions", who, "", [statistics.median(frame.sessions for frame in seen)])
        report.add(f"{what}: there and back", who, "ms", [statistics.median(frame.took for frame in seen)])
        for at in range(len(seen[0].computed)):
            computed, waited = (frame.computed[at] for frame in seen), (frame.waited[at] for frame in seen)
            report.add(f"{what}: stage {at + 1} computes", who, "ms", [statistics.median(computed)])
            report.add(f"{what}: waits before stage {at + 1}", who, "ms", [statistics.median(waited)])
        report.add(f"{what}: links and Python", who, "ms", [statistics.median(frame.rest for frame in seen)])

    def _seconds(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: each.user + each.system for name, each in times.items()}


def frames(log: str) -> Iterator[Frame]:
    """The decode frames in a piece of a room's JSON log, but those that had prefill beside them or failed."""
    for line in log.splitlines():
        if '"message": "frame"' not in line:
            continue
        entry = json.loads(line)
        if entry["lane"] == "LANE_DECODE" and entry["stages_us"] and not entry["beside"]:
            waited, computed = zip(*entry["stages_us"], strict=True)
            yield Frame(
                sessions=entry["sessions"],
                rows=entry["rows"],
                took=entry["took_us"] / 1e3,
                waited=tuple(each / 1e3 for each in waited),
                computed=tuple(each / 1e3 for each in computed),
            )
