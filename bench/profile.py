"""Where the time of ours goes: what each stage computes and waits, what is left for links and Python, who uses CPU.

The room logs each frame at -vv: when it came back, and what every stage spent on it. All peers here share the
machine, so a stage also waits for the processor; that shows as computing that takes longer than its CPU time.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
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
        self._processes["asking"] = psutil.Process()
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

    def tell(self, report: Report) -> None:
        """Add a row for each measurement: medians in milliseconds."""
        for what, seen in self._frames.items():

            def add(column: str, values: Iterable[float], what: str = what) -> None:
                report.add(what, column, "", [statistics.median(values)])

            add("token to token", self._per_token[what])
            if seen:
                add("sessions in a frame", (frame.sessions for frame in seen))
                add("there and back", (frame.took for frame in seen))
                for at in range(len(seen[0].computed)):
                    add(f"before stage {at + 1}", (frame.waited[at] for frame in seen))
                    add(f"stage {at + 1}", (frame.computed[at] for frame in seen))
                add("links, Python", (frame.rest for frame in seen))
            for name in self._processes:
                add(f"CPU {name}", self._cpu[what, name])

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
