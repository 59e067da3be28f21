"""Section E: temperature and top_k, as the sampling peer is told."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.rig import Rig, line, running

pytestmark = pytest.mark.anyio


async def sample(rig: Rig, **members: Any) -> tuple[float, int]:
    seen = (await rig.see(**members))["sample"]
    assert (seen["top_p"], seen["min_p"], seen["repetition_penalty"]) == (1, 0, 1)
    return seen["temperature"], seen["top_k"]


@pytest.fixture(scope="module")
async def warm(anyio_backend: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """A room with a setting of its own."""
    async with running(tiny, tmp_path_factory.mktemp("warm"), temperature=0.6, top_k=17) as rig:
        rig.play(line("ok"))
        yield rig


@pytest.mark.parametrize("members", [{}, {"temperature": None, "top_k": None}])
async def test_P47_P51_absent_and_null_follow_the_room(rig: Rig, warm: Rig, members: dict[str, Any]) -> None:
    assert await sample(warm, **members) == (0.6, 17)
    assert await sample(rig, **members) == (0, 0)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"top_k": 5}, (0.8, 5)),
        ({"temperature": 1}, (1, 40)),
        ({"temperature": 2}, (2, 40)),
        ({"temperature": 0}, (0, 40)),
        ({"temperature": 0.0}, (0, 40)),
        ({"temperature": 0.3, "top_k": 64}, (0.3, 64)),
        ({"temperature": 0.3, "top_k": 65}, (0.3, 64)),
        ({"top_k": 1000}, (0.8, 64)),
        ({"top_k": 1}, (0.8, 1)),
        ({"temperature": 1.1, "top_k": None}, (1.1, 40)),
        ({"temperature": None, "top_k": 7}, (0.8, 7)),
    ],
)
async def test_P45_P48_P49_P50_P51_what_is_asked_goes_before_the_room(
    warm: Rig, members: dict[str, Any], expected: tuple[float, int]
) -> None:
    assert await sample(warm, **members) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", value) for value in (-0.01, 2.01, "1", True)] + [("top_k", value) for value in (0, -1, 1.5, "4")],
)
async def test_P45_P50_others_never_reach_the_room(rig: Rig, name: str, value: Any) -> None:
    assert (await rig.refused(**{name: value}))["param"] == name
