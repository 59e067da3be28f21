"""A volunteer at a terminal: what the peer sends is bounded, and a key has it rest and serve again."""

import os
import pty
import time
from dataclasses import replace
from pathlib import Path

import pytest
from openai import OpenAI

from peer.pacing import BURST
from tests.cluster import Cluster
from tests.e2e.rpc import Caller
from tests.recorder import Recorder

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif("POOLED_SOAK" not in os.environ, reason="asked by make soak"),
]

LONG = "Tell me of the sea and its many ships. " * 12
RATE = 20_000
"""Bytes a second, of which the hidden states of LONG take several."""

BESIDE = 20_000
"""Bytes that are no frames: handshakes, what the peer says of itself, heartbeats."""

NOWHERE = ["--advertise", "127.0.0.1:9", "--listen", "127.0.0.1:0"]
"""Makes the peer before this one send its frames through the room."""


def answer(cluster: Cluster) -> str:
    with OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=120) as client:
        reply = client.chat.completions.create(
            model="pooled", messages=[{"role": "user", "content": LONG}], max_tokens=8, temperature=0
        )
    return reply.choices[0].message.content or ""


def until(cluster: Cluster, first: str, *, ready: bool) -> None:
    """Wait until the first peer is in that state, and the room is ready to answer or not."""
    deadline = time.monotonic() + 240
    with Caller(cluster.client_invite) as caller:
        while (now := caller.state()).ready is not ready or [p.state for p in now.peers if p.name == "first"] != [
            first
        ]:
            assert time.monotonic() < deadline, "".join(peer.said() for peer in cluster.peers)
            time.sleep(0.1)


def test_a_peer_at_a_terminal_sends_no_more_than_it_may_and_rests_at_a_key(
    tiny: Path, tiny_room: Cluster, tmp_path: Path
) -> None:
    keyboard, terminal = pty.openpty()
    host = ["--devices", "2", "--wire", "f32"]
    with Cluster(tiny, tmp_path, peers=0, host=host, threads=1) as cluster, Recorder(cluster.invite.port) as line:
        began = time.monotonic()
        at_terminal = {"prefix": ["setsid", "--ctty"], "stdin": terminal}
        slow = ["--max-upload", f"{RATE // 1000}KB"]
        first = cluster.join(*slow, name="first", invite=replace(cluster.invite, port=line.port), **at_terminal)
        until(cluster, "joining", ready=False)
        cluster.join(*NOWHERE)
        cluster.wait_ready()
        said = answer(tiny_room)
        assert answer(cluster) == said
        sent = sum(len(each.sent) for each in line.connections)
        passed = time.monotonic() - began
        assert sent > 2 * BESIDE, "frames went that way"
        assert sent <= RATE * (passed + BURST) + BESIDE

        os.write(keyboard, b"p")
        until(cluster, "paused", ready=True)
        assert answer(cluster) == said, "the other one has taken over"
        os.write(keyboard, b"p")
        first.until(lambda event: "ready to take over" in event.get("text", "") or None, "that it is a spare")
        assert [event["text"] for event in first.events() if event["event"] == "resting"] == [
            "resting; others take over",
            "ready to serve again",
        ]
    os.close(keyboard)
    os.close(terminal)
