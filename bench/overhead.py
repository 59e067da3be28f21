"""What room and bridge spend on a token, with a peer that sleeps in place of computing."""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated

import psutil
import typer

from bench.asking import Server
from bench.chains import lend
from bench.measure import JsonFile, Quick, Report, Rounds, in_turn
from bench.workloads import stories
from cli.embedded import embedded_model
from tests.cluster import Cluster

STEP = 0.020
"""Seconds that a frame takes, however many rows it has: so all streams travel in one."""

WARM_UP = 12
"""Tokens."""


def main(
    streams: Annotated[str, typer.Option(metavar="N,N,...", help="How many at once.")] = "1,16",
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Of each answer.")] = 96,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask for streamed answers of a room whose peer sleeps 20 ms a frame, and count processor time, not seconds."""
    counts = [int(each) for each in streams.split(",")]
    tokens, salts = 8 if quick else tokens, count(1)
    report = Report(f"Processor time for a token, {tokens}-token answers, a peer that sleeps", compared=False)
    with opened() as cluster:
        server = Server(cluster.base_url)
        processes = {each.name: psutil.Process(each.pid) for each in (cluster.room, cluster.bridge)}

        def spent(streams: int, number: int) -> dict[str, float]:
            before = {name: _seconds(each) for name, each in processes.items()}
            answers = server.ask(*stories(streams, next(salts)), tokens=tokens).answers
            written = sum(answer.tokens for answer in answers)
            return {name: (_seconds(each) - before[name]) * 1e3 / written for name, each in processes.items()}

        for streams_at_once in counts:
            server.ask(*stories(streams_at_once, next(salts)), tokens=WARM_UP)
        contenders: dict[str, Callable[[int], dict[str, float]]] = {str(each): partial(spent, each) for each in counts}
        for name, found in in_turn(contenders, 1 if quick else rounds).items():
            for process in processes:
                report.add(f"{name} streams", process, "ms", [each[process] for each in found])
    report.show()
    report.save(json)


@contextmanager
def opened() -> Iterator[Cluster]:
    """A room that serves the embedded model's tokens, drawn at random by a peer that computes nothing, and a bridge."""
    host = ["--devices", "1", "--speculate", "off"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(embedded_model(), Path(folder), peers=0, host=host, serve=["--max-queue", "64"]) as cluster,
    ):
        start = multiprocessing.get_context("spawn").Process
        peer = start(target=lend, args=(cluster.invite, "sleeper", STEP, 0.0), daemon=True)
        peer.start()
        try:
            cluster.wait_ready()
            yield cluster
        finally:
            peer.terminate()
            peer.join(10)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
