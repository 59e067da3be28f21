"""What the form in which hidden states travel is worth on a slow link, and that `auto` loses nothing on a fast one."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.asking import Messages, Server, Together, user
from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn
from bench.workloads import stories
from cli.embedded import embedded_model
from tests.cluster import Cluster
from tests.proxy import SlowLink

WORDS = 1960
"""Of the prompt; each is one token, and the template adds some."""

MBIT = 1e6 / 8


def main(
    rate: Annotated[float, typer.Option(metavar="MBIT", help="Of the link between the peers, per second.")] = 2.0,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask two peers with a slow link between them about a prompt of 2,000 tokens, once for each form of `--wire`."""
    words, rounds = (100, 1) if quick else (WORDS, rounds)
    report = Report(f"two peers, {rate:g} Mbit/s between them, float32, a prompt of {words + 40} tokens")
    with rooms(("bf16", "int8", "auto"), rate * MBIT) as servers:
        slow = in_turn({wire: partial(asked, server, words) for wire, server in servers.items()}, rounds)
    with rooms(("bf16", "auto"), None) as servers:
        fast = in_turn({wire: partial(asked, server, words) for wire, server in servers.items()}, rounds)
        streams = in_turn({wire: partial(together, server) for wire, server in servers.items()}, rounds)
    first = {
        wire: report.add(f"first token over {rate:g} Mbit/s", wire, "s", [each.answers[0].first for each in given])
        for wire, given in slow.items()
    }
    near = {
        wire: report.add("first token on loopback", wire, "s", [each.answers[0].first for each in given])
        for wire, given in fast.items()
    }
    paces = {
        wire: report.add("4 streams on loopback", wire, "tok/s", [each.tokens_per_second for each in given])
        for wire, given in streams.items()
    }
    report.goals += [
        Goal("first token, int8 over bf16", first["int8"].over(first["bf16"]), 0.65, at_most=True),
        Goal("first token on loopback, auto over bf16", near["auto"].over(near["bf16"]), 1.05, at_most=True),
        Goal("4 streams on loopback, auto over bf16", paces["auto"].over(paces["bf16"]), 0.95),
    ]
    report.show()
    report.save(json)


def asked(server: Server, words: int, number: int) -> Together:
    return server.ask(prompt(words, number), tokens=4)


def together(server: Server, number: int) -> Together:
    return server.ask(*stories(4, number))


def prompt(words: int, number: int) -> Messages:
    """A long one that shares no beginning with another's."""
    return user(
        f"{number} " + " ".join(("sun", "sea", "dog", "tree")[at % 4] for at in range(words)) + " What is this?"
    )


@contextmanager
def rooms(wires: tuple[str, ...], rate: float | None) -> Iterator[dict[str, Server]]:
    """A room for each form, all there at once; they are asked in turn."""
    with ExitStack() as stack:
        yield {wire: stack.enter_context(room(wire, rate)) for wire in wires}


@contextmanager
def room(wire: str, rate: float | None) -> Iterator[Server]:
    """Two peers; the later one is reached through a link of `rate` bytes a second."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        SlowLink(port, rate=rate) as link,
        Cluster(
            embedded_model(),
            Path(folder),
            peers=0,
            host=["--devices", "2", "--ctx", "4096", "--wire", wire],
            join=["--dtype", "float32"],
        ) as cluster,
    ):
        cluster.join().event("joined")  # who joins first holds the first layers
        cluster.join("--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{link.port}")
        cluster.wait_ready()
        server = Server(cluster.base_url)
        server.ask(user("Hello"), tokens=4)
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
