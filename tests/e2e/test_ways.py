"""Peers and bridges in networks that let nothing out but HTTP."""

import asyncio
import json
import os
import re
import struct
import time
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from bridge.app import run_bridge
from bridge.config import BridgeConfig
from protos.invite import Invite
from room.app import run_host
from room.config import RoomConfig
from tests.cluster import Cluster, free_port
from tests.contract.rig import started
from tests.e2e.nginx import nginx
from tests.recorder import Recorder

SOAK = "POOLED_SOAK" in os.environ

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

IDLE = 90.0 if SOAK else 7.0
"""Seconds without a request. nginx gives up after three in which nothing comes."""

QUESTION = "Tell me of the sea and its many ships."
TELLING, BETWEEN = 20, 64
"""Bytes of a text that are not there by chance, though up to so many others lie between each two of them."""

NOWHERE = ["--listen", "127.0.0.1:0", "--advertise", "127.0.0.1:9"]
"""Makes the peer before this one take the way through the room, so that frames go through both proxies."""


def answer(base_url: str) -> str:
    with OpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=120) as client:
        reply = client.chat.completions.create(
            model="pooled", messages=[{"role": "user", "content": QUESTION}], max_tokens=60, temperature=0
        )
    return reply.choices[0].message.content or ""


def test_through_nginx_and_through_a_connect_proxy(tiny: Path, tiny_room: Cluster, tmp_path: Path) -> None:
    """One peer and one bridge dial wss:// through nginx, the others gRPC through CONNECT: nobody loses the room."""
    port = free_port()
    with Recorder(port) as behind_nginx, nginx(tmp_path / "nginx", behind_nginx.port) as url, Recorder() as connect:
        trusting = {"SSL_CERT_FILE": str(tmp_path / "nginx" / "certificate.pem")}
        proxied = {"https_proxy": f"http://127.0.0.1:{connect.port}", "no_proxy": ""}
        host = ["--devices", "2", "--ws-listen", f"127.0.0.1:{port}", "--ws-public", url]
        with Cluster(tiny, tmp_path, peers=0, host=host, join=NOWHERE, threads=1) as cluster:
            told: dict[str, Any] = cluster.room.event("listening")
            peer, client = (Invite.parse(told[side][1]) for side in ("peer", "client"))
            peers = [cluster.join(invite=peer, env=trusting), cluster.join(env=proxied)]
            bridges = [
                cluster.start("b1", "serve", "--port", "0", "--json", invite=client, env=trusting),
                cluster.start("b2", "serve", "--port", "0", "--json", invite=True, env=proxied),
            ]
            cluster.wait_ready()
            urls = [str(bridge.event("listening")["base_url"]) for bridge in bridges]
            said = answer(tiny_room.base_url)
            assert [answer(each) for each in urls] == [said, said]
            time.sleep(IDLE)
            assert [answer(each) for each in urls] == [said, said]
            for process in (*peers, *bridges):
                assert not [event for event in process.events() if event["event"] == "reconnecting"]
                assert "lost the room" not in process.said()
    heard = [payload(each.sent, masked=True) + payload(each.answered) for each in behind_nginx.connections]
    heard += [bytes(each.sent + each.answered) for each in connect.connections]
    assert sum(map(len, heard)) > 100_000
    assert not any(tells(each, text) for each in heard for text in (QUESTION, said))


@pytest.mark.anyio
async def test_the_same_look_at_a_plain_link_finds_prompt_and_answer(tiny: Path, tmp_path: Path) -> None:
    said, script = "The sea is wide and old, and no ship is as old as the sea.", tmp_path / "script.jsonl"
    script.write_text(json.dumps({"tokens": [said]}))
    config = RoomConfig(str(tiny), listen="127.0.0.1:0", scripted=script, insecure=True)
    async with started(run_host, config) as opened:
        with Recorder(opened.clients[0].port) as link:
            invite = replace(opened.clients[0], port=link.port)
            async with started(run_bridge, BridgeConfig(port=0), invite) as base_url:
                assert await asyncio.to_thread(answer, base_url) == said
    heard = b"".join(bytes(each.sent + each.answered) for each in link.connections)
    assert tells(heard, QUESTION)
    assert tells(heard, said)


def tells(heard: bytes, text: str) -> bool:
    """Whether some of a text can be read in what somebody on the way has heard, also where it came bit by bit."""
    data = text.encode()
    return any(in_order(data[at : at + TELLING], heard) for at in range(0, len(data) - TELLING, TELLING // 2))


def in_order(part: bytes, heard: bytes) -> bool:
    """Whether its bytes come one after the other with little between them: what frames one message of several."""
    places = {byte: [found.start() for found in re.finditer(re.escape(bytes([byte])), heard)] for byte in set(part)}
    ends = places[part[0]]
    for wanted in part[1:]:
        later = places[wanted]
        before = [bisect_left(ends, at) for at in later]
        ends = [at for at, count in zip(later, before, strict=True) if count and at - ends[count - 1] <= BETWEEN]
    return bool(ends)


def payload(data: bytearray, masked: bool = False) -> bytes:
    """What the messages of a WebSocket carry, one way."""
    at, out = data.index(b"\r\n\r\n") + 4, bytearray()
    while at + 2 <= len(data):
        size, at = data[at + 1] & 0x7F, at + 2
        if size > 125:
            form = ">H" if size == 126 else ">Q"
            (size,) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
        mask = data[at : at + 4] if masked else bytes(4)
        at += 4 * masked
        out += bytes(byte ^ mask[place % 4] for place, byte in enumerate(data[at : at + size]))
        at += size
    return bytes(out)
