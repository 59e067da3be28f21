"""What guessing ahead brings and costs: two rooms side by side, one of which never guesses."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.asking import Messages, Together
from bench.measure import JsonFile, Quick, Report, Rounds, in_turn
from bench.servers import Running, ours
from bench.workloads import renaming, stories
from cli.embedded import embedded_model

COPIED = 128
"""Tokens of an answer that copies."""

WAYS = ("auto", "off")


def main(
    rounds: Rounds = 5,
    delay: Annotated[float, typer.Option(metavar="MS", help="One way, of each link between room and peers.")] = 25.0,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask rooms of two peers, links delayed, to rename a variable in a pasted file, and for plain stories."""
    rounds = 1 if quick else rounds
    copied = 16 if quick else COPIED
    report = Report(f"two peers, links {delay:g} ms one way, float32; --speculate auto against off")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rooms: dict[str, Running] = {}
        for way in WAYS:
            host = ("--speculate", way)
            rooms[way] = stack.enter_context(ours(embedded_model(), Path(folder) / way, peers=2, slow=True, host=host))
            rooms[way].slow_down(delay / 1e3, None)
            rooms[way].ask(*stories(1, 99))
        workloads: dict[str, tuple[Callable[[int], list[Messages]], int]] = {
            "copying, 1 stream": (lambda number: [renaming(number)], copied),
            "plain, 1 stream": (lambda number: stories(1, number), 48),
            "plain, 16 streams": (lambda number: stories(4 if quick else 16, 10 + number), 48),
        }
        for what, (asked, tokens) in workloads.items():
            found = in_turn({way: partial(answer, running, asked, tokens) for way, running in rooms.items()}, rounds)
            for way, each in found.items():
                report.add(what, way, "tok/s", [one.tokens_per_second for one in each])
            texts = {way: [answer.text for one in each for answer in one.answers] for way, each in found.items()}
            same = sum(one == other for one, other in zip(texts["auto"], texts["off"], strict=True))
            report.notes.append(f"{what}: {same} of {len(texts['off'])} answers are the same with and without")
    report.show()
    report.save(json)


def answer(running: Running, asked: Callable[[int], list[Messages]], tokens: int, number: int) -> Together:
    return running.ask(*asked(number), tokens=tokens)
