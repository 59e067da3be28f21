"""An answer goes on when a peer dies or leaves in the middle of it, and is the one it would have been."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from openai import OpenAI

from tests.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


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


def peers(cluster: Cluster) -> dict[str, str]:
    """As the host's own command lists them: states by name."""
    listing = cluster.start(f"peers{len(cluster.processes)}", "peers", "--json")
    assert listing.popen.wait(30) == 0, listing.said()
    found = map(json.loads, listing.out.read_text().splitlines())
    return {peer["name"]: peer["state"] for peer in found}


def until(cluster: Cluster, wanted: dict[str, str]) -> None:
    deadline = time.monotonic() + 60
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
        assert answer(client, then=lambda: cluster.peers[1].signal(signal.SIGTERM)) == undisturbed
        assert cluster.peers[1].popen.wait(40) == 0, cluster.peers[1].said()
        assert peers(cluster) == {"p1": "ready", "p3": "ready"}
        leave = cluster.start("leave", "leave", "p1")
        assert leave.popen.wait(50) == 0, leave.said()
        assert cluster.peers[0].popen.wait(10) == 0
        assert answer(client) == undisturbed
