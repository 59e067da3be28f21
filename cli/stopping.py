"""How a command that runs until it is stopped stops."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(work: Coroutine[Any, Any, None], ask: Callable[[], None] | None = None) -> None:
    """Run `work` to its end, or until Ctrl-C or SIGTERM, which cancel it: it cleans up and this returns as usual.

    With `ask` the signal calls that instead, and `work` comes to its end by itself. A second signal ends the process at
    once.
    """
    asyncio.run(_until_stopped(work, ask))


async def _until_stopped(work: Coroutine[Any, Any, None], ask: Callable[[], None] | None) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        (ask or task.cancel)()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
