"""`pooled serve`: what is wrong on its command line is one sentence, before anything is started."""

from pathlib import Path

import pytest

from cli import main

INVITE = "pooled://127.0.0.1:7070/ABC234#k=key&f=none"


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.logs.configure", lambda options: None)
    monkeypatch.delenv("POOLED_INVITE", raising=False)
    monkeypatch.delenv("POOLED_TOKEN", raising=False)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The sentence on stderr of a command line that is wrong."""
    assert main.run(["serve", INVITE, *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pooled: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("origin", ["chat.example", "*", "null", "https://chat.example/path", ""])
def test_a_bad_origin(origin: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--allow-origin", "https://fine.example", "--allow-origin", origin)
    assert f"{origin!r} is not an origin; one looks like https://chat.example" in said


@pytest.mark.parametrize("token", ["two words", "caf\u00e9", "line\nbreak"])
def test_a_bad_token_is_not_shown(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--token", token)
    assert "the token must be one or more visible ASCII characters without blanks" in said
    assert token not in said


def test_a_bad_token_of_the_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLED_TOKEN", "two words")
    assert "the token must be" in refused(capsys)


def test_a_bad_token_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("two words\n")
    assert "the token must be" in refused(capsys, "--token-file", str(file))


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--port", "70000", "--port"),
        ("--max-queue", "0", "--max-queue"),
        ("--keepalive", "nan", "keepalive"),
        ("--keepalive", "inf", "keepalive"),
        ("--keepalive", "0", "--keepalive"),
    ],
)
def test_a_bad_number(option: str, value: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(capsys, option, value)
