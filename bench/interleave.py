"""What running answers lose while a long prompt is read beside them."""

import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.measure import Goal, JsonFile, Quick, Report, Rounds
from bench.workloads import renaming
from cli.embedded import embedded_model
from tests.cluster import Cluster
from tests.e2e.rpc import Caller

ALONE = 6.0
"""Seconds of the answers' pace without the prompt."""

LONG = 1500
"""Tokens an answer may have: more than there is time for."""


@dataclass(frozen=True)
class Run:
    alone: float
    """Tokens a second of all answers together."""
    beside: float
    """The same while the prompt is read."""
    reading: float
    """Seconds until the prompt's first token."""


def main(
    streams: Annotated[int, typer.Option(min=1, metavar="N", help="Answers that run.")] = 4,
    prompt: Annotated[int, typer.Option(min=100, metavar="N", help="About so many tokens of prompt.")] = 4000,
    peers: Annotated[int, typer.Option(min=1, metavar="N")] = 2,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Let answers run, and ask with a long prompt beside them: how much of their pace do they keep?"""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(embedded_model(), Path(folder), peers=peers, join=["--dtype", "float32"]) as cluster,
        Caller(cluster.client_invite) as caller,
    ):
        length = 400 if quick else prompt
        runs = [measured(caller, streams, length, number) for number in range(1 if quick else rounds)]
    report = Report(f"{streams} answers beside a prompt of about {length} tokens; {peers} peers, float32")
    alone = report.add("pace alone", "ours", "tok/s", [run.alone for run in runs])
    beside = report.add("pace beside the prompt", "ours", "tok/s", [run.beside for run in runs])
    report.add("reading the prompt", "ours", "s", [run.reading for run in runs])
    report.goals.append(Goal("pace beside over alone", beside.over(alone), 0.5))
    report.show()
    report.save(json)


def measured(caller: Caller, streams: int, prompt: int, number: int) -> Run:
    """One round. An answer that ends is asked for anew, so that as many run at any time."""
    heard: list[float] = []
    ending = threading.Event()

    def run(which: int) -> None:
        question = f"Write a very long story about the number {number * 100 + which}."
        while not ending.is_set():
            for event in caller.generate(question, LONG, temperature=1.0, seed=which, logprobs=True):
                heard.extend([time.perf_counter()] * len(event.text.tokens))
                if ending.is_set():
                    return

    with ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(run, which) for which in range(streams)]
        while len(heard) < 8 * streams:
            time.sleep(0.1)
        begun = time.perf_counter()
        time.sleep(ALONE)
        asked = time.perf_counter()
        next(event for event in caller.generate(_long(prompt, number), 1, temperature=0.0) if event.HasField("text"))
        answered = time.perf_counter()
        ending.set()
        for each in running:
            each.result()
    return Run(
        sum(begun <= at < asked for at in heard) / (asked - begun),
        sum(asked <= at < answered for at in heard) / (answered - asked),
        answered - asked,
    )


def _long(tokens: int, salt: int) -> str:
    """A text of about so many tokens, which no earlier round began with."""
    chance = random.Random(salt)
    pieces: list[str] = []
    while len(" ".join(pieces)) < 3.3 * tokens:
        pieces.append(str(renaming(chance.randrange(10**6))[0]["content"]))
    return " ".join(pieces)[: int(3.3 * tokens)]
