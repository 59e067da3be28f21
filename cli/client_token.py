"""Which token the bridge asks its clients for, of the three places where one may be named."""

from collections.abc import Mapping
from pathlib import Path

from cli.errors import Failed, WrongUse

VARIABLE = "POOLED_TOKEN"


def client_token(file: Path | None, environ: Mapping[str, str], given: str | None) -> tuple[str | None, list[str]]:
    """The token, None for none, and warnings for the person who starts the bridge.

    A file goes before the variable POOLED_TOKEN, which goes before `--token`. An empty variable counts as unset.
    Raises Failed for a file that is empty or cannot be read, WrongUse for an empty `--token`.
    """
    variable = environ.get(VARIABLE, "").strip() or None
    from_file = _read(file) if file is not None else None
    if given is not None and not given.strip():
        raise WrongUse("--token is empty; leave it out to let every client in")
    warnings = []
    if given is not None:
        warnings.append("other users of this machine can read --token in the list of processes; use --token-file")
        if from_file or variable:
            warnings.append(f"--token is ignored: {'--token-file' if from_file else VARIABLE} goes before it")
    return from_file or variable or given, warnings


def _read(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Failed(f"cannot read the token from {file}: {reason}") from error
    if not token:
        raise Failed(f"{file} is empty; write the token into it, or leave --token-file out to let every client in")
    return token
