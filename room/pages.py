"""The KV pages of one chain: which are free. Pages are logical; page 17 means the same tokens on every peer."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

PAGE = 16
"""Positions in a page."""

GROWTH = 128
"""Pages left to grow into behind what lies before a free run."""


class Run(NamedTuple):
    """Pages [first, first + length)."""

    first: int
    length: int


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


def as_runs(pages: Sequence[int]) -> list[Run]:
    """Single pages as runs, in the same order."""
    runs: list[Run] = []
    for page in pages:
        if runs and runs[-1].first + runs[-1].length == page:
            runs[-1] = Run(runs[-1].first, runs[-1].length + 1)
        else:
            runs.append(Run(page, 1))
    return runs


def as_pages(runs: Sequence[Run]) -> list[int]:
    return [page for run in runs for page in range(run.first, run.first + run.length)]


class PagePool:
    """Hands out pages, in one run where it can: attention on consecutive pages needs no copy."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.free = pages
        self._runs: list[Run] = [Run(0, pages)] if pages else []  # free, sorted, no two adjacent

    def __repr__(self) -> str:
        return f"<PagePool [{self.free} of {self.pages} free]>"

    def allocate(self, count: int, after: int = -1) -> list[Run] | None:
        """`count` pages as runs in order of position, or None when fewer are free.

        `after` is the page they will follow: those behind it are taken where they are free. Else they are taken of the
        largest free run, some way into it, since what lies before it may grow as they may.
        """
        if count > self.free:
            return None
        taken: list[Run] = []
        at = bisect_left(self._runs, (after + 1, 0))
        if after >= 0 and at < len(self._runs) and self._runs[at].first == after + 1:
            taken.append(self._take(at, 0, min(count, self._runs[at].length)))
            count -= taken[0].length
        while count:
            at = max(range(len(self._runs)), key=lambda at: self._runs[at].length)
            run = self._runs[at]
            offset = min(GROWTH, max(run.length - count, 0) // 2) if run.first else 0
            taken.append(self._take(at, offset, min(count, run.length - offset)))
            count -= taken[-1].length
        return taken

    def _take(self, at: int, offset: int, count: int) -> Run:
        run = self._runs[at]
        left = [Run(run.first, offset), Run(run.first + offset + count, run.length - offset - count)]
        self._runs[at : at + 1] = [part for part in left if part.length]
        self.free -= count
        return Run(run.first + offset, count)

    def release(self, runs: Sequence[Run]) -> None:
        """Give pages back. No frame that names them may still be on its way."""
        for run in runs:
            self._insert(run)
            self.free += run.length

    def _insert(self, run: Run) -> None:
        at = bisect_left(self._runs, run)
        before = self._runs[at - 1] if at else None
        after = self._runs[at] if at < len(self._runs) else None
        first, end = run.first, run.first + run.length
        if (before and before.first + before.length > first) or (after and after.first < end):
            raise AssertionError(f"pages {first} to {end - 1} were free already")
        if after and after.first == end:
            end = after.first + after.length
            del self._runs[at]
        if before and before.first + before.length == first:
            first = before.first
            del self._runs[at - 1]
        insort(self._runs, Run(first, end - first))
