"""Clients that vanish leave nothing behind and disturb nobody."""

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from openai import OpenAI

from protos import room_pb2
from tests.cluster import Cluster
from tests.e2e.rpc import Caller
from tests.proxy import SlowLink

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SOAK = "POOLED_SOAK" in os.environ

LONG = "Tell me of the sea. " * 30


def ask(base_url: str, question: str, **options: object) -> str:
    with OpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=120) as client:
        reply = client.chat.completions.create(
            model="pooled", messages=[{"role": "user", "content": question}], temperature=0, **options
        )
    return reply.choices[0].message.content or ""


def vanish(base_url: str, question: str, *, stream: bool, after: float) -> None:
    """Send a request and cut the connection."""
    host, port = base_url.removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps(
        {"model": "pooled", "messages": [{"role": "user", "content": question}], "max_tokens": 300, "stream": stream}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(after)


def settled(caller: Caller, within: float = 120.0) -> room_pb2.RoomState:
    """The room's state once it is at rest, or the last one seen."""
    deadline = time.monotonic() + within
    while True:
        state = caller.state()
        if (state.running, state.waiting, state.pages_free) == (0, 0, state.pages) or time.monotonic() > deadline:
            return state
        time.sleep(0.1)


def test_twenty_clients_that_vanish_leave_nothing_behind(tiny_room: Cluster) -> None:
    before = ask(tiny_room.base_url, "What is left?", max_tokens=20)
    with ThreadPoolExecutor(20) as pool:
        for number in range(20):
            # Four run, the others wait; long and short prompts are read and written when they are cut.
            question = LONG if number % 2 else "Tell me a story."
            pool.submit(vanish, tiny_room.base_url, question, stream=number % 3 > 0, after=0.05 * (number % 5) + 0.02)
    with Caller(tiny_room.client_invite) as caller:
        state = settled(caller)
    assert (state.running, state.waiting) == (0, 0)
    assert state.pages_free == state.pages
    assert ask(tiny_room.base_url, "What is left?", max_tokens=20) == before


def test_a_prefill_cancelled_behind_a_slow_link_does_not_disturb_who_gets_its_pages(tiny: Path, tmp_path: Path) -> None:
    """The pool holds one conversation: who comes next gets the very pages that late frames still name."""
    host = ["--max-running", "1", "--ctx", "1024"]
    with (
        Cluster(tiny, tmp_path, peers=0, host=[*host, "--devices", "2"], threads=1) as cluster,
        SlowLink(cluster.invite.port, delay=0.3) as link,
    ):
        behind = replace(cluster.invite, port=link.port)
        for _ in range(2):
            cluster.join(invite=behind)
        cluster.wait_ready()
        undisturbed = ask(cluster.base_url, "Who are you?", max_tokens=8)
        for _ in range(3 if SOAK else 1):
            vanish(cluster.base_url, LONG, stream=True, after=0.5)
            assert ask(cluster.base_url, "Who are you?", max_tokens=8) == undisturbed
        with Caller(cluster.client_invite) as caller:
            state = settled(caller)
        assert state.pages == 64
        assert state.pages_free == 64
        for peer in cluster.peers:
            peer.end()
