"""More is asked of a room's memory than there is: requests make way for each other, and none is lost."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from room.deal import Deal, Offer, deal
from room.forms import Forms
from room.model import ModelShape, inspect
from room.room import MADE_WAY
from tests.cluster import Cluster
from tests.e2e.rpc import Caller

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    # tests/peer/test_planned.py asks the same of slices without processes.
    pytest.mark.skipif("POOLED_SOAK" not in os.environ, reason="asked by make soak"),
]

PAGES, REQUESTS, NEW = 64, 12, 200
RUNNING = 16


def memory_for(shape: ModelShape) -> int:
    """Bytes that each of two peers has to lend so that their pool has so many pages."""
    for memory in count(500_000, 1000):
        found = deal(shape, [Offer(name, memory, 4, Forms()) for name in "ab"], ctx=shape.ctx, sessions=RUNNING)
        if isinstance(found, Deal) and found.pages >= PAGES:
            assert found.pages == PAGES
            return memory
    raise AssertionError


def ask(caller: Caller, number: int) -> tuple[list[bytes], int]:
    """An answer, and how often it made way. Every other one is sampled."""
    sampling = {"temperature": 0.8, "top_k": 20, "seed": number} if number % 2 else {"temperature": 0.0}
    events = list(caller.generate(f"{number} foxes met by the old mill. " * 3, NEW, logprobs=True, **sampling))
    made_way = sum(event.notice.text == MADE_WAY for event in events)
    return [token.token for event in events for token in event.text.tokens], made_way


def test_a_pool_of_64_pages_and_12_long_requests(tiny: Path, tmp_path: Path) -> None:
    host = ["--max-running", str(RUNNING), "--wire", "f32"]
    memory = str(memory_for(inspect(str(tiny), None, tmp_path).shape))
    with (
        Cluster(tiny, tmp_path, host=host, memory=memory, join=["--dtype", "float32"], threads=1) as cluster,
        Caller(cluster.client_invite) as caller,
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        assert caller.state().pages == PAGES
        alone = [ask(caller, number) for number in range(REQUESTS)]
        assert not sum(made_way for _, made_way in alone)
        together: Sequence[tuple[list[bytes], int]] = list(pool.map(partial(ask, caller), range(REQUESTS)))
        assert [answer for answer, _ in together] == [answer for answer, _ in alone]
        print(f"{REQUESTS} answers, which made way {sum(made_way for _, made_way in together)} times")
        assert sum(made_way for _, made_way in together) > 0
        assert caller.state().pages_free == PAGES
