"""A crowd of clients, some of whom cancel, vanish or hardly read, while peers are killed and come back.

`make test` sends a dozen of them, `make soak` 200 again and again for ten minutes.
"""

import math
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.crowd import Asked, Conduct, Crowd, Levels, Tale, Told, questions, requests
from tests.chaos.rounds import Chaos, opened

SOAK = "POOLED_SOAK" in os.environ
SECONDS = float(os.environ.get("POOLED_CROWD_SECONDS", "600"))
CLIENTS = 200 if SOAK else 12
SEED = 11

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS + 900)]


@pytest.fixture(scope="module")
def room(tiny: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """The full count has a room of its own, which runs as many answers at once as rooms do."""
    if not SOAK:
        yield request.getfixturevalue("chaos")
        return
    with opened(tiny, tmp_path_factory.mktemp("crowd"), seed=SEED, lost_for=30.0, running=32) as made:
        yield made


def twins(crowd: Crowd) -> dict[str, str]:
    """Every question's answer when nothing disturbs."""
    alone = [Asked(each, Conduct.READS, greedy=True, stream=False, pause=0.0, chunks=0) for each in questions()]
    return {told.asked.question: told.text for told in crowd.ask([alone])}


@contextmanager
def peers_dying(room: Chaos, most: float, after: tuple[float, float], away: tuple[float, float]) -> Iterator[list[str]]:
    """One that serves is killed and comes back, again and again up to `most` times. Gives their names.

    `after`: seconds for which the room has served then, with everybody back. How long peers take to load depends on the
    machine, and a room that loses them faster than they load serves nobody.
    """
    over, killed = threading.Event(), []

    def run() -> None:
        while len(killed) < most and not over.wait(0.2):
            state = room.state()
            back = len(state.peers) == len(room.peers) and all(peer.state in ("ready", "spare") for peer in state.peers)
            if state.ready and back and not over.wait(room.random.uniform(*after)) and (holders := room.holders()):
                killed.append(name := room.random.choice(holders))
                room.peers[name].popen.kill()
                over.wait(room.random.uniform(*away))
                room.join(name)

    with ThreadPoolExecutor(1) as pool:
        dying = pool.submit(run)
        try:
            yield killed
        finally:
            over.set()
            dying.result()


def test_everybody_in_a_crowd_gets_the_right_answer_or_hears_why_not(room: Chaos) -> None:
    chance, crowd = random.Random(SEED), Crowd(room.cluster.base_url)
    alone = twins(crowd)
    told: list[Told] = []
    deaths = (math.inf, (3.0, 12.0), (0.5, 3.0)) if SOAK else (2, (0.1, 0.6), (0.0, 0.5))
    levels = Levels({"room": room.cluster.room.pid, "bridge": room.cluster.bridge.pid})
    began = time.monotonic()
    with levels.watched(), peers_dying(room, *deaths) as killed:
        while not killed or (SOAK and time.monotonic() - began < SECONDS):
            told += crowd.ask([requests(chance) for _ in range(CLIENTS)])
            print(f"{time.monotonic() - began:.0f} s: {Tale(told, alone)}; {len(killed)} kills", flush=True)
    room.heal()  # nothing runs or waits, and all pages are free
    tale = Tale(told, alone)
    assert killed
    assert tale.wrong == []
    for name in ("room", "bridge") if SOAK and SECONDS >= 120 else ():
        early, late = levels.early_and_late(name)
        print(f"{name}: {early / 1e6:.0f} MB after the first minute, {late / 1e6:.0f} MB at the end")
        assert late < early * 1.1
    assert tale.finished >= 0.7
