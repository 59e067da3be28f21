"""Keeping the transformers library to itself: what it would print while it works becomes silence, or our progress."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from operator import length_hint
from typing import Any

import gguf
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging

Progress = Callable[[float], None]


class Rising:
    """Passes progress on as part [low, high] of the whole, and only when it rises."""

    def __init__(self, report: Progress | None, low: float = 0.0, high: float = 1.0) -> None:
        self._report, self._low, self._high = report, low, high
        self._best = -1.0

    def __call__(self, done: float) -> None:
        if self._report is not None and done > self._best:
            self._best = done
            self._report(self._low + (self._high - self._low) * min(done, 1.0))

    def part(self, low: float, high: float) -> "Rising":
        return Rising(self, low, high)


class _Bar:
    """Takes the place of one of the library's progress bars: shows nothing and reports how far it is."""

    def __init__(
        self, items: Iterable[Any] = (), *_: Any, report: Progress, total: int | None = None, **__: Any
    ) -> None:
        self._items, self._report = items, report
        self._total = total or length_hint(items)
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        self._done += count
        if self._total:
            self._report(self._done / self._total)

    def close(self) -> None:
        """A bar that is closed early has said all it will say."""


@contextmanager
def quiet() -> Iterator[None]:
    """Only the library's errors are shown inside."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def reporting(report: Rising) -> Iterator[None]:
    """Quiet, and the library's bars become calls of `report`, for as long as it loads a model."""
    bar, names = modeling_gguf_pytorch_utils.tqdm, gguf.get_tensor_name_map
    # Reading a GGUF, the library draws its bar past the hook and makes the same table of names for every module.
    modeling_gguf_pytorch_utils.tqdm = partial(_Bar, report=report.part(0.0, 0.8))
    gguf.get_tensor_name_map = cache(names)
    hook = logging.set_tqdm_hook(lambda _, args, kwargs: _Bar(*args, **kwargs, report=report))
    try:
        with quiet():
            yield
    finally:
        logging.set_tqdm_hook(hook)
        modeling_gguf_pytorch_utils.tqdm, gguf.get_tensor_name_map = bar, names
