import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Commands set up logging for a process of their own: put it back as pytest had it."""
    root, pooled = logging.getLogger(), logging.getLogger("pooled")
    handlers, levels = root.handlers[:], (root.level, pooled.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    pooled.setLevel(levels[1])
    logging.captureWarnings(False)
