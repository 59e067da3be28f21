import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from peer.pacing import BURST, Pacer
from protos import peer_pb2


def test_no_more_than_its_rate_goes_out_over_time() -> None:
    pacer, now, sent = Pacer(1000), 100.0, 0
    for size in (50, 300, 10, 900, 200, 1, 600) * 20:
        now += pacer.delay(size, now)
        sent += size
        assert sent - size <= 1000 * (now - 100.0 + BURST) + 1
    assert now - 100.0 > 0.9 * sent / 1000 - BURST


def test_silence_saves_up_a_burst_and_no_more() -> None:
    pacer = Pacer(1000)
    assert pacer.delay(int(1000 * BURST), 50.0) == 0.0
    assert pacer.delay(1, 50.0) == 0.0
    assert pacer.delay(1, 50.0) == pytest.approx(0.001)


def test_without_a_rate_nothing_waits() -> None:
    assert Pacer().delay(1 << 40, 0.0) == 0.0


@pytest.mark.anyio
async def test_messages_come_out_in_order_and_late() -> None:
    """40 kB go before the last one, of which a burst may go at once."""

    async def frames() -> AsyncIterator[peer_pb2.Frame]:
        for step in range(5):
            yield peer_pb2.Frame(step=step, probe=peer_pb2.Probe(padding=bytes(10_000)))

    began = time.monotonic()
    assert [frame.step async for frame in Pacer(100_000).paced(frames())] == [0, 1, 2, 3, 4]
    assert time.monotonic() - began >= 40_000 / 100_000 - BURST


@pytest.mark.anyio
async def test_what_can_wait_is_bounded_too_and_holds_up_a_frame_by_one_piece_at_most() -> None:
    pacer, piece = Pacer(1_000_000), peer_pb2.Frame(probe=peer_pb2.Probe(padding=bytes(100_000)))
    began, waits = time.monotonic(), []

    async def pieces() -> AsyncIterator[peer_pb2.Frame]:
        for _ in range(3):
            yield piece

    async def read() -> None:
        async for _ in pacer.paced_last(pieces()):
            waits.append(pacer.delay(0, time.monotonic()))

    await asyncio.gather(read(), read(), read())
    most = piece.ByteSize() / 1_000_000
    assert len(waits) == 9
    assert max(waits) <= most * 1.001
    assert time.monotonic() - began >= 8 * most - BURST
