"""What the room's own bookkeeping of pages costs, in a pool of many."""

import random
import time
from collections.abc import Callable
from typing import Annotated

import typer

from bench.measure import JsonFile, Quick, Report, Rounds
from room.pages import PAGE, PagePool, as_pages, pages_for
from room.prefix import PrefixTree
from room.states import StateSlots

REPEATS = 20


def main(
    pages: Annotated[int, typer.Option(min=1000, metavar="N")] = 100_000,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Time the prefix tree of a pool that is full of conversations nobody uses. Processor time, one thread."""
    pages, rounds = (2000, 1) if quick else (pages, rounds)
    pool = PagePool(pages)
    tree = PrefixTree(pool, StateSlots(0))
    prompts = _fill(pool, tree)
    report = Report(f"a prefix tree of {pages} pages")
    verbs: dict[str, Callable[[], object]] = {
        "find a prompt of 4,000 tokens": lambda: tree.find(max(prompts, key=len)[:4000]),
        "give back the 8 pages used longest ago": lambda: tree.evict(8),
        "take a page behind another": lambda: pool.allocate(1, after=pages // 2),
    }
    for name, verb in verbs.items():
        report.add(name, "ours", "us", [_timed(verb) for _ in range(rounds)])
    report.show()
    report.save(json)


def _fill(pool: PagePool, tree: PrefixTree) -> list[list[int]]:
    """Conversations of 20 to 400 pages until the pool has no room for one more."""
    rng = random.Random(1)
    prompts: list[list[int]] = []
    while (count := rng.randint(20, 400)) <= pool.free:
        tokens = [len(prompts), *rng.choices(range(50_000), k=count * PAGE - rng.randint(1, PAGE))]
        runs = pool.allocate(pages_for(len(tokens)))
        assert runs is not None
        tree.unpin(tree.adopt(tokens, as_pages(runs), []))
        prompts.append(tokens)
    return prompts


def _timed(verb: Callable[[], object]) -> float:
    """Microseconds of one call, of several."""
    began = time.thread_time()
    for _ in range(REPEATS):
        verb()
    return (time.thread_time() - began) / REPEATS * 1e6
