"""One event loop for all tests of a module: import both fixtures there.

gRPC completes what a test has cancelled a moment later, and breaks over a loop that is closed by then.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

SETTLE = 0.2
"""Seconds for the last test's calls."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    yield
    await asyncio.sleep(SETTLE)
