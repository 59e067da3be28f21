"""A draft model guesses what it would have answered itself, whatever else it is asked and has to take back."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peer.drafter import Drafter
from peer.errors import UnsupportedArchitecture
from peer.slice import Slice
from protos import peer_pb2, room_pb2
from room.config import RoomConfig
from room.drafts import OFF
from room.model import inspect
from room.room import Room
from tests.peer import chains
from tests.peer.test_planned import CTX, EnginePeer, saved
from tests.room.fakes import MACHINE, Clock, CountingAnswer, drain, job, text, told

GREEDY = peer_pb2.SamplingParams(repetition_penalty=1, top_p=1)


def drafter_of(directory: Path, ctx: int = CTX, sessions: int = 4) -> Drafter:
    return Drafter(Slice.load(str(directory), 0, 4, dtype=torch.float32, device=torch.device("cpu")), ctx, sessions)


def ask(drafter: Drafter, session: int, start: int, ids: Iterable[int], count: int) -> room_pb2.Drafted:
    """What it guesses when nobody else asks."""
    wanted = [room_pb2.DraftWanted(session=session, start=start, ids=ids, count=count, params=GREEDY)]
    given = drafter.step(wanted)
    while drafter.busy:
        given += drafter.step([])
    (only,) = given
    return only


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("drafter"))


@pytest.fixture
def plain(llama: Path) -> Callable[[list[int], int], list[int]]:
    whole = chains.Chain.load(llama, [0, 4], pages=CTX // 16)
    return lambda prompt, count: chains.greedy(whole, chains.Session(1, [(0, CTX // 16)]), prompt, count)


def test_it_guesses_what_it_would_answer_and_takes_back_what_was_wrong(
    llama: Path, plain: Callable[[list[int], int], list[int]]
) -> None:
    drafter = drafter_of(llama)
    prompt = random.Random(1).choices(range(250), k=70)
    assert ask(drafter, 1, 0, prompt, 0) == room_pb2.Drafted(session=1, length=70)
    answer = plain(prompt, 6)
    assert list(ask(drafter, 1, 70, answer[:1], 5).ids) == answer[1:]
    other = [*prompt, *answer[:3], 7]
    again = ask(drafter, 1, 73, [7], 4)
    assert (again.length, list(again.ids)) == (74, plain(other, 4))


def test_sessions_side_by_side_and_read_in_parts(llama: Path, plain: Callable[[list[int], int], list[int]]) -> None:
    rng = random.Random(2)
    drafter = drafter_of(llama)
    prompts = {number: rng.choices(range(250), k=rng.randint(5, 90)) for number in range(4)}
    wanted = [
        room_pb2.DraftWanted(session=number, ids=prompt, count=3 + number, params=GREEDY)
        for number, prompt in prompts.items()
    ]
    given = drafter.step(wanted)
    while drafter.busy:
        given += drafter.step([])
    found = {each.session: list(each.ids) for each in given}
    assert found == {number: plain(prompt, 3 + number) for number, prompt in prompts.items()}


def test_who_was_used_longest_ago_makes_way_and_gets_no_more_guesses(llama: Path) -> None:
    drafter = drafter_of(llama, sessions=2)
    for session in (1, 2, 3):
        assert ask(drafter, session, 0, [1, 2, 3], 2).ids
    assert not ask(drafter, 1, 3, [4], 2).ids
    assert ask(drafter, 3, 3, [4], 2).ids
    drafter.step([room_pb2.DraftWanted(session=3, over=True)])
    assert not ask(drafter, 3, 4, [4], 2).ids


def test_what_it_cannot_hold_or_read_gets_no_guesses(llama: Path) -> None:
    drafter = drafter_of(llama, ctx=32)
    assert ask(drafter, 1, 0, [5] * 30, 2).ids
    assert ask(drafter, 1, 30, [6], 2) == room_pb2.Drafted(session=1, length=31)
    assert ask(drafter, 2, 0, [256], 2) == room_pb2.Drafted(session=2, length=1)


def test_a_state_that_cannot_be_cut_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="--draft"):
        drafter_of(saved("qwen3_5", tmp_path))


# ---------------------------------------------------------------- beside a room


def answers(directory: Path, draft: Path | None, speculate: int, folder: Path) -> tuple[list[list[int]], int, float]:
    """What a room of two slices says with that draft model; the frames it takes, and what guesses are trusted."""
    config = RoomConfig(model=str(directory), devices=2, ctx=CTX, max_running=8, speculate=speculate)
    clock = Clock()
    room = Room(config, inspect(str(directory), None, folder), "ABC234", MACHINE, clock=clock)
    peers = [EnginePeer(room, name, memory=64 << 20) for name in "ab"]
    for peer in peers:
        peer.load()
    drafter = drafter_of(draft) if draft else None
    outbox = room.drafting.begin()
    rng = random.Random(3)
    asked = []
    for seed in range(3):
        params = peer_pb2.SamplingParams(temperature=0.6 * (seed > 0), top_p=1, repetition_penalty=1, seed=seed)
        prompt = rng.choices(range(250), k=30)
        asked.append(room.submit(replace(job(prompt, 24), params=params), CountingAnswer(24)))
    frames = 0
    while not all(session.ended for session in asked):
        clock.now += 0.05  # that frames take
        frames += peers[0].work()
        peers[1].work()
        for given in drafter.step(drain(outbox)) if drafter else ():
            room.drafted(given)
        while drafter and drafter.busy:
            for given in drafter.step([]):
                room.drafted(given)
    chance = sum(session.guessed.chance for session in asked) / len(asked)
    return [text(told(session)) for session in asked], frames, chance


def test_an_equal_model_is_nearly_always_right(llama: Path, tmp_path: Path) -> None:
    plain, plain_frames, _ = answers(llama, None, OFF, tmp_path)
    guessed, frames, chance = answers(llama, llama, 6, tmp_path)
    assert guessed == plain
    assert frames < 0.6 * plain_frames
    assert chance > 0.9


def test_a_random_model_does_no_harm_to_a_hybrid_one(llama: Path, tmp_path: Path) -> None:
    directory = saved("qwen3_5", tmp_path)
    plain, _, _ = answers(directory, None, OFF, tmp_path)
    guessed, _, chance = answers(directory, llama, 6, tmp_path)
    assert guessed == plain
    assert chance < 0.3
