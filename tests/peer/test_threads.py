import os
from pathlib import Path

import pytest

from peer import threads


@pytest.mark.parametrize(
    ("limit", "cores", "expected"),
    [
        ("max 100000", 8, 8),
        ("200000 100000", 64, 2),
        ("250000 100000", 64, 2),
        ("50000 100000", 4, 1),
        ("800000 100000", 4, 4),
        ("", 4, 4),
    ],
)
def test_threads_follow_what_the_container_is_granted(
    limit: str, cores: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(f"{limit}\n")
    monkeypatch.setattr(threads, "_CPU_QUOTA", file)
    assert threads.usable(cores) == expected


def test_without_control_groups_all_cores_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_CPU_QUOTA", tmp_path / "none")
    assert threads.usable(4) == 4


@pytest.mark.parametrize(("said", "expected"), [(None, "100000"), ("7", "7")])
def test_the_environment_has_the_last_word_on_waiting(
    said: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if said is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", said)
    threads.settle_waiting()
    assert os.environ["GOMP_SPINCOUNT"] == expected
    monkeypatch.setenv("GOMP_SPINCOUNT", expected)  # so that it is undone
