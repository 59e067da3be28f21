"""What the Python clients' scripts share. A script is run as `python cases.py CASE BASE_URL`."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

Raised = TypeVar("Raised", bound=Exception)

QUESTIONS: dict[str, Any] = json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8"))

_WITHIN = 10.0
"""Seconds until the bridge has seen that a caller left."""


def run(cases: Mapping[str, Callable[[str], Any]]) -> None:
    """Run the case the command line names, and print as JSON what it saw."""
    case, base_url = sys.argv[1:]
    print(json.dumps(cases[case](base_url), ensure_ascii=False))


def raised(kind: type[Raised], action: Callable[[], object]) -> Raised:
    """What `action` raises, which must be of this kind."""
    try:
        action()
    except kind as error:
        return error
    raise AssertionError("it went well")


def until_queue(base_url: str, length: int) -> int:
    """Wait until so many requests run or wait at the bridge."""
    deadline = time.monotonic() + _WITHIN
    while (found := _queue(base_url)) != length:
        assert time.monotonic() < deadline, f"{found} requests at the bridge, not {length}"
        time.sleep(0.05)
    return found


def _queue(base_url: str) -> int:
    with urlopen(base_url.removesuffix("/v1") + "/health", timeout=10) as reply:
        return int(json.load(reply)["queue"])
