"""How far loading is, is told at least once a second, however long it takes."""

import asyncio
from itertools import pairwise

from peer.progress import FETCHING, LoadReport, keep_telling
from tests.impatient import Impatient


def test_a_long_fetch_is_told_of_at_least_once_a_second() -> None:
    loop, report = Impatient(), LoadReport()
    told: list[tuple[float, float]] = []

    async def load() -> None:
        telling = loop.create_task(keep_telling(lambda: told.append((loop.time(), report.done))))
        meter = report.fetching(100)
        for _ in range(10):
            await asyncio.sleep(6.1)  # nothing comes for a while
            meter.add(10)
        await asyncio.sleep(1)
        telling.cancel()

    loop.run_until_complete(load())
    loop.close()
    times = [time for time, _ in told]
    assert times[0] == 0
    assert all(0 < later - earlier <= 1 for earlier, later in pairwise(times))
    assert loop.time() - times[-1] <= 1
    assert len({done for _, done in told}) == 11
    assert told[-1][1] == FETCHING
