"""A child process ends with its parent, also when the parent was killed and could not say so.

The parent holds the writing end of the child's standard input and never writes. When the parent goes, however it goes,
the system closes that end and the child reads the end of its input. This works on every POSIX system, unlike a
parent-death signal.
"""

import os
import signal
import threading
import time
from collections.abc import MutableMapping

_VARIABLE = "POOLED_LIFELINE"
ENVIRONMENT = {_VARIABLE: "stdin"}
"""What a parent adds to a child's environment."""

GRACE = 4.0
"""Seconds the child has to end by itself once its parent has gone."""


def hold(environ: MutableMapping[str, str]) -> None:
    """Watch the lifeline if a parent gave us one. The variable is taken out: it is not meant for our own children."""
    if environ.pop(_VARIABLE, None):
        threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    # Still here: something hangs. Our own children (a loader) share our process group, if we lead it.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
