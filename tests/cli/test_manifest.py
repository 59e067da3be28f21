"""`pooled manifest` and the file it is to write."""

from pathlib import Path

import pytest

from cli import main


def test_what_cannot_be_written_is_told_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "none" / "x"
    assert main.run(["manifest", str(tmp_path / "no model either"), "-o", str(output)]) == 1
    assert f"cannot write the manifest to {output}" in capsys.readouterr().err


def test_nothing_is_left_or_lost_when_reading_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("a manifest")
    for output in (new, old):
        assert main.run(["manifest", str(tmp_path / "no model"), "-o", str(output)]) == 1
        assert "cannot write" not in capsys.readouterr().err
    assert not new.exists()
    assert old.read_text() == "a manifest"
