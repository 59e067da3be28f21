from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("pooled", deadline=None)
settings.load_profile("pooled")


@pytest.fixture
def anyio_backend() -> str:
    """grpc.aio runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rooms of tests leave nothing in the user's home, and see nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def forked_peers() -> Iterator[None]:
    """Peers of clusters share what it takes to load torch."""
    from tests.cluster import Cluster
    from tests.warm import warm

    with warm() as Cluster.warm:
        yield
    Cluster.warm = None
