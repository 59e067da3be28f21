"""The models of the end-to-end tests, and a room that the tests of this folder share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.rounds import Chaos, opened
from tests.e2e.conftest import gguf, quick_start, tiny

__all__ = ["gguf", "quick_start", "tiny"]


@pytest.fixture(scope="package")
def chaos(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    lost_for = 30.0 if "POOLED_SOAK" in os.environ else 13.0
    with opened(tiny, tmp_path_factory.mktemp("chaos"), seed=5, lost_for=lost_for) as made:
        yield made
