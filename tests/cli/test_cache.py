"""`pooled cache` on a folder with two files."""

import json
import os
from pathlib import Path

import pytest

from cli import main
from tests.peer.test_store import fill, weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from peer.store import Store
    from protos.manifest import Manifest

    for first in (1, 11):
        store = Store(tmp_path)
        path = fill(store, weights(first), first, 0, 1, 2, 3)
        store.keep_small(Manifest(f"Model-{first}", None, None, (), (weights(first),)).text())
        for descriptor in store._open.values():
            os.close(descriptor)
        os.utime(path, (first, first))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["cache", *arguments]) == 0
    return capsys.readouterr().out


def test_what_is_there_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "list", "--cache", str(folder))
    assert said.index("Model-1: model.safetensors") < said.index("Model-11: model.safetensors")
    assert "0.3 MB in" in said


def test_what_was_used_longest_ago_is_deleted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "kept 0.2 MB" in run(capsys, "prune", "--to", "200KB", "--cache", str(folder))
    said = run(capsys, "list", "--cache", str(folder))
    assert "Model-11:" in said
    assert "Model-1:" not in said
    assert "kept 0.0 MB" in run(capsys, "prune", "--cache", str(folder))


def test_an_empty_cache_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "list", "--cache", str(tmp_path / "none")).startswith("0.0 MB in")


def test_a_list_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(each) for each in run(capsys, "list", "--json", "--cache", str(folder)).splitlines())
    assert (first["used"], second["used"], first["in_use"]) == (1.0, 11.0, False)
    assert first["name"] == "Model-1: model.safetensors"
    assert Path(first["path"]).is_file()
    assert first["size"] > 0


@pytest.mark.parametrize("command", ["list", "prune"])
def test_what_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (tmp_path / "file").touch()
    assert main.run(["cache", command, "--cache", str(tmp_path / "file")]) == 2
    assert "is no folder" in capsys.readouterr().err
