"""Whether this machine has a device: asked in a process of its own, since the caller does without torch.

    python -m cli.devices NAME

Failure is one sentence on stderr and exit code 1.
"""

import os
import subprocess
import sys

from cli.errors import Failed
from cli.extras import lacking
from cli.processes import import_path


def check_device(name: str) -> None:
    """Raise Failed where torch finds no such device here. Takes the seconds that importing torch takes."""
    asking = [sys.executable, "-P", "-m", "cli.devices", name]
    env = {**os.environ, **import_path(os.environ)}
    asked = subprocess.run(asking, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
    if asked.returncode:
        said = asked.stderr.strip().splitlines() or [f"torch ended with {asked.returncode} when asked for {name}"]
        raise Failed(said[-1])


def main() -> None:
    try:
        from peer.errors import PeerError
        from peer.memory import pick_device

        try:
            pick_device(sys.argv[1])
        except PeerError as error:
            sys.exit(str(error))
    except ModuleNotFoundError as error:
        sys.exit(lacking(error) or str(error))


if __name__ == "__main__":
    main()
