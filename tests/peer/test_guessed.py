"""Guessing ahead on real slices of tiny models, in float32: with and without it the answers are the same."""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peer.sampling import gumbel_noise
from protos import peer_pb2
from room.config import RoomConfig
from room.drafts import NOTHING, OFF, Draft
from room.model import inspect
from room.room import Room
from room.session import Session
from tests.peer import chains
from tests.peer.test_planned import CTX, EnginePeer, saved
from tests.room.fakes import MACHINE, Clock, CountingAnswer, job, run_all, text, told

SOAK = "POOLED_SOAK" in os.environ
PROMPTS = 50 if SOAK else 8
NEW = 48 if SOAK else 24
NEAR = 1e-3
"""Two best candidates this close are a tie: either may win, by rounding alone."""

WAYS = {
    "greedy": peer_pb2.SamplingParams(repetition_penalty=1, top_p=1),
    "seeded": peer_pb2.SamplingParams(temperature=0.4, top_k=40, top_p=0.95, repetition_penalty=1),
    "penalised": peer_pb2.SamplingParams(temperature=0.3, top_p=1, repetition_penalty=1.1, frequency_penalty=0.2),
}


def prompts() -> list[list[int]]:
    """Some repeat themselves, so that there is something to guess from the start."""
    rng = random.Random(7)
    made = []
    for at in range(PROMPTS):
        part = rng.choices(range(250), k=rng.randint(8, 40))
        made.append([*part, *rng.choices(range(250), k=5), *part] if at % 2 else part)
    return made


def answers(directory: Path, speculate: int, way: str, folder: Path) -> tuple[list[Session], int]:
    """All prompts at once; the frames that they took."""
    config = RoomConfig(model=str(directory), devices=2, ctx=CTX, max_running=16, speculate=speculate)
    room = Room(config, inspect(str(directory), None, folder), "ABC234", MACHINE, clock=Clock())
    peers = [EnginePeer(room, name, memory=64 << 20) for name in "ab"]
    for peer in peers:
        peer.load()
    asked = []
    for seed, prompt in enumerate(prompts()):
        own = peer_pb2.SamplingParams()
        own.CopyFrom(WAYS[way])
        own.seed = seed
        asked.append(room.submit(replace(job(prompt, NEW), params=own), CountingAnswer(NEW)))
    frames = run_all(peers)
    assert all(len(text(told(session))) == NEW for session in asked)
    return asked, frames


def tied(whole: chains.Chain, session: Session, ids: Sequence[int], one: int, other: int) -> bool:
    """Whether after `ids` the tokens `one` and `other` are as good as each other for a sampler without penalties."""
    whole.run([chains.Session(1, [(0, CTX // 16)]).segment(ids, sampled=1)])
    params = session.job.params
    pair = np.array([one, other])
    scores = whole.logits[-1][pair].double().numpy()
    if params.temperature:
        scores = scores / params.temperature + gumbel_noise(params.seed, len(ids), pair)
    return bool(abs(scores[0] - scores[1]) < NEAR)


def check_same(directory: Path, plain: list[Session], guessed: list[Session]) -> int:
    """Answers may differ from a near-tie on; how many do."""
    whole = chains.Chain.load(directory, [0, 4], pages=CTX // 16)
    ties = 0
    for one, other in zip(plain, guessed, strict=True):
        if one.tokens != other.tokens:
            both = zip(one.tokens, other.tokens, strict=True)
            at = next(at for at, (mine, its) in enumerate(both) if mine != its)
            assert tied(whole, one, one.tokens[:at], one.tokens[at], other.tokens[at])
            ties += 1
    assert ties <= PROMPTS // 10
    return ties


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_answers_are_the_same(name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = saved(name, tmp_path)
    plain, plain_frames = answers(directory, OFF, way, tmp_path)
    guessed, frames = answers(directory, 6, way, tmp_path)
    ties = check_same(directory, plain, guessed)
    told_before = {session.job.prompt: session.tokens for session in plain}

    def mostly_right(session: Session, most: int) -> Draft:
        """Guesses as good as those in a text that repeats itself: one in seven is wrong."""
        at = len(session.tokens)
        ids = [token if (at + ahead) % 7 else 3 for ahead, token in enumerate(told_before[session.job.prompt][at:])]
        return session.answer.ahead(ids[: min(most, len(ids) - 1)]) if len(ids) > 1 else NOTHING

    monkeypatch.setattr(Session, "draft", mostly_right)
    better, fewer = answers(directory, 6, way, tmp_path)
    more = check_same(directory, plain, better)
    print(f"{name}, {way}: {PROMPTS} answers take {plain_frames} frames, {frames} with guesses, {fewer} with good ones")
    print(f"near-ties: {ties} and {more}")
    assert fewer < 0.6 * plain_frames
