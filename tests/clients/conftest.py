from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import rooms
from tests.clients.environments import HERE
from tests.clients.rooms import QUESTIONS, Server


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """These tests install packages and take minutes: they run where the command line names them, and not with all."""
    named = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(HERE in (path, *path.parents) for path in named) else True


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with rooms.real(tmp_path_factory.mktemp("real")) as server:
        yield server


@pytest.fixture(scope="session")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Says a text and makes two calls."""
    with rooms.scripted(tmp_path_factory.mktemp("calling"), rooms.two_calls()) as server:
        yield server


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Fails in the middle of each answer."""
    text = QUESTIONS["broken"]["text"]
    with rooms.scripted(tmp_path_factory.mktemp("broken"), [text], fault="error") as server:
        yield server


@pytest.fixture(scope="session")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Begins each answer and never ends it; one runs, one waits, more are refused."""
    folder, text = tmp_path_factory.mktemp("hanging"), QUESTIONS["hanging"]["text"]
    with rooms.scripted(
        folder, [text], fault="hang", host=["--max-running", "1"], serve=["--max-queue", "1"]
    ) as server:
        yield server


@pytest.fixture
def full(hanging: Server) -> Iterator[Server]:
    """Refuses whoever comes."""
    with rooms.filled(hanging) as server:
        yield server
