"""What every benchmark shares: rounds in turn, medians and ratios of them, the machine, a table and a JSON file.

Absolute figures are those of one machine on one day, and a busy one drifts from minute to minute. So contenders are
measured in turn, round by round, and what counts is the median of the rounds' ratios.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, TypeVar

import psutil
import typer
from rich.console import Console
from rich.table import Table

from peer.threads import usable

T = TypeVar("T")

Rounds = Annotated[int, typer.Option(min=1, metavar="N", help="Rounds; what is told are their medians.")]
Quick = Annotated[bool, typer.Option("--quick", help="As little as shows that it works; the figures mean nothing.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures there too.")]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Figure:
    """One quantity of one contender, measured round by round."""

    what: str
    """Such as "16 streams, loopback"."""
    who: str
    """Such as "ours"."""
    unit: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def over(self, other: "Figure") -> float:
        """The median of the rounds' ratios: what disturbs a round disturbs both."""
        return statistics.median(mine / its for mine, its in zip(self.rounds, other.rounds, strict=True))


@dataclass(frozen=True)
class Goal:
    """A ratio that is asked for, and the one measured. `bound` is the least allowed, or with `at_most` the largest."""

    what: str
    measured: float
    bound: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{'reached' if self.reached else 'falls short'}: {self.measured:.2f} (asked {sign} {self.bound:g})"


@dataclass(frozen=True)
class Machine:
    """Where and with what a run was made."""

    cpu: str
    cores: int
    memory: int
    """Bytes."""
    gpu: str
    load: float
    """Processes that wanted a core when the run began, over the last minute."""
    system: str
    python: str
    packages: dict[str, str]
    commit: str
    at: str

    @classmethod
    def here(cls) -> "Machine":
        wanted = ("torch", "transformers", "grpcio", "numpy")
        return cls(
            cpu=_cpu(),
            cores=usable(os.cpu_count() or 1),
            memory=psutil.virtual_memory().total,
            gpu=_said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
            load=round(psutil.getloadavg()[0], 2),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            packages={name: found for name in wanted if (found := _version(name))},
            commit=_said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {found}" for name, found in self.packages.items())
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory / 1e9:.0f} GB, {self.gpu or 'no GPU'}; {self.system}, "
            f"Python {self.python}, {packages}; commit {self.commit or 'unknown'}, {self.at}, load {self.load}"
        )


@dataclass
class Report:
    """What one run found. `notes` are sentences that belong beside the figures."""

    title: str
    machine: Machine = field(default_factory=Machine.here)
    figures: list[Figure] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: bool = True
    """The table tells how the first contender stands to the others."""

    def add(self, what: str, who: str, unit: str, rounds: Iterable[float]) -> Figure:
        figure = Figure(what, who, unit, tuple(rounds))
        self.figures.append(figure)
        return figure

    def find(self, what: str, who: str) -> Figure | None:
        return next((figure for figure in self.figures if (figure.what, figure.who) == (what, who)), None)

    def show(self, console: Console | None = None) -> None:
        """Print one row for each quantity, a column for each contender, then the goals."""
        console = console or Console(width=None if os.isatty(1) else 160)
        console.print(f"[bold]{self.title}[/bold]\n{self.machine}", highlight=False)
        console.print(_figures_table(self.figures, self.compared))
        if self.goals:
            console.print(_goals_table(self.goals))
        for note in self.notes:
            console.print(note, highlight=False)

    def save(self, file: Path | None) -> None:
        """Write everything as JSON; do nothing without a file."""
        if file is None:
            return
        goals = [{**asdict(goal), "reached": goal.reached} for goal in self.goals]
        figures = [{**asdict(figure), "median": figure.median} for figure in self.figures]
        written = {"title": self.title, "machine": asdict(self.machine), "figures": figures, "goals": goals}
        file.write_text(json.dumps({**written, "notes": self.notes}, indent=1) + "\n")


def in_turn(contenders: Mapping[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """Let every contender run once a round, and return what each gave. The first of a round is the next one's last."""
    given: dict[str, list[T]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        at = number % len(names) if names else 0
        for name in (*names[at:], *names[:at]):
            given[name].append(contenders[name](number))
    return given


def _figures_table(figures: Sequence[Figure], compared: bool) -> Table:
    contenders = list(dict.fromkeys(figure.who for figure in figures))
    table = Table("", *contenders, title=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for what in dict.fromkeys(figure.what for figure in figures):
        found = {figure.who: figure for figure in figures if figure.what == what}
        table.add_row(
            what, *(_cell(found.get(who), found.get(contenders[0]) if compared else None) for who in contenders)
        )
    return table


def _cell(figure: Figure | None, first: Figure | None) -> str:
    """A median, and how much of it the first contender reaches."""
    if figure is None:
        return ""
    text = f"{figure.median:.{_digits(figure.median)}f} {figure.unit}"
    if first is None or first is figure or len(first.rounds) != len(figure.rounds) or not all(figure.rounds):
        return text
    return f"{text} ({first.over(figure):.2f}x)"


def _digits(value: float) -> int:
    return 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1


def _goals_table(goals: Sequence[Goal]) -> Table:
    table = Table("asked for", "measured")
    for goal in goals:
        table.add_row(goal.what, str(goal), style="" if goal.reached else "yellow")
    return table


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _said(*command: str) -> str:
    """The first line a command prints; '' where there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()


def progress(text: str) -> None:
    """Tell who watches a run how far it is."""
    typer.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)
