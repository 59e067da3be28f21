from peer.bandwidth import PADDING, TRAIN, TRAINS, LinkMeter, probes


def test_the_quickest_train_tells_the_rate() -> None:
    meter = LinkMeter()
    now, told = 100.0, []
    for at, frame in enumerate(probes(3)):
        # The machine is busy during the first train; afterwards a probe takes 10 ms.
        now += 0.5 if at <= TRAIN else 0.01
        told.append(meter.heard(frame, now))
    assert told[:-1] == [None] * (TRAIN * TRAINS)
    assert told[-1] is not None
    assert told[-1].epoch == 3
    assert abs(told[-1].bytes_per_second - PADDING / 0.01) < 2


def test_probes_that_come_at_once_are_a_fast_link() -> None:
    meter = LinkMeter()
    rates = [meter.heard(frame, 7.0) for frame in probes(1)]
    assert rates[-1] is not None
    assert rates[-1].bytes_per_second > 10**9


def test_lost_probes_tell_nothing_and_a_new_deal_starts_anew() -> None:
    meter = LinkMeter()
    frames = list(probes(1))
    assert [meter.heard(frame, 0.0) for frame in frames[3:]] == [None] * (len(frames) - 3)
    rates = [meter.heard(frame, at) for at, frame in enumerate(probes(2))]
    assert rates[-1] is not None
    assert rates[-1].bytes_per_second == PADDING
