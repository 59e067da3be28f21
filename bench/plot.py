"""Draws what a run of `bench.rivals` found: tokens per second over streams, and over the links' delay."""

import re
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Figure, Report

_STREAMS = re.compile(r"(\d+) streams, 2 peers")
_DELAY = re.compile(r"(\d+) streams, links ([\d.]+) ms")
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f")


def draw(report: Report, file: Path) -> None:
    """Write an SVG. Needs matplotlib, which the extra `bench` brings."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    colours = dict(zip(dict.fromkeys(figure.who for figure in report.figures), _COLOURS, strict=False))
    figure, (over_streams, over_delay) = pyplot.subplots(1, 2, figsize=(11, 4))
    for who, colour in colours.items():
        mine = [each for each in report.figures if each.who == who]
        _line(over_streams, _points(mine, _STREAMS, 1), who, colour, "-")
        counts = sorted({int(found[1]) for each in mine if (found := _DELAY.fullmatch(each.what))})
        for streams, style in zip(counts, (":", "-"), strict=False):
            at = re.compile(rf"{streams} streams, links ([\d.]+) ms")
            _line(over_delay, _points(mine, at, 1), f"{who}, {streams} streams", colour, style)
    for axes, title, below in (
        (over_streams, "Two peers on loopback", "streams at once"),
        (over_delay, "Every link delayed", "milliseconds one way"),
    ):
        axes.set(title=title, xlabel=below, ylabel="tokens per second, all together", ylim=(0, None))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    over_streams.set_xscale("log", base=2)
    over_streams.xaxis.set_major_formatter("{x:g}")
    figure.text(0.01, 0.01, str(report.machine), fontsize=5, color="grey")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _points(figures: Sequence[Figure], pattern: "re.Pattern[str]", group: int) -> list[tuple[float, float]]:
    found = ((pattern.fullmatch(each.what), each.median) for each in figures)
    return sorted((float(match[group]), median) for match, median in found if match)


def _line(axes: object, points: Sequence[tuple[float, float]], label: str, colour: str, style: str) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), style, marker="o", color=colour, label=label)  # type: ignore[attr-defined]
