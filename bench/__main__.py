"""`python -m bench`: all benchmarks by name."""

import signal
import sys
from collections.abc import Callable

import typer

from bench import (
    chains,
    constrained,
    fill,
    guessing,
    interleave,
    leaving,
    overhead,
    pages,
    placement,
    prefix,
    quant,
    rivals,
    slice,
    streams,
    wire,
)

BENCHMARKS: dict[str, Callable[..., None]] = {
    "rivals": rivals.main,
    "streams": streams.main,
    "chains": chains.main,
    "fill": fill.main,
    "guessing": guessing.main,
    "interleave": interleave.main,
    "leaving": leaving.main,
    "overhead": overhead.main,
    "pages": pages.main,
    "placement": placement.main,
    "prefix": prefix.main,
    "constrained": constrained.main,
    "wire": wire.main,
    "quant": quant.main,
    "slice": slice.main,
}

app = typer.Typer(
    name="python -m bench",
    help="Measure this project on this machine, and others beside it.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
for name, benchmark in BENCHMARKS.items():
    app.command(name)(benchmark)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    app()
