"""What a volunteer asks of a running peer."""

import asyncio


class Control:
    """Set from the same event loop as the peer's."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        """Set to have others take over and the peer end."""
        self.resting = False
        self._changed = asyncio.Event()

    def rest(self, resting: bool) -> None:
        """Serve nothing from now on, or serve again."""
        self.resting = resting
        self._changed.set()

    async def changed(self) -> None:
        """Wait until `rest` is called again."""
        await self._changed.wait()
        self._changed.clear()
