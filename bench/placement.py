"""How long the search for the quickest deal takes, and that for who makes which chain."""

import time
from random import Random
from typing import Annotated

import typer

from bench.measure import JsonFile, Quick, Report, Rounds
from room.deal import Offer
from room.division import divided
from room.forms import Forms
from room.placement import fastest
from tests.room.fakes import shape

TOKENS = 16


def main(
    peers: Annotated[int, typer.Option(min=1, metavar="N")] = 8,
    layers: Annotated[int, typer.Option(min=1, metavar="N")] = 80,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Search pools whose peers each can hold from a little more than their part of the model to half of it.

    Seconds of processor time.
    """
    model, random = shape(layers), Random(1)
    times: dict[str, list[float]] = {"one chain": [], "several chains": []}
    part = Forms().weight_bytes(model, 0, layers, 4) / 0.9 / peers
    for _ in range(2 if quick else 4 * rounds):
        memory = [int(part * random.uniform(1.2, peers / 2)) for _ in range(peers)]
        offers = [
            Offer(f"p{at}", lent, 4, Forms(), random.uniform(1e-4, 1e-3), random.uniform(0, 1e-2))
            for at, lent in enumerate(memory)
        ]
        for what, search in (("one chain", fastest), ("several chains", divided)):
            began = time.process_time()
            search(model, offers, tokens=TOKENS, slots=0)
            times[what].append(time.process_time() - began)
    report = Report(f"the quickest deal of {layers} layers to {peers} peers")
    for what, took in times.items():
        report.add(what, "ours", "s", took)
        report.notes.append(f"{what}: {max(took):.2f} s at worst")
    report.show()
    report.save(json)
