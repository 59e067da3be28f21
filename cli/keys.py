"""Keys as they are pressed in our terminal."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from protos.outbox import Outbox


@contextmanager
def pressed_keys(fd: int) -> Iterator[Outbox[str]]:
    """Keys as they are pressed, without Enter and unseen; none where `fd` is no terminal of ours."""
    keys: Outbox[str] = Outbox()
    if not is_ours(fd):
        yield keys
        return
    import termios  # not on every system
    import tty

    before, loop = termios.tcgetattr(fd), asyncio.get_running_loop()
    tty.setcbreak(fd, termios.TCSANOW)  # Ctrl-C still is Ctrl-C

    def read() -> None:
        pressed = os.read(fd, 64).decode(errors="replace").lower()
        if not pressed:  # the terminal has gone
            loop.remove_reader(fd)
        for key in pressed:
            keys.put(key)

    loop.add_reader(fd, read)
    try:
        yield keys
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSANOW, before)


def is_ours(fd: int) -> bool:
    """A terminal whose keys come to this process: in the background, touching it would stop us."""
    return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
