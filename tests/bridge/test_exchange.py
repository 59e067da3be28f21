"""What lies between the room's events and their writer."""

import asyncio
import math

import anyio
import pytest

from bridge.exchange import Inbox
from tests.bridge.fake_room import text

pytestmark = pytest.mark.anyio


async def test_what_is_here_counts_however_late_its_reader_is() -> None:
    inbox = Inbox()
    await inbox.put(text("a"))
    assert await inbox.take(until=0.0) == text("a")
    assert await inbox.take(until=0.0) is None


async def test_a_reader_waits_as_long_as_it_says_whatever_it_said_before() -> None:
    clock = asyncio.get_running_loop().time
    inbox = Inbox()

    async def put_after(pause: float) -> None:
        await asyncio.sleep(pause)
        await inbox.put(text("a"))

    # The second finds the timer of the first, and goes on waiting when that rings.
    for pause, patience in ((0.01, 0.05), (0.2, 60.0)):
        writing = asyncio.create_task(put_after(pause))
        assert await inbox.take(clock() + patience) == text("a")
        await writing
    began = clock()  # and this one finds a timer that would ring too late
    assert await inbox.take(began + 0.02) is None
    assert 0.02 <= clock() - began < 30


async def test_a_writer_waits_for_space() -> None:
    inbox, written = Inbox(), 0

    async def write() -> None:
        nonlocal written
        for number in range(100):
            await inbox.put(text(str(number)))
            written += 1
        inbox.close()

    writing = asyncio.create_task(write())
    await asyncio.sleep(0.01)
    assert written < 100
    for number in range(100):
        assert await inbox.take(math.inf) == text(str(number))
    with pytest.raises(anyio.EndOfStream):
        await inbox.take(math.inf)
    await writing


async def test_closing_lets_go_of_who_waits() -> None:
    inbox = Inbox()
    reading = asyncio.create_task(inbox.take(math.inf))
    await asyncio.sleep(0)
    inbox.close()
    with pytest.raises(anyio.EndOfStream):
        await reading
    await inbox.put(text("too late"))
    with pytest.raises(anyio.EndOfStream):
        await inbox.take(math.inf)
