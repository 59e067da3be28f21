import pytest

from peer import bandwidth
from peer.bandwidth import PADDING, TRAIN, TRAINS, Measured, Prober, rate
from protos import peer_pb2
from tests.impatient import Impatient


def test_the_quickest_train_tells_the_rate() -> None:
    now, came = 100.0, []
    for at in range(TRAIN * TRAINS + 1):
        # The machine is busy during the first train; afterwards a probe takes 10 ms.
        now += 0.5 if at <= TRAIN else 0.01
        came.append(now)
    assert abs(rate(came) - PADDING / 0.01) < 2


def test_probes_that_come_at_once_are_a_fast_link() -> None:
    assert rate([7.0] * (TRAIN * TRAINS + 1)) > 10**9


def test_what_a_crossing_takes() -> None:
    assert Measured(0.1, 1000).crossing(500) == pytest.approx(0.55)


def test_a_way_is_measured_by_its_answers() -> None:
    """One that answers after 20 ms and takes 5 ms for each full probe."""
    loop, free_at = Impatient(), 0.0

    def send(frame: peer_pb2.Frame) -> None:
        nonlocal free_at
        assert frame.epoch == 3
        free_at = max(free_at, loop.time()) + 0.005 * bool(frame.probe.padding)
        loop.call_at(free_at + 0.02, prober.heard, frame.probe.number)

    prober = Prober(3, send, loop.time)
    measured = loop.run_until_complete(prober.measure())
    loop.close()
    assert measured.round_trip == pytest.approx(0.02)
    assert measured.bytes_per_second == pytest.approx(PADDING / 0.005, rel=1e-3)


@pytest.mark.anyio
async def test_probes_that_are_lost_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "PATIENCE", 0.05)
    prober = Prober(1, lambda frame: None)
    with pytest.raises(TimeoutError):
        await prober.measure()
    prober.heard(1)  # too late, and nobody waits
