"""What the base install leaves out, and how a person gets it.

Installs are made in a clone: the name `pooled` of the package index is another project's.
"""

import re
from importlib.metadata import requires

ROOM, HOST = "room", "host"


def install(extra: str) -> str:
    """The command that installs an extra, run in the clone. Without its pins torch takes gigabytes more."""
    return f"pip install -c constraints.txt '.[{extra}]'"


def lacking(error: ModuleNotFoundError) -> str | None:
    """A sentence for a package that an extra of ours brings; None for any other, whose absence is a bug."""
    package = (error.name or "").partition(".")[0]
    if package in _packages(ROOM):
        how = f"{install(HOST)}, or {install(ROOM)} to open rooms and lend nothing"
    elif package in _packages(HOST):
        how = install(HOST)
    else:
        return None
    return f"{package}, which the base install leaves out, is not installed; run in the clone of Pooled: {how}"


def _packages(extra: str) -> set[str]:
    """The packages of an extra, as they are imported: none of these is named otherwise."""
    found = (re.match(r"([\w-]+).*extra == \"(\w+)\"", line) for line in requires("pooled") or ())
    return {match[1].replace("-", "_") for match in found if match and match[2] == extra}
