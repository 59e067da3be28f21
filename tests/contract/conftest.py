from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.models import LEVELS, WREN, save_thinker
from tests.contract.rig import Rig, line, running
from tests.tiny_model import save_tiny_chat

CTX = 4096


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for this folder, so that a room and its bridge can serve all of it."""
    return "asyncio"


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every byte is a token, with a ChatML template: it neither thinks nor knows tools."""
    return save_tiny_chat(tmp_path_factory.mktemp("tiny"), layers=1, ctx=CTX)


@pytest.fixture(scope="package")
async def shared_rig(anyio_backend: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tiny, tmp_path_factory.mktemp("script"), model_name="tiny") as rig:
        yield rig


@pytest.fixture(scope="package")
async def shared_thinker(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    model = save_thinker(tmp_path_factory.mktemp("thinker"), template=WREN.read_text(), ctx=CTX)
    async with running(model, tmp_path_factory.mktemp("script")) as rig:
        yield rig


@pytest.fixture(scope="package")
async def shared_levels(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    model = save_thinker(tmp_path_factory.mktemp("levels"), template=LEVELS, ctx=CTX)
    async with running(model, tmp_path_factory.mktemp("script")) as rig:
        yield rig


@pytest.fixture
async def rig(shared_rig: Rig) -> Rig:
    """A room and a bridge, with a short answer as their script."""
    return await _fresh(shared_rig)


@pytest.fixture
async def thinker(shared_thinker: Rig) -> Rig:
    """The same with a model that opens its thoughts itself and writes calls as JSON between tags."""
    return await _fresh(shared_thinker)


@pytest.fixture
async def levels(shared_levels: Rig) -> Rig:
    """The same with a model whose prompt opens the thoughts, that knows levels of effort, and writes calls as XML."""
    return await _fresh(shared_levels)


async def _fresh(rig: Rig) -> Rig:
    await rig.at_rest()
    rig.play(line("ok"))
    return rig
