import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.measure import Figure, Goal, Report, in_turn


def test_contenders_run_once_a_round_and_take_turns_at_being_first() -> None:
    order: list[tuple[str, int]] = []
    given = in_turn({name: lambda n, name=name: order.append((name, n)) or n for name in "abc"}, 3)
    assert order == [(name, n) for n, names in enumerate(("abc", "bca", "cab")) for name in names]
    assert given == {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]}
    assert in_turn({}, 3) == {}


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    ours = Figure("x", "ours", "tok/s", (10, 40, 90))
    theirs = Figure("x", "theirs", "tok/s", (10, 20, 90))
    assert (ours.median, theirs.median) == (40, 20)
    assert ours.over(theirs) == 1.0  # not 40 / 20: the second round's noise is that round's
    with pytest.raises(ValueError, match="shorter"):
        ours.over(Figure("x", "theirs", "tok/s", (10, 20)))


@pytest.mark.parametrize(
    ("measured", "bound", "at_most", "reached"),
    [(1.0, 1.0, False, True), (0.99, 1.0, False, False), (1.8, 1.8, True, True), (1.9, 1.8, True, False)],
)
def test_a_goal_is_a_bound_from_below_or_above(measured: float, bound: float, at_most: bool, reached: bool) -> None:
    goal = Goal("x", measured, bound, at_most)
    assert goal.reached is reached
    assert str(goal).startswith("reached" if reached else "falls short")


def test_the_table_has_a_row_for_each_quantity_and_the_first_contenders_ratio_to_the_others() -> None:
    report = Report("Speed")
    report.add("1 stream", "ours", "tok/s", [30, 36, 33])
    report.add("1 stream", "theirs", "tok/s", [60, 72, 66])
    report.add("16 streams", "ours", "tok/s", [0.5, 0.25, 0.125])
    report.goals.append(Goal("1 stream against theirs", 0.5, 0.8))
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(console)
    lines = console.export_text().splitlines()
    (one,) = [line for line in lines if "│ 1 stream " in line and "tok/s" in line]
    assert "33.0 tok/s" in one
    assert "66.0 tok/s (0.50x)" in one
    (many,) = [line for line in lines if "16 streams" in line]
    assert "0.250 tok/s" in many
    assert any("falls short: 0.50 (asked >= 0.8)" in line for line in lines)


def test_the_json_holds_every_round_the_goals_and_the_machine(tmp_path: Path) -> None:
    report = Report("Speed")
    report.add("1 stream", "ours", "tok/s", [30, 36, 33])
    report.goals.append(Goal("growth", 2.0, 1.8, at_most=True))
    report.notes.append("noisy")
    report.save(None)
    report.save(tmp_path / "figures.json")
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["figures"] == [
        {"what": "1 stream", "who": "ours", "unit": "tok/s", "rounds": [30, 36, 33], "median": 33}
    ]
    assert written["goals"][0]["reached"] is False
    assert written["notes"] == ["noisy"]
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["commit"]


def test_a_quantity_is_found_by_what_and_who() -> None:
    report = Report("Speed")
    mine = report.add("1 stream", "ours", "tok/s", [1])
    assert report.find("1 stream", "ours") is mine
    assert report.find("1 stream", "theirs") is None
