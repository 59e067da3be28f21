"""Rooms that guess ahead answer as those that do not: greedy, and over gRPC with a seed."""

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.profile import frames
from peer.sampling import gumbel_noise
from protos import peer_pb2, room_pb2
from room.model import inspect
from room.text.tokenizer import TextModel
from tests.cluster import Cluster
from tests.e2e.rpc import Caller
from tests.tiny_model import save_tiny, save_tiny_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SOAK = "POOLED_SOAK" in os.environ
PROMPTS = 50 if SOAK else 8
NEW = 48 if SOAK else 24
TOGETHER = 8

asked_by_soak = pytest.mark.skipif(
    not SOAK, reason="asked by make soak; tests/peer/test_guessed.py and test_drafter.py ask the same without processes"
)
NEAR = 1e-3
"""Two best candidates this close are a tie: either may win, by rounding alone."""

TOP_K = 20
"""As many as a room tells the chances of: among them is whatever else may have been drawn."""

WAYS: dict[str, dict[str, float | int]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_k": TOP_K, "top_p": 0.95},
}
WORDS = (
    *("the", "fox", "and", "a", "crow", "met", "by", "the", "old", "mill", "while", "rain", "fell"),
    *("on", "red", "roofs", "but", "nobody", "else", "was", "near"),
)


@dataclass(frozen=True)
class Answer:
    prompt_tokens: int
    tokens: Sequence[room_pb2.TextToken]

    @property
    def said(self) -> list[bytes]:
        return [token.token for token in self.tokens]


@dataclass(frozen=True)
class Asked:
    """A model whose answers hold ordinary tokens alone and come to no end of their own, so that all can be told."""

    source: Path
    cache: Path
    liking: float = 0.0
    """What a token gains in logits each time it is used: random models repeat nothing by themselves."""

    @cached_property
    def text(self) -> TextModel:
        return TextModel.load(inspect(str(self.source), None, self.cache).text_dir)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {self.text.token_bytes(token): token for token in range(self.text.vocab_size)}

    def ask(self, caller: Caller, way: str, number: int) -> Answer:
        never = [peer_pb2.LogitBias(id=token, bias=-100) for token in sorted(self.text.controls | self.text.eos_ids)]
        told = {"logprobs": True, "top_logprobs": TOP_K, "logit_bias": never}
        own = {"seed": number, "frequency_penalty": -self.liking, **WAYS[way]}
        events = list(caller.generate(prompt(number), NEW, **told, **own))
        (usage,) = (event.usage for event in events if event.HasField("usage"))
        return Answer(usage.prompt_tokens, [token for event in events for token in event.text.tokens])

    def ask_all(self, invited: Cluster, way: str) -> list[Answer]:
        with Caller(invited.client_invite) as caller, ThreadPoolExecutor(TOGETHER) as pool:
            answers = list(pool.map(partial(self.ask, caller, way), range(PROMPTS)))
        assert all(len(answer.tokens) >= NEW - 4 for answer in answers), "but for half a character at the end"
        return answers

    def tied(self, way: str, number: int, answer: Answer, at: int, other: bytes) -> bool:
        """Whether another token was as good as the answer's own at a place, for the sampler."""
        token = answer.tokens[at]
        chances = {chance.token: chance.logprob for chance in token.top}
        if other not in chances:
            return False
        scores = np.array([chances[each] + self.liking * answer.said[:at].count(each) for each in (token.token, other)])
        if temperature := WAYS[way]["temperature"]:
            pair = np.array([self.ids[token.token], self.ids[other]])
            scores = scores / temperature + gumbel_noise(number, answer.prompt_tokens + at, pair)
        return bool(abs(scores[0] - scores[1]) < NEAR)

    def check_same(self, way: str, plain: list[Answer], guessed: list[Answer]) -> int:
        """Answers may differ from a near-tie on; how many do."""
        ties = 0
        for number, (one, other) in enumerate(zip(plain, guessed, strict=True)):
            if one.said != other.said:
                pairs = zip(one.said, other.said, strict=False)
                at = next(at for at, (mine, its) in enumerate(pairs) if mine != its)
                assert self.tied(way, number, one, at, other.said[at]), f"{way}, prompt {number}, token {at}"
                ties += 1
        assert ties <= PROMPTS // 10
        return ties


def prompt(number: int) -> str:
    """Every other one asks for what repeats, so that there is something to guess from the start."""
    rng = random.Random(number)
    words = " ".join(rng.choices(WORDS, k=rng.randint(6, 30)))
    return f"Say this three times: {words}. {words}." if number % 2 else f"Go on with this tale: {words}"


@contextmanager
def opened(model: Path, folder: Path, speculate: str, *more: str) -> Iterator[Cluster]:
    host = ["--speculate", speculate, "--ctx", "512", "--wire", "f32", "-vv", "--json-log", *more]
    with Cluster(model, folder, host=host, join=["--dtype", "float32"], threads=1) as made:
        yield made


def guesses(cluster: Cluster) -> int:
    """That the room has put into frames so far."""
    return sum(frame.rows - frame.sessions for frame in frames(cluster.room.err.read_text()))


def test_guesses_change_no_answer(tiny: Path, tiny_room: Cluster, tmp_path: Path) -> None:
    """A sample on the room that others ask too: it guesses as it likes."""
    asked = Asked(tiny, tmp_path, liking=1.0)
    with opened(tiny, tmp_path, "off") as never:
        for way in WAYS:
            asked.check_same(way, asked.ask_all(never, way), asked.ask_all(tiny_room, way))
        assert not guesses(never)


@asked_by_soak
@pytest.mark.model
@pytest.mark.parametrize("name", ["dense", "hybrid"])
def test_fifty_answers_with_and_without_guesses(name: str, gguf: Path, tmp_path: Path) -> None:
    asked = Asked(gguf, tmp_path)
    if name == "hybrid":
        asked = Asked(save_tiny("qwen3_5", tmp_path / "model", vocab_size=320), tmp_path, liking=1.0)
        save_tiny_tokenizer(asked.source)
    plain: dict[str, list[Answer]] = {}
    for speculate in ("off", "6", "auto"):
        (folder := tmp_path / speculate).mkdir()
        with opened(asked.source, folder, speculate) as room:
            for way in WAYS:
                before = guesses(room)
                answers = asked.ask_all(room, way)
                ties = asked.check_same(way, plain.setdefault(way, answers), answers)
                made = guesses(room) - before
                assert (made > 0) == (speculate == "6") or speculate == "auto"
                print(f"{name}, {way}, --speculate {speculate}: {PROMPTS} answers, {made} guesses, {ties} near-ties")


@asked_by_soak
def test_a_draft_model_changes_no_answer_also_when_it_dies(tiny: Path, tmp_path: Path) -> None:
    asked = Asked(tiny, tmp_path)
    folders = [tmp_path / name for name in ("plain", "drafted")]
    for folder in folders:
        folder.mkdir()
    with opened(tiny, folders[0], "off") as room:
        plain = {way: asked.ask_all(room, way) for way in WAYS}
    with opened(tiny, folders[1], "4", "--draft", str(tiny)) as room:
        room.room.event("drafting")
        for way in WAYS:
            before = guesses(room)
            ties = asked.check_same(way, plain[way], asked.ask_all(room, way))
            made = guesses(room) - before
            assert made > 0
            print(f"a draft model, {way}: {PROMPTS} answers, {made} guesses, {ties} near-ties")
        (drafter,) = (each for each in psutil.Process(room.room.pid).children() if "draft" in each.cmdline())
        drafter.kill()
        asked.check_same("greedy", plain["greedy"], asked.ask_all(room, "greedy"))
