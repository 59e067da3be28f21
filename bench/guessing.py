"""What guessing ahead brings and costs: rooms side by side, one of which never guesses."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.asking import Messages, Together
from bench.measure import JsonFile, Quick, Report, Rounds, in_turn
from bench.servers import Running, Slow, ours
from bench.workloads import renaming, stories
from cli.embedded import embedded_model

COPIED = 128
"""Tokens of an answer that copies."""

WAYS = {"auto": ("--speculate", "auto"), "off": ("--speculate", "off")}
DRAFT = "with a draft model"


def main(
    rounds: Rounds = 5,
    delay: Annotated[float, typer.Option(metavar="MS", help="One way, of each link between room and peers.")] = 25.0,
    draft: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="A third room has this draft model, of the same tokens.")
    ] = None,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask rooms of two peers, links delayed, to rename a variable in a pasted file, and for plain stories."""
    ways = WAYS | ({DRAFT: ("--draft", str(draft))} if draft else {})
    rounds = 1 if quick else rounds
    copied = 16 if quick else COPIED
    report = Report(f"two peers, links {delay:g} ms one way, float32; --speculate auto against off")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rooms: dict[str, Running] = {}
        for way, host in ways.items():
            room = ours(embedded_model(), Path(folder) / way, peers=2, slow=Slow(), host=host)
            rooms[way] = stack.enter_context(room)
            rooms[way].slow_down(delay / 1e3, None)
            if way == DRAFT and (cluster := rooms[way].cluster):
                cluster.room.event("drafting")
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
            for way in ways.keys() - {"off"}:
                same = sum(one == other for one, other in zip(texts[way], texts["off"], strict=True))
                report.notes.append(f"{what}, {way}: {same} of {len(texts['off'])} answers are those without guesses")
    report.show()
    report.save(json)


def answer(running: Running, asked: Callable[[int], list[Messages]], tokens: int, number: int) -> Together:
    return running.ask(*asked(number), tokens=tokens)
