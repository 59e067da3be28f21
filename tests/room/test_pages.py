import random

import pytest

from room.pages import GROWTH, PagePool, Run, pages_for


def test_pages_for_rounds_up() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_request_gets_one_run_where_one_is_large_enough() -> None:
    pool = PagePool(10)
    assert pool.allocate(3) == [Run(0, 3)]
    assert pool.allocate(3) == [Run(5, 3)], "what lies before may grow, and so may this"
    assert pool.allocate(4) == [Run(3, 2), Run(8, 2)]


def test_what_grows_goes_on_behind_itself_while_it_can() -> None:
    pool = PagePool(1000)
    first, second = pool.allocate(10), pool.allocate(10)
    assert pool.allocate(GROWTH, after=first[0].length - 1) == [Run(10, GROWTH)]
    assert pool.allocate(5, after=second[0].first + 9) == [Run(second[0].first + 10, 5)]
    (elsewhere,) = pool.allocate(1, after=10 + GROWTH - 1)
    assert elsewhere.first > second[0].first + 15 + GROWTH - 1


def test_a_request_is_spread_over_runs_when_no_single_one_holds_it() -> None:
    pool = PagePool(6)
    pool.allocate(6)
    pool.release([Run(0, 2), Run(4, 2)])
    assert sorted(pool.allocate(4)) == [Run(0, 2), Run(4, 2)]
    assert pool.free == 0
    pool.release([Run(2, 2)])
    assert pool.free == 2


def test_what_is_not_there_is_not_given() -> None:
    pool = PagePool(4)
    pool.allocate(3)
    assert pool.allocate(2) is None
    assert pool.free == 1
    assert PagePool(0).allocate(1) is None


@pytest.mark.parametrize("twice", [Run(0, 4), Run(1, 2), Run(2, 3)])
def test_releasing_pages_twice_is_noticed(twice: Run) -> None:
    pool = PagePool(8)
    runs = pool.allocate(4)
    pool.release(runs)
    with pytest.raises(AssertionError, match="free already"):
        pool.release([twice])


def test_no_page_is_ever_held_twice_and_all_come_back() -> None:
    rng = random.Random(5)
    pool, held = PagePool(64), []
    for _ in range(3000):
        if held and rng.random() < 0.5:
            pool.release(held.pop(rng.randrange(len(held))))
        elif (runs := pool.allocate(rng.randint(1, 12))) is not None:
            held.append(runs)
        taken = [page for runs in held for run in runs for page in range(run.first, run.first + run.length)]
        assert len(taken) == len(set(taken)) == 64 - pool.free
    for runs in held:
        pool.release(runs)
    assert pool.allocate(64) == [Run(0, 64)]
