"""What it costs to hold an answer to a schema: the time of a mask, and a constrained stream beside a free one."""

import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from bench.asking import Server
from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn
from bench.workloads import stories
from cli.embedded import embedded_model
from tests.cluster import Cluster

TEXT = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 40}, "story": {"type": "string", "minLength": 2000}},
    "required": ["title", "story"],
}
"""Mostly text: as many tokens have to be sampled as without it."""

PEOPLE = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "born": {"type": "string", "format": "date"},
                    "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
                    "role": {"enum": ["admin", "editor", "reader"]},
                },
                "required": ["name", "age", "born", "email", "role"],
            },
        }
    },
    "required": ["people"],
}
WRITTEN = json.dumps(
    {
        "people": [
            {"name": f"Zoë of the {n} hills", "age": 31 + n, "born": "1993-02-28", "email": mail, "role": "editor"}
            for n, mail in enumerate(["zoe@hills.example", None, "z.o.e+list@mail.hills.example"])
        ]
    },
    ensure_ascii=False,
)


def main(
    streams: Annotated[str, typer.Option(metavar="N,N,...", help="How many at once.")] = "1,8",
    rounds: Rounds = 5,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Time masks at the embedded model's vocabulary, then constrained streams beside free ones, on two peers."""
    counts = [1] if quick else [int(count) for count in streams.split(",")]
    report = Report("answers held to a schema")
    times = sorted(1e3 * each for _ in range(1 if quick else 20) for each in mask_times())
    median = report.add("mask", "ours", "ms", times).median
    report.notes.append(f"masks: 95% within {times[int(0.95 * len(times))]:.3f} ms, slowest {times[-1]:.3f} ms")
    report.goals.append(Goal("median time of a mask, ms", median, 1.0, at_most=True))
    for count, (held, free) in compared(counts, 1 if quick else rounds).items():
        what = f"{count} streams"
        mine = report.add(what, "held to a schema", "tok/s", [each.tokens_per_second for each in held])
        theirs = report.add(what, "free", "tok/s", [each.tokens_per_second for each in free])
        report.goals.append(Goal(f"speed of {what} held to a schema, of free ones", mine.over(theirs), 0.85))
        what = f"CPU time of room, peers and bridge, {count} streams"
        mine = report.add(what, "held to a schema", "ms/token", [each.cpu_per_token for each in held])
        theirs = report.add(what, "free", "ms/token", [each.cpu_per_token for each in free])
        report.goals.append(Goal(f"{what}: free ones over those held", 1 / mine.over(theirs), 0.85))
    report.show()
    report.save(json_file)


def mask_times() -> Iterator[float]:
    """CPU seconds of each mask on the way through a text, which this thread alone computes."""
    from room.app import cache_dir
    from room.model import inspect
    from room.text.grammar import Grammars
    from room.text.schema import strict
    from room.text.tokenizer import TextModel
    from room.text.tools.base import json_of

    text = TextModel.load(inspect(str(embedded_model()), None, cache_dir()).text_dir)
    matcher = Grammars(text).compile_now(f"start: {json_of(strict(PEOPLE, 'schema'))}").matcher()
    for token in text.encode(WRITTEN):
        began = time.thread_time()
        matcher.mask()
        yield time.thread_time() - began
        assert matcher.accept(token)


@dataclass(frozen=True)
class Measured:
    """One round. On a machine that others use too the processor time says more than the clock."""

    tokens_per_second: float
    cpu_per_token: float
    """Milliseconds of all processes of the room."""


def compared(counts: list[int], rounds: int) -> dict[int, tuple[list[Measured], list[Measured]]]:
    """For each number of streams the rounds held to a schema and the free ones, in turn."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(embedded_model(), Path(folder), serve=["--max-queue", "64"], join=["--dtype", "float32"]) as cluster,
    ):
        processes = [psutil.Process(process.popen.pid) for process in cluster.processes]
        free = Server(cluster.base_url)
        schema: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "story", "schema": TEXT}}
        held = replace(free, extra={"response_format": schema})
        for server in (held, free):
            server.ask(*stories(1, 999), tokens=8)

        def answered(server: Server, count: int, number: int) -> Measured:
            before = _cpu(processes)
            together = server.ask(*stories(count, number))
            tokens = sum(answer.tokens for answer in together.answers)
            return Measured(together.tokens_per_second, 1e3 * (_cpu(processes) - before) / tokens)

        measured = {}
        for count in counts:
            given = in_turn({"held": partial(answered, held, count), "free": partial(answered, free, count)}, rounds)
            measured[count] = (given["held"], given["free"])
    return measured


def _cpu(processes: Iterable[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))
