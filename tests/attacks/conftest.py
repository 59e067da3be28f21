import pytest

from tests.peer.sites import Pinned
from tests.tiny_model import save_tiny, save_tiny_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Pinned:
    """A tiny model and its manifest."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny("llama", folder)
    save_tiny_tokenizer(folder)
    return Pinned(folder, folder / "cache")
