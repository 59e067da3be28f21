"""The small parts of `pooled host`; the whole runs in tests/e2e."""

import stat
from pathlib import Path

import pytest

from cli.errors import Failed
from cli.host import _write_private
from cli.join import Lent
from cli.values import Memory


def test_the_invite_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "invite"
    file.write_text("older")
    file.chmod(0o644)
    _write_private(file, "newer\n")
    assert file.read_text() == "newer\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_invite_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot write the invite"):
        _write_private(tmp_path / "nowhere" / "invite", "")


def test_what_is_lent_as_a_command_line() -> None:
    lent = Lent(name="peer 1", memory=Memory(share=0.5), threads=2)
    assert lent.arguments == ("join", "--json", "--name=peer 1", "--memory=50.00%", "--threads=2")
    assert Lent().arguments == ("join", "--json")
