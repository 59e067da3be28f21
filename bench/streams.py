"""How much faster a room is at many streams than at one."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.asking import Server, Together
from bench.measure import JsonFile, Quick, Report, Rounds, in_turn
from bench.workloads import stories
from cli.embedded import embedded_model
from tests.cluster import Cluster


def main(
    peers: Annotated[int, typer.Option(min=1, metavar="N")] = 2,
    streams: Annotated[str, typer.Option(metavar="N,N,...", help="How many at once.")] = "1,2,4,8,16,32",
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask a room of the embedded model (float32, processes of their own) for 1 to 32 streamed answers at once."""
    counts = [1, 4] if quick else [int(count) for count in streams.split(",")]
    report = Report(f"{peers} peers on one machine, float32, 48-token answers")
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(
            embedded_model(), Path(folder), peers=peers, serve=["--max-queue", "64"], join=["--dtype", "float32"]
        ) as cluster,
    ):
        server = Server(cluster.base_url)
        server.ask(*stories(max(counts), 999))

        def answered(count: int, number: int) -> Together:
            return server.ask(*stories(count, number))

        measured = in_turn(
            {str(count): partial(answered, count) for count in counts},
            1 if quick else rounds,
        )
    for count, each in measured.items():
        report.add(f"{count} streams", "ours", "tok/s", [one.tokens_per_second for one in each])
        report.add(f"{count} streams, slowest / quickest", "ours", "", [one.fairness for one in each])
    report.show()
    report.save(json)
