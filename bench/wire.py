"""What the form in which hidden states travel is worth on a slow link, and that `auto` loses nothing on a fast one."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.asking import Messages, Together, user
from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn, progress
from bench.servers import LinksUnused, Running, Slow, ours, require_carried
from bench.workloads import stories
from cli.embedded import embedded_model
from tests.tiny_model import save_tiny_chat

WORDS, THIN_WORDS = 1960, 560
"""Of a prompt of some 2,000 tokens, by the embedded model's tokenizer and by the thin one's."""

THIN: dict[str, Any] = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}

WIDTH = 576
"""Entries of a row of hidden states in both models."""

LEAST_ENTRY = {"f32": 4, "bf16": 2, "int8": 1, "auto": 1}
"""Bytes that one takes at least."""

CTX = 4096
MBIT = 1e6 / 8
STRAIGHT, RELAYED = "from peer to peer", "through the room"


def main(
    rate: Annotated[float, typer.Option(metavar="MBIT", help="Of the link between the peers, per second.")] = 2.0,
    thin: Annotated[
        bool, typer.Option("--thin", help="A random model of the same width and two layers: only the link counts.")
    ] = False,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask two peers with slow links about a prompt of 2,000 tokens, once for each form of `--wire`.

    Every link between room and peers is that slow; peers reach each other, or the room relays.
    """
    words, rounds = (100, 1) if quick else (THIN_WORDS if thin else WORDS, rounds)
    report = Report(f"two peers, links of {rate:g} Mbit/s, float32, a prompt of {words} words")
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_chat(Path(folder) / "thin", layers=2, ctx=CTX, **THIN) if thin else embedded_model()
        for way in (STRAIGHT, RELAYED):
            slow(model, Path(folder), rate, way, words, rounds, report)
        near(model, Path(folder), words, rounds, report)
    report.show()
    report.save(json)


def slow(model: Path, folder: Path, rate: float, way: str, words: int, rounds: int, report: Report) -> None:
    """How soon the first token comes over slow links."""
    links = Slow(rate=rate * MBIT, relayed=way == RELAYED)
    with rooms(model, folder / way, ("bf16", "int8", "auto"), links) as servers:
        contenders = {wire: partial(crossing, wire, server, links, words) for wire, server in servers.items()}
        given = in_turn(contenders, rounds)
        if any(server.straight is links.relayed for server in servers.values()):
            raise LinksUnused(f"hidden states did not go {way} all the time")
    what = f"first token over {rate:g} Mbit/s, {way}"
    first = {wire: report.add(what, wire, "s", [each.took for each in took]) for wire, took in given.items()}
    report.goals.append(Goal(f"{what}, int8 over bf16", first["int8"].over(first["bf16"]), 0.65, at_most=True))


def near(model: Path, folder: Path, words: int, rounds: int, report: Report) -> None:
    """That `auto` loses nothing on loopback."""
    with rooms(model, folder / "near", ("bf16", "auto"), None) as servers:
        fast = in_turn({wire: partial(asked, server, words) for wire, server in servers.items()}, rounds)
        streams = in_turn({wire: partial(together, server) for wire, server in servers.items()}, rounds)
    first = {
        wire: report.add("first token on loopback", wire, "s", [each.took for each in given])
        for wire, given in fast.items()
    }
    paces = {
        wire: report.add("4 streams on loopback", wire, "tok/s", [each.tokens_per_second for each in given])
        for wire, given in streams.items()
    }
    report.goals += [
        Goal("first token on loopback, auto over bf16", first["auto"].over(first["bf16"]), 1.05, at_most=True),
        Goal("4 streams on loopback, auto over bf16", paces["auto"].over(paces["bf16"]), 0.95),
    ]


def crossing(wire: str, server: Running, links: Slow, words: int, number: int) -> Together:
    """The same as `asked`. Raises LinksUnused unless the links carried the prompt's hidden states, at their rate."""
    before = server.carried
    answer = asked(server, words, number)
    (told,) = answer.answers
    one_way = (told.prompt_tokens - told.cached_tokens) * WIDTH * LEAST_ENTRY[wire]
    require_carried(server.carried - before, one_way * (2 if links.relayed else 1))
    if links.rate and answer.took < one_way / links.rate:
        raise LinksUnused(f"{one_way} bytes went over the links in {answer.took:.2f} s, which is more than they can")
    progress(f"{wire}: {answer.took:.2f} s to the first token")
    return answer


def asked(server: Running, words: int, number: int) -> Together:
    """An answer of one token: when it is whole, the first token is there, whether it shows as text or not."""
    return server.ask(prompt(words, number), tokens=1)


def together(server: Running, number: int) -> Together:
    return server.ask(*stories(4, number))


def prompt(words: int, number: int) -> Messages:
    """A long one that shares no beginning with another's."""
    return user(
        f"{number} " + " ".join(("sun", "sea", "dog", "tree")[at % 4] for at in range(words)) + " What is this?"
    )


@contextmanager
def rooms(model: Path, folder: Path, wires: tuple[str, ...], links: Slow | None) -> Iterator[dict[str, Running]]:
    """A room for each form, all there at once; they are asked in turn."""
    folder.mkdir()
    with ExitStack() as stack:
        servers = {}
        for wire in wires:
            host = ["--ctx", str(CTX), "--wire", wire]
            servers[wire] = stack.enter_context(ours(model, folder / wire, peers=2, slow=links, host=host))
            servers[wire].ask(user("Hello"), tokens=4)
        yield servers
