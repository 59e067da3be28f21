"""How soon a long conversation goes on: only what is new of a turn has to be computed."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.asking import Answer, Messages, Server, user
from bench.measure import Goal, JsonFile, Quick, Report, Rounds
from cli.embedded import embedded_model
from tests.cluster import Cluster

ANSWER = 16
"""Tokens of each answer."""

SENTENCE_TOKENS = 18
"""Of one sentence below, about."""


@dataclass(frozen=True)
class Turns:
    """The first turn of a conversation, which nothing is held of, and the next one."""

    cold: Answer
    following: Answer

    @property
    def reused(self) -> float:
        """Share of what was sent and answered before that the next turn did not compute."""
        return self.following.cached_tokens / (self.cold.prompt_tokens + self.cold.tokens)


def opening(tokens: int, salt: int) -> Messages:
    """A first message of about that many tokens; no two of different salts have more than a few words in common."""
    count = max(tokens // SENTENCE_TOKENS, 1)
    notes = (f"Note {salt}-{number}: the ship with {number * 7} sails left the harbour. " for number in range(count))
    return user("".join(notes) + "What do these notes tell of?")


def converse(server: Server, tokens: int, salt: int, answer_tokens: int = ANSWER) -> Turns:
    messages = opening(tokens, salt)
    cold = server.ask(messages, tokens=answer_tokens).answers[0]
    answer = {"role": "assistant", "content": cold.text}
    following = [*messages, answer, *user("And what happened to the last ship?")]
    return Turns(cold, server.ask(following, tokens=answer_tokens).answers[0])


def main(
    peers: Annotated[int, typer.Option(min=1, metavar="N")] = 2,
    tokens: Annotated[int, typer.Option(min=64, metavar="N", help="Of the first turn, about.")] = 4000,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Ask a room of the embedded model (float32, processes of their own) for a long turn, and for the one after it."""
    tokens = 300 if quick else tokens
    report = Report(f"{peers} peers on one machine, float32, a first turn of about {tokens} tokens and the next one")
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(embedded_model(), Path(folder), peers=peers, join=["--dtype", "float32"]) as cluster,
    ):
        server = Server(cluster.base_url)
        converse(server, 300, 999)
        turns = [converse(server, tokens, number) for number in range(1 if quick else rounds)]
    following = report.add("time to first token", "next turn", "s", [each.following.first for each in turns])
    cold = report.add("time to first token", "first turn", "s", [each.cold.first for each in turns])
    report.add("prompt tokens", "next turn", "", [each.following.prompt_tokens for each in turns])
    report.add("prompt tokens", "first turn", "", [each.cold.prompt_tokens for each in turns])
    report.add("a token after the first", "next turn", "s", [each.following.per_token for each in turns])
    report.add("a token after the first", "first turn", "s", [each.cold.per_token for each in turns])
    reused = report.add("reused of the first turn and its answer", "next turn", "", [each.reused for each in turns])
    report.goals += [
        Goal("next turn's time to first token over the first turn's", following.over(cold), 0.1, at_most=True),
        Goal("share of the former turn that is reused", reused.median, 0.95),
    ]
    report.show()
    report.save(json)
