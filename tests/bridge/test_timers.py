"""When silence is broken and when patience ends, on a clock of our own."""

import pytest

from bridge.config import Timeouts
from bridge.exchange import Patience
from bridge.sse import KeepAlive
from tests.bridge.fake_room import notice, prefill, queued, text


def test_P110_a_comment_is_due_ten_seconds_after_the_last_byte() -> None:
    silence = KeepAlive(10.0, now=100.0)
    assert silence.left(109.9) == pytest.approx(0.1)
    assert silence.left(110.0) == 0
    silence.sent(110.0)  # the comment itself
    assert silence.left(110.0) == 10
    silence.sent(115.0)  # data
    assert silence.left(124.9) == pytest.approx(0.1)
    assert silence.left(125.5) < 0


def test_P110_P111_what_the_comment_says() -> None:
    assert KeepAlive.text(2) == b": queued, 2 ahead\n\n"
    assert KeepAlive.text(1) == b": queued, 1 ahead\n\n"
    assert KeepAlive.text(2, 14) == b": queued, 2 ahead\n\n: eta 14s\n\n"
    assert KeepAlive.text(0) == b": keep-alive\n\n"


def test_C14_a_silent_room_is_waited_for_five_minutes() -> None:
    patience = Patience(Timeouts(), now=0.0)
    assert patience.left(0.0) == 300
    patience.heard(prefill(1, 2), now=200.0)
    assert patience.left(499.0) == 1
    patience.heard(notice("peer left, resuming"), now=400.0)
    assert patience.left(700.0) == 0
    assert (patience.lost().status, patience.lost().code) == (504, "room_timeout")


def test_C14_a_place_in_the_queue_is_waited_for_thirty_minutes() -> None:
    patience = Patience(Timeouts(), now=0.0)
    patience.heard(queued(3), now=10.0)
    assert patience.left(10.0) == 1800
    patience.heard(queued(2), now=900.0)
    assert patience.left(900.0) == 910, "moving up does not start the time anew"
    assert (patience.lost().status, patience.lost().code) == (504, "queue_timeout")
    patience.heard(queued(0), now=1000.0)
    assert patience.left(1000.0) == 300, "it runs: silence counts from here"


def test_P111_the_number_ahead_is_none_once_it_runs() -> None:
    patience = Patience(Timeouts(), now=0.0)
    for event, ahead in [(queued(3), 3), (notice("x"), 3), (queued(1), 1), (text("a"), 0), (queued(2), 0)]:
        patience.heard(event, now=0.0)
        assert patience.ahead == ahead


def test_the_estimate_counts_down_and_is_not_told_once_it_has_proved_wrong() -> None:
    patience = Patience(Timeouts(), now=0.0)
    assert patience.eta(0.0) == 0
    patience.heard(queued(2, eta=14), now=10.0)
    assert [patience.eta(now) for now in (10.0, 20.5, 24.0, 30.0)] == [14, 4, 0, 0]
    patience.heard(queued(1, eta=5), now=30.0)
    assert patience.eta(30.0) == 5
    patience.heard(text("a"), now=31.0)
    assert patience.eta(31.0) == 0
