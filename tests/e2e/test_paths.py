"""Peers that cannot reach each other meet through the room, and straight as soon as they can, also in mid-answer."""

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protos.invite import Invite
from tests.cluster import Cluster, Process
from tests.e2e.namespaces import Triangle, triangle
from tests.proxy import SlowLink

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

QUESTION = "Tell me of the sea."
BEGUN = 200
"""Characters of an answer after which it counts as being under way."""

DELAY = 0.05
"""Seconds one way between each peer and the room while ways are measured; there is none between the peers. So how far
the round trip falls does not depend on how quick this machine is."""

HANGING = 120.0
"""Seconds after which what has not come never will. How soon a way is to be used, tests/peer/test_onward.py says."""

LEAST_CROSSING = BEGUN // 8 * 64 * 4
"""Bytes of hidden states for so many characters: the tiny model's tokens are shorter than 8, its rows 64 in float32."""


class Room:
    """A room in a namespace, a peer in each of two others, a bad way between, and clients beside the room."""

    def __init__(self, cluster: Cluster, nets: Triangle, stack: ExitStack) -> None:
        self.cluster = cluster
        self.nets = nets
        host = ["--listen", "0.0.0.0:7070", "--devices", "2", "--no-lend", "--wire", "f32", "--json"]
        self.process = cluster.start("room", "host", cluster.model, *host, prefix=nets.room.prefix)
        told: dict[str, Any] = self.process.event("listening")
        self.invite, self.client_invite = (
            Invite.parse(told[side][0]).from_here("127.0.0.1:7070") for side in ("peer", "client")
        )
        self.far = stack.enter_context(SlowLink(7070, delay=DELAY, listen="0.0.0.0", enter=nets.room.enter))
        for number, net in enumerate(nets.peers):
            invite = replace(self.invite, host=nets.room_at(number), port=self.far.port)
            cluster.join(invite=invite, prefix=net.prefix)
        self.process.event("ready")

    def link(self) -> tuple[bool, float]:
        """Whether the first peer reaches the second one straight, and the round trip in seconds."""
        status = self._client("status", "--json")
        assert status.popen.wait(HANGING) == 0, status.said()
        first = min(json.loads(status.out.read_text())["peers"], key=lambda peer: peer["start"])
        return first["direct"], first["round_trip"]

    def until(self, *, direct: bool) -> float:
        """The round trip, once frames go that way and it is measured."""
        deadline = time.monotonic() + HANGING
        while (link := self.link())[0] is not direct or not link[1]:
            assert time.monotonic() < deadline, "".join(peer.said() for peer in self.cluster.peers)
        return link[1]

    def ask(self) -> Process:
        return self._client("chat", QUESTION)

    def _client(self, command: str, *arguments: str) -> Process:
        name = f"client{len(self.cluster.processes)}"
        return self.cluster.start(name, command, str(self.client_invite), *arguments, prefix=self.nets.room.prefix)


def said(client: Process) -> str:
    assert client.popen.wait(HANGING) == 0, client.said()
    return client.out.read_text()


def under_way(client: Process) -> None:
    while len(client.out.read_text()) < BEGUN:
        assert client.popen.poll() is None, client.said()
        time.sleep(0.01)


def test_links_change_over_when_a_way_between_peers_comes_and_goes(
    tiny: Path, tiny_room: Cluster, tmp_path: Path
) -> None:
    undisturbed = said(tiny_room.start("alone", "chat", str(tiny_room.client_invite), QUESTION))
    assert len(undisturbed) > 2 * BEGUN
    with triangle() as nets, Cluster(tiny, tmp_path, threads=1, started=False) as cluster, ExitStack() as stack:
        room = Room(cluster, nets, stack)
        relayed = room.until(direct=False)
        assert relayed >= 4 * DELAY  # there and back by way of the room
        room.far.delay = 0.0  # what the peers measured stands, and answers need not take long
        assert said(room.ask()) == undisturbed
        asked = room.ask()
        under_way(asked)
        nets.wire(whole=True)
        assert said(asked) == undisturbed
        assert room.until(direct=True) < relayed
        carried = nets.between()
        asked = room.ask()
        under_way(asked)
        assert nets.between() > carried + LEAST_CROSSING
        nets.wire(whole=False)
        assert said(asked) == undisturbed
        assert not room.link()[0]
        assert all(event["event"] != "reconnecting" for peer in cluster.peers for event in peer.events())
