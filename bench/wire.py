"""What the form in which hidden states travel is worth on a slow link, and that `auto` loses nothing on a fast one."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.asking import Messages, Server, Together, user
from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn
from bench.workloads import stories
from cli.embedded import embedded_model
from tests.cluster import Cluster, free_port
from tests.proxy import SlowLink
from tests.tiny_model import save_tiny_chat

WORDS, THIN_WORDS = 1960, 560
"""Of a prompt of some 2,000 tokens, by the embedded model's tokenizer and by the thin one's."""

THIN: dict[str, Any] = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}

CTX = 4096
MBIT = 1e6 / 8


def main(
    rate: Annotated[float, typer.Option(metavar="MBIT", help="Of the link between the peers, per second.")] = 2.0,
    thin: Annotated[
        bool, typer.Option("--thin", help="A random model of the same width and two layers: only the link counts.")
    ] = False,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask two peers with a slow link between them about a prompt of 2,000 tokens, once for each form of `--wire`."""
    words, rounds = (100, 1) if quick else (THIN_WORDS if thin else WORDS, rounds)
    report = Report(f"two peers, {rate:g} Mbit/s between them, float32, a prompt of {words} words")
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_chat(folder, layers=2, ctx=CTX, **THIN) if thin else embedded_model()
        measure(model, rate, words, rounds, report)
    report.show()
    report.save(json)


def measure(model: Path, rate: float, words: int, rounds: int, report: Report) -> None:
    with rooms(model, ("bf16", "int8", "auto"), rate * MBIT) as servers:
        slow = in_turn({wire: partial(asked, server, words) for wire, server in servers.items()}, rounds)
    with rooms(model, ("bf16", "auto"), None) as servers:
        fast = in_turn({wire: partial(asked, server, words) for wire, server in servers.items()}, rounds)
        streams = in_turn({wire: partial(together, server) for wire, server in servers.items()}, rounds)
    first = {
        wire: report.add(f"first token over {rate:g} Mbit/s", wire, "s", [each.took for each in given])
        for wire, given in slow.items()
    }
    near = {
        wire: report.add("first token on loopback", wire, "s", [each.took for each in given])
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


def asked(server: Server, words: int, number: int) -> Together:
    """An answer of one token: when it is whole, the first token is there, whether it shows as text or not."""
    return server.ask(prompt(words, number), tokens=1)


def together(server: Server, number: int) -> Together:
    return server.ask(*stories(4, number))


def prompt(words: int, number: int) -> Messages:
    """A long one that shares no beginning with another's."""
    return user(
        f"{number} " + " ".join(("sun", "sea", "dog", "tree")[at % 4] for at in range(words)) + " What is this?"
    )


@contextmanager
def rooms(model: Path, wires: tuple[str, ...], rate: float | None) -> Iterator[dict[str, Server]]:
    """A room for each form, all there at once; they are asked in turn."""
    with ExitStack() as stack:
        yield {wire: stack.enter_context(room(model, wire, rate)) for wire in wires}


@contextmanager
def room(model: Path, wire: str, rate: float | None) -> Iterator[Server]:
    """Two peers; the later one is reached through a link of `rate` bytes a second; None: straight."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        SlowLink(port, rate=rate) as link,
        Cluster(
            model,
            Path(folder),
            peers=0,
            host=["--devices", "2", "--ctx", str(CTX), "--wire", wire],
            join=["--dtype", "float32"],
        ) as cluster,
    ):
        cluster.join().event("joined")  # who joins first holds the first layers
        own = ["--listen", f"127.0.0.1:{port}"]
        cluster.join(*own, *(["--advertise", f"127.0.0.1:{link.port}"] if rate else []))
        cluster.wait_ready()
        server = Server(cluster.base_url)
        server.ask(user("Hello"), tokens=4)
        yield server
