"""P4: where the bridge's token comes from."""

from pathlib import Path

import pytest

from cli.client_token import client_token
from cli.errors import Failed, WrongUse


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("  from-file\n")
    return path


def test_P4_a_file_goes_before_the_variable_before_the_option(file: Path) -> None:
    environ = {"POOLED_TOKEN": "from-variable"}
    assert client_token(file, environ, "from-option")[0] == "from-file"
    assert client_token(None, environ, "from-option")[0] == "from-variable"
    assert client_token(None, {}, "from-option")[0] == "from-option"
    assert client_token(None, {}, None) == (None, [])


@pytest.mark.parametrize("value", ["", " \n"])
def test_P4_an_empty_variable_counts_as_unset(value: str) -> None:
    assert client_token(None, {"POOLED_TOKEN": value}, None) == (None, [])


def test_P4_the_option_warns_that_others_can_read_it(file: Path) -> None:
    assert ["read" in warning for warning in client_token(None, {}, "t")[1]] == [True]
    assert "--token is ignored: --token-file" in client_token(file, {}, "t")[1][1]
    assert "--token is ignored: POOLED_TOKEN" in client_token(None, {"POOLED_TOKEN": "v"}, "t")[1][1]
    assert client_token(file, {"POOLED_TOKEN": "v"}, None)[1] == []


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_P4_an_empty_or_unreadable_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(Failed, match=str(path)):
        client_token(path, {"POOLED_TOKEN": "v"}, "t")


def test_P4_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot read the token"):
        client_token(tmp_path / "nowhere", {}, None)


def test_P4_an_empty_option_is_wrong_use() -> None:
    with pytest.raises(WrongUse):
        client_token(None, {}, " ")
