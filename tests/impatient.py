"""An event loop in simulated time: what takes seconds takes none, and how busy the machine is changes nothing."""

import asyncio
import selectors


class Impatient(asyncio.SelectorEventLoop):
    """Never waits: when nothing is to be done, its clock goes on to when something is."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self._now = 0.0
        self._look = self._selector.select
        self._selector.select = self._select

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        self._now += timeout or 0
        return self._look(0)

    def time(self) -> float:
        return self._now
