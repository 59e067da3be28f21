import json
import logging
import warnings

import pytest

from cli import logs
from cli.logs import LogOptions


@pytest.mark.parametrize(
    ("argv", "options", "rest"),
    [
        ([], LogOptions(), []),
        (["--json-log", "demo"], LogOptions(json_lines=True), ["demo"]),
        (["join", "INVITE", "--json-log", "-v"], LogOptions(json_lines=True, verbose=1), ["join", "INVITE"]),
        (["-vv", "demo", "--verbose"], LogOptions(verbose=3), ["demo"]),
        (["chat", "INVITE", "--", "-v"], LogOptions(), ["chat", "INVITE", "--", "-v"]),
    ],
)
def test_log_options_are_taken_from_anywhere(argv: list[str], options: LogOptions, rest: list[str]) -> None:
    assert LogOptions.split(argv) == (options, rest)


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(json_lines=True, verbose=2)])
def test_a_child_gets_the_same_options(options: LogOptions) -> None:
    assert LogOptions.split(options.arguments) == (options, [])


@pytest.mark.parametrize(
    ("options", "level"),
    [
        (LogOptions(), logging.WARNING),
        (LogOptions(verbose=1), logging.INFO),
        (LogOptions(verbose=5), logging.DEBUG),
        (LogOptions(json_lines=True), logging.INFO),
        (LogOptions(json_lines=True, verbose=2), logging.DEBUG),
    ],
)
def test_levels(options: LogOptions, level: int) -> None:
    assert options.level == level


def test_json_lines_parse(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogOptions(json_lines=True))
    logging.getLogger("pooled.room").info("two\nlines of %s", "text", extra={"peer": "é", "path": object})
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        logging.getLogger("pooled.peer").exception("broken")
    logging.getLogger("other").warning("theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    first, second, third, fourth = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["message"], first["peer"]) == (
        "info",
        "pooled.room",
        "two\nlines of text",
        "é",
    )
    assert "ZeroDivisionError" in second["traceback"]
    assert third["logger"] == "other"
    assert "careful" in fourth["message"]


def test_plain_lines_show_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogOptions())
    logging.getLogger("pooled.bridge").info("quiet")
    logging.getLogger("pooled.bridge").warning("loud")
    assert capsys.readouterr().err == "WARNING pooled.bridge: loud\n"


def test_plain_lines_say_who_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogOptions())
    logging.getLogger("pooled.room").warning("peer left", extra={"peer": "p1", "why": "its stream\nbroke"})
    assert capsys.readouterr().err == "WARNING pooled.room: peer left (peer p1, why its stream broke)\n"
