"""An answer goes on when a peer dies or leaves in the middle of it, and is the one it would have been."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from openai import OpenAI

from protos import room_pb2
from tests.cluster import Cluster, Process, get
from tests.e2e.rpc import Caller

SOAK = "POOLED_SOAK" in os.environ

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600 if SOAK else 600)]

KILLS = 50 if SOAK else 1
NEW = 100
"""Tokens of each of eight answers at once."""

PATIENCE = 240.0
"""Seconds that a peer may need to start on a machine that has much else to do."""


def answer(client: OpenAI, *, after: int = 20, then: Callable[[], None] | None = None) -> str:
    """A greedy answer; something may happen after a few of its chunks."""
    text = ""
    stream = client.chat.completions.create(
        model="pooled",
        messages=[{"role": "user", "content": "Tell me of the sea."}],
        max_tokens=200,
        temperature=0,
        stream=True,
    )
    for number, chunk in enumerate(stream):
        text += chunk.choices[0].delta.content or ""
        if number == after and then is not None:
            then()
    return text


def test_killing_a_peer_in_mid_answer_changes_nothing_of_it(tiny: Path, tmp_path: Path) -> None:
    """Either peer could hold all layers: the one that is left is dealt the other's."""
    with (
        Cluster(tiny, tmp_path, threads=1) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=120) as client,
    ):
        undisturbed = answer(client)
        assert answer(client, then=cluster.peers[1].popen.kill) == undisturbed
        assert answer(client) == undisturbed


def told(cluster: Cluster, *command: str) -> str:
    """What a command of the host's or a volunteer's says."""
    process = cluster.start(f"{command[0]}{len(cluster.processes)}", *command)
    assert process.popen.wait(120) == 0, process.said()
    return process.out.read_text()


def test_peers_that_join_later_make_a_further_chain_in_which_answers_go_on(tiny: Path, tmp_path: Path) -> None:
    with (
        Cluster(tiny, tmp_path, peers=1, threads=1) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=120) as client,
        Caller(cluster.client_invite) as caller,
    ):
        undisturbed = answer(client)
        assert answer(client, then=cluster.join) == undisturbed
        wait(lambda: sorted((peer.chain, peer.state) for peer in caller.state().peers) == [(1, "ready"), (2, "ready")])
        assert answer(client, then=cluster.peers[0].popen.kill) == undisturbed
        assert answer(client) == undisturbed


def peers(cluster: Cluster) -> dict[str, str]:
    """As the host's own command lists them: states by name."""
    found = map(json.loads, told(cluster, "peers", "--json").splitlines())
    return {peer["name"]: peer["state"] for peer in found}


def until(cluster: Cluster, wanted: dict[str, str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := peers(cluster)) != wanted:
        assert time.monotonic() < deadline, found


def test_a_peer_that_leaves_hands_over_and_ends_cleanly(tiny: Path, tmp_path: Path) -> None:
    with (
        Cluster(tiny, tmp_path, threads=1) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=120) as client,
    ):
        undisturbed = answer(client)
        cluster.join()
        until(cluster, {"p1": "ready", "p2": "ready", "p3": "spare"})
        for whose in ([], ["peers"]):  # the volunteer's own command, and the host's
            for command, state in (("pause", "paused"), ("resume", "spare")):
                told(cluster, *whose, command, "p3")
                until(cluster, {"p1": "ready", "p2": "ready", "p3": state})
        told(cluster, "redeal")
        until(cluster, {"p1": "ready", "p2": "ready", "p3": "spare"})
        assert answer(client, then=lambda: cluster.peers[1].signal(signal.SIGTERM)) == undisturbed
        assert cluster.peers[1].popen.wait(120) == 0, cluster.peers[1].said()
        assert peers(cluster) == {"p1": "ready", "p3": "ready"}
        told(cluster, "leave", "p1")
        assert cluster.peers[0].popen.wait(120) == 0
        until(cluster, {"p3": "ready"})  # the last one loads all layers
        wait(lambda: get(f"{cluster.origin}/ready") == 200)
        assert answer(client) == undisturbed


@dataclass
class Heard:
    """An answer in a thread of its own, and when its parts came."""

    ask: Callable[[], Iterator[str]]
    parts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def run(self) -> "Heard":
        for part in self.ask():
            self.parts.append(part)
            self.times.append(time.monotonic())
        return self

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def pause(self) -> float:
        return max((after - before for before, after in pairwise(self.times)), default=0.0)


def streams(client: OpenAI, caller: Caller) -> list[Heard]:
    """Eight answers: greedy ones over HTTP, seeded ones over gRPC."""

    def greedy(question: str) -> Iterator[str]:
        messages = [{"role": "user", "content": question}]
        for chunk in client.chat.completions.create(
            model="pooled", messages=messages, max_tokens=NEW, temperature=0, stream=True
        ):
            yield chunk.choices[0].delta.content or ""

    def seeded(seed: int) -> Iterator[str]:
        for event in caller.generate("Tell me of the sea.", NEW, temperature=1.0, seed=seed):
            if event.HasField("text"):
                yield event.text.text

    asked = [partial(greedy, question) for question in ("Who are you?", "Tell me of the sea.", "Count." * 50, "Why?")]
    return [Heard(ask) for ask in [*asked, *(partial(seeded, seed) for seed in range(1, 5))]]


def test_a_spare_takes_the_place_of_a_killed_peer(tiny: Path, tmp_path: Path) -> None:
    """Those that serve load nothing. The peer that was killed comes back as the next spare."""
    random = Random(3)
    with (
        Cluster(tiny, tmp_path, peers=3, threads=1) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=120) as client,
        Caller(cluster.client_invite) as caller,
        ThreadPoolExecutor(8) as pool,
    ):
        running = {peer.name: peer for peer in cluster.peers}
        running["p4"] = cluster.join()
        twins = [heard.run() for heard in streams(client, caller)]
        usual = sum(len(twin.parts) for twin in twins)
        for number in range(KILLS):
            serving = those_with_a_spare(caller)
            victim = serving.pop(random.randrange(3) if number else 1)
            loaded = [loads(running[name]) for name in serving]
            after = random.randint(1, usual * 3 // 4)
            while True:
                answers = streams(client, caller)
                futures = [pool.submit(heard.run) for heard in answers]
                wait(lambda answers=answers, after=after: sum(len(heard.parts) for heard in answers) >= after)
                running[victim].signal(signal.SIGSTOP)
                if not all(future.done() for future in futures):
                    break
                running[victim].signal(signal.SIGCONT)  # this process was too busy to see the middle of them: again
            running[victim].popen.kill()
            for future in futures:
                future.result()
            pause = max(each.pause for each in answers)
            print(f"{victim} killed after {after} of {usual}: longest pause {pause:.1f} s", flush=True)
            assert [heard.text for heard in answers] == [twin.text for twin in twins]
            assert [loads(running[name]) for name in serving] == loaded
            running[victim].popen.wait(10)
            running[victim] = cluster.join(name=victim)


def those_with_a_spare(caller: Caller) -> list[str]:
    """The peers that serve, first to last, once a spare has loaded what it can take over."""
    peers: list[room_pb2.PeerState] = []

    def covered() -> bool:
        peers[:] = caller.state().peers
        return any(peer.reserve_end for peer in peers)

    wait(covered)
    return [peer.name for peer in sorted(peers, key=lambda peer: peer.start) if peer.end]


def loads(peer: Process) -> int:
    """How often it has told that it reads weights."""
    return sum(event["event"] == "loading" and event["done"] != 0 for event in peer.events())


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
