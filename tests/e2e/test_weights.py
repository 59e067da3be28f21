"""Where real peers get their slices from: each its own alone, from each other before the room, and once.

`tests/peer/test_supply.py` asks the same without processes.
"""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.progress import FETCHING
from room.headers import read_gguf, read_safetensors
from tests.cluster import Cluster, Process
from tests.proxy import SlowLink
from tests.tiny_model import save_tiny_chat

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("POOLED_SOAK" not in os.environ, reason="asked by make soak"),
]

SLOW = 600.0
"""Seconds that a busy machine gets to load a model."""


@pytest.fixture(scope="module", params=["gguf", "safetensors"])
def model(request: pytest.FixtureRequest, gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, and a random one of 40 MB whose embedding is tied."""
    if request.param == "gguf":
        return gguf
    fields = {"hidden_size": 256, "intermediate_size": 1024, "tie_word_embeddings": True}
    return save_tiny_chat(tmp_path_factory.mktemp("model"), layers=12, **fields)


def size(model: Path) -> tuple[int, int]:
    """Bytes of the weights, and of the embedding among them."""
    tensors = read_safetensors(model / "model.safetensors") if model.is_dir() else read_gguf(model).tensors
    file = model / "model.safetensors" if model.is_dir() else model
    return file.stat().st_size, next(info.size for name, info in tensors.items() if "emb" in name)


def fetched(peer: Process) -> dict[str, Any]:
    """By source: bytes that came since it started, once it holds a slice."""
    return peer.until(lambda event: event.get("fetched"), "fetched", SLOW)


def test_a_room_of_peers_fetches_its_model_once(model: Path, tmp_path: Path) -> None:
    whole, embedding = size(model)
    with Cluster(model, tmp_path, peers=0, host=["--devices", "3"], threads=1, fetch=True, patience=SLOW) as cluster:
        peers = [cluster.join("--cache", str(tmp_path / f"cache{number}")) for number in range(3)]
        cluster.wait_ready()
        came = [sum(fetched(peer).values()) for peer in peers]
        print(f"{model.name}: {came}, {sum(came) / (whole + embedding):.3f} of the model with two embeddings")
        assert sum(came) <= 1.1 * (whole + embedding)

        spare = cluster.join("--cache", str(tmp_path / "spare"))
        sources = fetched(spare)
        print(f"a spare: {sources}")
        assert sources["the room"] <= 0.5 * sum(sources.values())

        spare.signal(signal.SIGKILL)
        again = cluster.join("--cache", str(tmp_path / "spare"), name=spare.name + " again")
        assert fetched(again) == {}


def test_a_fetch_that_is_killed_half_way_goes_on_from_there(model: Path, tmp_path: Path) -> None:
    whole, _ = size(model)
    with (
        Cluster(model, tmp_path, peers=0, host=["--devices", "1"], threads=1, fetch=True, patience=SLOW) as cluster,
        SlowLink(cluster.invite.port, rate=whole / 8) as link,
    ):
        invite = replace(cluster.invite, port=link.port)
        first = cluster.join(invite=invite)
        first.until(lambda event: event.get("done", 0) > 0.5 * FETCHING or None, "half", SLOW)
        first.signal(signal.SIGKILL)
        cluster.peers.remove(first)
        link.rate = None
        second = cluster.join(invite=invite, name="p1 again")
        came = sum(fetched(second).values())
        print(f"{model.name}: {came / whole:.2f} of the model fetched the second time")
        assert came <= 0.6 * whole
        cluster.wait_ready()


def test_loading_is_told_at_least_once_a_second(model: Path, tmp_path: Path) -> None:
    with Cluster(model, tmp_path, peers=1, threads=1, fetch=True, patience=SLOW) as cluster:
        (peer,) = cluster.peers
        told = [event for event in peer.events() if event["event"] == "loading"]
        assert all({"done", "rate"} <= event.keys() for event in told)
        assert any(event.get("seconds_left") for event in told)


def test_a_peer_that_cannot_be_dialled_gives_through_a_room_that_has_nothing(model: Path, tmp_path: Path) -> None:
    copied = tmp_path / f"copied{model.suffix}"
    (shutil.copytree if model.is_dir() else shutil.copy)(model, copied)
    nowhere = ("--listen", "127.0.0.1:0", "--advertise", "192.0.2.1:1")
    with Cluster(copied, tmp_path, peers=0, host=["--devices", "1"], threads=1, fetch=True, patience=SLOW) as cluster:
        cluster.join("--cache", str(tmp_path / "first"), *nowhere)
        cluster.wait_ready()
        (copied / "model.safetensors" if copied.is_dir() else copied).unlink()
        sources = fetched(cluster.join("--cache", str(tmp_path / "second"), *nowhere))
        print(f"{model.name}: {sources}")
        through = sum(size for name, size in sources.items() if name.endswith("through the room"))
        assert through > 0.8 * sum(sources.values())
