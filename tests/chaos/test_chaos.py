"""Peers die, hang and leave, links break and the room restarts, while requests are queued, prefilling and decoding.

`make test` does a seeded sample of it, `make soak` every fault many times.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.chaos.rounds import FAULTS, Chaos
from tests.cluster import Cluster
from tests.e2e.rpc import Caller

SOAK = "POOLED_SOAK" in os.environ

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600 if SOAK else 600)]

ENDS_OF_A_ROOM = frozenset({"pipeline_lost", "room_unavailable", "shutting_down", "loading", "cancelled_by_room"})
"""What a request may end with when its room is restarted."""


@pytest.mark.parametrize("fault", [*FAULTS, *("kill",) * 43] if SOAK else ["kill", "stop_briefly", "cut"])
def test_every_answer_is_the_one_of_an_undisturbed_room(chaos: Chaos, fault: str) -> None:
    outcomes = chaos.round(fault)
    print(f"{fault}: longest pause {max(outcome.pause for outcome in outcomes):.1f} s")
    assert chaos.wrong(outcomes) == []


@pytest.mark.parametrize("number", range(10 if SOAK else 1))
def test_a_restarted_room_takes_everybody_back_and_no_request_ends_in_silence(chaos: Chaos, number: int) -> None:
    before = {peer.name: (peer.start, peer.end) for peer in chaos.state().peers}
    outcomes = chaos.round("restart_room")
    assert chaos.wrong(outcomes, may_end_with=ENDS_OF_A_ROOM) == []
    assert any(outcome.error for outcome in outcomes)
    assert {peer.name: (peer.start, peer.end) for peer in chaos.state().peers} == before
    with chaos.asking(4) as futures:
        pass
    assert chaos.wrong([future.result() for future in futures]) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=False).returncode:
        pytest.skip("only root may mount a disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.skipif(not SOAK, reason="make soak: loads a model that is not tiny")
@pytest.mark.model
def test_a_disk_that_is_full_while_a_peer_loads_costs_that_peer_only(
    gguf: Path, tmp_path: Path, small_disk: Path
) -> None:
    question = [{"role": "user", "content": "What is a KV cache?"}]
    with (
        Cluster(gguf, tmp_path, host=["--ctx", "1024"], threads=1, fetch=True) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=300) as client,
        Caller(cluster.client_invite) as caller,
    ):
        cluster.join("--cache", str(small_disk)).event("joined")
        text, twin = "", ""
        for number, chunk in enumerate(
            client.chat.completions.create(model="pooled", messages=question, max_tokens=60, temperature=0, stream=True)
        ):
            text += chunk.choices[0].delta.content or ""
            if number == 10:
                cluster.peers[1].popen.kill()
        (failed,) = [peer for peer in caller.state().peers if peer.state == "failed"]
        assert failed.name == "p3"
        assert "free some space" in failed.why
        reply = client.chat.completions.create(model="pooled", messages=question, max_tokens=60, temperature=0)
        twin = reply.choices[0].message.content or ""
        assert text == twin
