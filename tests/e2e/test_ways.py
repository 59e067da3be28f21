"""Peers and bridges in networks that let nothing out but HTTP."""

import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from protos.invite import Invite
from tests.cluster import Cluster, free_port
from tests.e2e.nginx import nginx
from tests.recorder import Recorder

SOAK = "POOLED_SOAK" in os.environ

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

IDLE = 90.0 if SOAK else 7.0
"""Seconds without a request. nginx gives up after three in which nothing comes."""

QUESTION = "Tell me of the sea and its many ships."
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
    assert all(text.encode() not in all_bytes for text in (QUESTION[:20], said[:10]) for all_bytes in heard)


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
