"""How soon a room is back at rest after clients vanish."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from bench.measure import JsonFile, Quick, Report, Rounds
from cli.embedded import embedded_model
from tests.cluster import Cluster
from tests.e2e.rpc import Caller
from tests.e2e.test_leaving import LONG, vanish

PATIENCE = 30.0


def at_rest(caller: Caller) -> float:
    """Seconds until the room holds nothing any more, as its watchers are told (twice a second)."""
    began = time.perf_counter()
    while True:
        state = caller.state()
        took = time.perf_counter() - began
        if (state.running, state.waiting, state.pages_free) == (0, 0, state.pages) or took > PATIENCE:
            return took
        time.sleep(0.02)


def main(
    clients: Annotated[int, typer.Option(min=1, metavar="N")] = 20,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Cut clients' connections while their requests wait, are read or are answered, on two peers.

    The time counts from the last cut until no request, no waiting one and no page is held any more.
    """
    report = Report(f"{clients} clients vanish")
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(embedded_model(), Path(folder), host=["--max-running", "4"], serve=["--max-queue", "64"]) as cluster,
        Caller(cluster.client_invite) as caller,
    ):
        times = []
        for _ in range(1 if quick else rounds):
            with ThreadPoolExecutor(clients) as pool:
                for number in range(clients):
                    question = LONG if number % 2 else "Tell me a story."
                    after = 0.1 * (number % 10) + 0.05
                    pool.submit(vanish, cluster.base_url, question, stream=number % 3 > 0, after=after)
            times.append(at_rest(caller))
    report.add("until the room is at rest", "ours", "s", times)
    report.notes.append(f"worst: {max(times):.2f} s")
    report.show()
    report.save(json)
