"""A comparison goes on without those that fail, and says so."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from bench import plot
from bench.asking import Answer, Messages, Together
from bench.measure import Report
from bench.rivals import Field
from bench.servers import CannotStart
from bench.workloads import renaming, stories


class Fake:
    """Answers `lives` times; each answer's tokens take a millisecond."""

    def __init__(self, lives: int) -> None:
        self.lives = lives
        self.asked: list[tuple[Messages, ...]] = []

    def ask(self, *conversations: Messages, tokens: int) -> Together:
        if not self.lives:
            raise httpx.ReadError("the connection broke")
        self.lives -= 1
        self.asked.append(conversations)
        answer = Answer("", tokens, 10, 0, first=0.001, last=0.001 * tokens)
        return Together((answer,) * len(conversations), 0.001 * tokens)


@contextmanager
def running(fake: Fake) -> Iterator[Fake]:
    yield fake


@contextmanager
def broken() -> Iterator[Fake]:
    raise CannotStart("rival does not come up: no such model")
    yield Fake(0)


def test_a_contender_that_fails_is_left_out_and_noted() -> None:
    report, steady, frail = Report("x"), Fake(100), Fake(3)
    with ExitStack() as stack:
        field = Field(stack, report, stories(2, 0), profile=None)
        field.enter("steady", running(steady))
        field.enter("frail", running(frail))
        field.enter("absent", broken())
        field.compare("first", lambda number: stories(2, number), 2, 48)
        field.compare("second", lambda number: stories(4, number), 2, 48)
    assert [(each.what, each.who, each.median) for each in report.figures] == [
        ("first", "steady", pytest.approx(2000)),
        ("first", "frail", pytest.approx(2000)),
        ("second", "steady", pytest.approx(4000)),
    ]
    assert [note.partition(":")[0] for note in report.notes] == [
        "absent is left out",
        "frail is left out from here on",
    ]
    assert steady.asked[1:3] == frail.asked[1:3]  # the same questions in the same round


def test_no_two_rounds_ask_the_same() -> None:
    asked = [str(each) for salt in range(20) for each in (*stories(32, salt), renaming(salt))]
    assert len(set(asked)) == len(asked)
    assert renaming(1) == renaming(1)


def test_the_plot_shows_streams_and_delays(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="comes with the extra bench")
    report = Report("x")
    for count in (1, 16):
        report.add(f"{count} streams, 2 peers", "ours", "tok/s", [count * 9.0])
        for delay in (0, 25):
            report.add(f"{count} streams, links {delay} ms", "ours", "tok/s", [count * 9.0 - delay / 10])
    plot.draw(report, tmp_path / "figures.svg")
    drawn = (tmp_path / "figures.svg").read_text()
    assert "ours, 16 streams" in drawn
    assert "milliseconds one way" in drawn
