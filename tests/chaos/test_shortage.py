"""A room of two peers that loses one and cannot hold the model: who waits goes on waiting until somebody joins."""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from room.deal import Deal, Offer, deal
from room.forms import Forms
from room.model import ModelShape, inspect
from tests.cluster import Cluster
from tests.e2e.rpc import Caller

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RUNNING = 1


def enough_for_half(shape: ModelShape) -> int:
    """Bytes with which two peers hold the model and one does not."""

    def fits(memory: int, peers: int) -> bool:
        offers = [Offer(str(peer), memory, 4, Forms()) for peer in range(peers)]
        return isinstance(deal(shape, offers, ctx=shape.ctx, sessions=RUNNING), Deal)

    memory = next(memory for memory in range(1 << 18, 1 << 30, 1 << 16) if fits(memory, 2))
    assert not fits(memory, 1)
    return memory


class Stream(threading.Thread):
    """An answer that is read in a thread of its own: its text, and the comments between."""

    def __init__(self, base_url: str, question: str) -> None:
        super().__init__(daemon=True)
        self.text, self.comments, self.error = "", [], None
        self._url = f"{base_url}/chat/completions"
        self._body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 150}
        self.start()

    def reaches(self, characters: int) -> None:
        until(lambda: len(self.text) >= characters)

    def run(self) -> None:
        with httpx.stream(
            "POST", self._url, json={**self._body, "model": "pooled", "stream": True}, timeout=300
        ) as reply:
            for line in reply.iter_lines():
                if line.startswith(": "):
                    self.comments.append(line[2:])
                elif line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    self.error = self.error or chunk.get("error")
                    self.text += "".join(each["delta"].get("content") or "" for each in chunk.get("choices", ()))


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_waits_goes_on_when_another_peer_joins(tiny: Path, tmp_path: Path) -> None:
    memory = str(enough_for_half(inspect(str(tiny), None, tmp_path).shape))
    host, serve = ["--max-running", str(RUNNING), "--speculate", "off"], ["--keepalive", "0.3"]
    with Cluster(tiny, tmp_path, host=host, serve=serve, memory=memory, threads=1) as cluster:
        with Caller(cluster.client_invite) as caller:
            doomed = next(peer for peer in caller.state().peers if peer.name == "p2")
        lacking = f"layers {doomed.start} to {doomed.end - 1} have no holder"
        questions = ("Tell me of the sea.", "Who are you?")
        twins = []
        for question in questions:
            twin = Stream(cluster.base_url, question)
            twin.join()
            twins.append(twin.text)
        while True:
            running = Stream(cluster.base_url, questions[0])
            running.reaches(1)
            waiting = Stream(cluster.base_url, questions[1])
            running.reaches(20)
            cluster.peers[1].signal(signal.SIGSTOP)
            if len(running.text) < len(twins[0]):
                break
            cluster.peers[1].signal(signal.SIGCONT)  # this process was too busy to see the middle of it: again
            waiting.join()
        cluster.peers[1].popen.kill()

        until(lambda: f"waiting for peers: {lacking}" in running.comments)
        # Only now: what comes before the room knows of the loss waits like the others.
        body = {"model": "pooled", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        refusal = httpx.post(f"{cluster.base_url}/chat/completions", json=body, timeout=240)
        assert refusal.status_code == 503
        assert refusal.json()["error"]["code"] == "no_pipeline"
        assert lacking in refusal.json()["error"]["message"]
        heard = len(running.comments)
        until(lambda: len(running.comments) > heard + 1)
        cluster.join()
        for stream, twin in zip((running, waiting), twins, strict=True):
            stream.join(240)
            assert stream.error is None
            assert stream.text == twin
        assert "peer left, resuming" in running.comments
