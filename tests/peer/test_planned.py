"""What a room plans, computed by real slices of tiny models: whatever it reuses or takes back, answers are the same."""

import random
from itertools import count
from pathlib import Path

import pytest
import torch

from peer.kv import KvPool
from peer.slice import Slice
from peer.step import Engine
from protos import peer_pb2
from room.config import RoomConfig
from room.deal import Deal, Offer, deal
from room.forms import Forms
from room.model import Model, inspect
from room.room import MADE_WAY, Room
from tests.peer import chains
from tests.room.fakes import MACHINE, Clock, FakePeer, ask, run_all, text, told
from tests.tiny_model import save_tiny, save_tiny_tokenizer

CTX = 400


class EnginePeer(FakePeer):
    """Computes what it is sent."""

    def load(self) -> None:
        super().load()
        given = self.assignment
        assert given is not None
        slice = Slice.load(
            self.room.model.source, given.start, given.end, dtype=torch.float32, device=torch.device("cpu")
        )
        self.engine = Engine(slice, KvPool(slice, given.pages, given.state_slots))
        self.plans: dict[int, peer_pb2.SamplingPlan] = {}

    def frames(self) -> list[peer_pb2.Frame]:
        messages = self.take()
        self.plans.update((message.plan.step, message.plan) for message in messages if message.HasField("plan"))
        return [message.frame for message in messages if message.HasField("frame")]

    def compute(self, frame: peer_pb2.Frame) -> peer_pb2.FromPeer:
        out = self.engine.run(frame, self.plans.pop(frame.step, None), {})
        return peer_pb2.FromPeer(result=out) if isinstance(out, peer_pb2.FrameResult) else peer_pb2.FromPeer(relay=out)


def saved(name: str, folder: Path) -> Path:
    directory = save_tiny(name, folder / name)
    save_tiny_tokenizer(directory)
    return directory


def memory_for(model: Model, pages: int, running: int) -> int:
    """What two peers must lend so that their pool has that many pages."""
    for memory in count(100_000, 2000):
        offers = [Offer(name, memory, 4, Forms()) for name in "ab"]
        found = deal(model.shape, offers, ctx=CTX, sessions=running)
        if isinstance(found, Deal) and found.pages >= pages:
            assert found.pages == pages
            return memory
    raise AssertionError


def room_of(directory: Path, pages: int, tmp_path: Path, running: int) -> tuple[Room, list[EnginePeer]]:
    model = inspect(str(directory), None, tmp_path)
    config = RoomConfig(model=str(directory), devices=2, ctx=CTX, max_running=running)
    room = Room(config, model, "ABC234", MACHINE, clock=Clock())
    peers = [EnginePeer(room, name, memory=memory_for(model, pages, running)) for name in "ab"]
    for peer in peers:
        peer.load()
    assert room.chains[0].cache.pool.pages == pages
    return room, peers


def alone(whole: chains.Chain, prompt: list[int], tokens: int) -> list[int]:
    """The whole model's greedy answer, from nothing."""
    return chains.greedy(whole, chains.Session(1, [(0, CTX // 16)]), prompt, tokens)


def test_a_pool_of_64_pages_and_12_long_requests(tmp_path: Path) -> None:
    rng = random.Random(2)
    llama = saved("llama", tmp_path)
    room, peers = room_of(llama, 64, tmp_path, running=16)
    room.chains[0].tuning.fix(1)  # prompts come in as fast as they can, whatever such a small model's frames take
    whole = chains.Chain.load(llama, [0, 4], pages=CTX // 16)
    prompts = [rng.choices(range(250), k=rng.randint(30, 40)) for _ in range(12)]
    sessions = [ask(room, prompt=prompt, max_new=80) for prompt in prompts]
    run_all(peers)
    events = [told(session) for session in sessions]
    assert sum(event.notice.text == MADE_WAY for said in events for event in said) > 0
    for prompt, said in zip(prompts, events, strict=True):
        assert text(said) == alone(whole, prompt, 80)
    assert room.chains[0].cache.free_pages == 64


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "qwen3_next"])
def test_the_turns_of_a_conversation_equal_cold_ones(name: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    directory = saved(name, tmp_path)
    room, peers = room_of(directory, 100, tmp_path, running=4)
    whole = chains.Chain.load(directory, [0, 4], pages=CTX // 16)
    turn = rng.choices(range(250), k=50)
    for _ in range(2):
        for again in range(2):
            session = ask(room, prompt=turn, max_new=13)
            run_all(peers)
            events = told(session)
            answer = text(events)
            assert answer == alone(whole, turn, 13)
            assert session.cached >= (len(turn) - 5 if again else len(turn) - 7 if len(turn) > 50 else 0)
        aside = ask(room, prompt=[*turn, *answer[:9], 1], max_new=5)
        run_all(peers)
        assert text(told(aside)) == alone(whole, [*turn, *answer[:9], 1], 5)
        turn = [*turn, *answer, *rng.choices(range(250), k=6)]
