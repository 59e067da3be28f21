"""Where log records go: stderr, as short lines for people or, with --json-log, as one JSON object a line."""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_VERBOSITY = {"--json-log": 0, "-v": 1, "--verbose": 1, "-vv": 2}
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

log = logging.getLogger("pooled.cli")


@dataclass(frozen=True)
class LogOptions:
    json_lines: bool = False
    verbose: int = 0

    @classmethod
    def split(cls, argv: Sequence[str]) -> tuple["LogOptions", list[str]]:
        """Take the log options out of `argv`, wherever before `--` they stand, and return them and the rest.

        People put `--json-log` behind the command's name as often as before it.
        """
        end = argv.index("--") if "--" in argv else len(argv)
        taken = [arg for arg in argv[:end] if arg in _VERBOSITY]
        rest = [arg for arg in argv[:end] if arg not in _VERBOSITY]
        return cls("--json-log" in taken, sum(_VERBOSITY[arg] for arg in taken)), [*rest, *argv[end:]]

    @property
    def level(self) -> int:
        """People see warnings unless they ask for more; what reads JSON lines also wants to know who joined."""
        return _LEVELS[min(max(self.verbose, int(self.json_lines)), len(_LEVELS) - 1)]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The same options for a child process."""
        return (("--json-log",) if self.json_lines else ()) + ("-v",) * self.verbose

    @property
    def passed_on(self) -> Callable[[str, str], None] | None:
        """What to do with a child's name and a line it logs: show it too if more than the usual was asked for."""
        if self.json_lines:
            return lambda name, line: _print(line)
        return (lambda name, line: _print(f"[{name}] {line}")) if self.verbose else None


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, logger, message, the record's extra fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= _extra(record)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class PlainFormatter(logging.Formatter):
    """One short line for a record: level, logger, message, and the record's extra fields in brackets."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = ", ".join(f"{name} {_on_one_line(value)}" for name, value in _extra(record).items())
        return super().formatMessage(record) + (f" ({fields})" if fields else "")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _on_one_line(value: object) -> str:
    return " ".join(str(value).split())


def configure(options: LogOptions) -> None:
    """Send every logger's records to stderr: ours from the chosen level on, other libraries' warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if options.json_lines else PlainFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("pooled").setLevel(options.level)
    logging.captureWarnings(True)
