import importlib.util
import os
from pathlib import Path

import pytest

from room.model import Model, inspect
from tests.room.text.kinds import smollm2_gguf


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The embedded model, whose text files take seconds to extract: once for all processes of a run."""
    gguf = smollm2_gguf()
    if importlib.util.find_spec("torch") is None:
        pytest.skip("extracting a GGUF needs torch")
    own = tmp_path_factory.getbasetemp()
    return inspect(str(gguf), None, (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "embedded")


@pytest.fixture(scope="session")
def smollm2(embedded: Model) -> Path:
    """The embedded model's text files."""
    return embedded.text_dir
