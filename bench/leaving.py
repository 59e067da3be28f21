"""How soon a room is back at rest after clients vanish.

    python -m bench.leaving [--clients 20] [--rounds 5]

Clients cut their connections while their requests wait, are read or are answered; the time counts from the last cut
until no request, no waiting one and no page is held any more. The model is the embedded one, on two peers.
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(embedded_model(), Path(folder), host=["--max-running", "4"], serve=["--max-queue", "64"]) as cluster,
        Caller(cluster.invite) as caller,
    ):
        times = []
        for _ in range(asked.rounds):
            with ThreadPoolExecutor(asked.clients) as pool:
                for number in range(asked.clients):
                    question = LONG if number % 2 else "Tell me a story."
                    after = 0.1 * (number % 10) + 0.05
                    pool.submit(vanish, cluster.base_url, question, stream=number % 3 > 0, after=after)
            times.append(at_rest(caller))
    median, worst = statistics.median(times), max(times)
    print(f"{asked.clients} clients vanish: at rest after {median:.2f} s (median), {worst:.2f} s (worst)")


if __name__ == "__main__":
    main()
