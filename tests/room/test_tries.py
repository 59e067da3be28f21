"""Wrong keys make an address wait, longer each time, and nobody else."""

import pytest

from room.tries import FIRST, FORGOTTEN_AFTER, FREE, LONGEST, MOST_REMEMBERED, Tries, address_of


def test_the_wait_doubles_up_to_a_bound_and_is_forgotten() -> None:
    tries, now, waits = Tries(), 0.0, []
    for _ in range(FREE + 9):
        tries.wrong("a", now)
        waits.append(tries.wait("a", now))
        now += waits[-1]
    assert waits[: FREE + 3] == [0.0] * FREE + [FIRST, 2 * FIRST, 4 * FIRST]
    assert waits[-1] == LONGEST
    assert tries.wait("a", now) == tries.wait("b", 0.0) == 0.0
    now += FORGOTTEN_AFTER + 1
    tries.wrong("a", now)
    assert tries.wait("a", now) == 0.0


def test_they_are_remembered_of_so_many_addresses() -> None:
    tries = Tries()
    for at in range(MOST_REMEMBERED + 10):
        tries.wrong(str(at), 0.0)
    assert len(tries._records) == MOST_REMEMBERED


@pytest.mark.parametrize(
    ("caller", "address"),
    [
        ("ipv4:192.0.2.7:50123", "192.0.2.7"),
        ("ipv6:%5B::1%5D:50123", "::1"),
        ("ipv6:[2001:db8:1:2:3::7]:50123", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("ipv6:[::ffff:192.0.2.7]:50123", "192.0.2.7"),
        ("unix:/run/x", "unix:/run/x"),
        ("", ""),
    ],
)
def test_where_a_call_comes_from(caller: str, address: str) -> None:
    assert address_of(caller) == address


@pytest.mark.parametrize(
    ("caller", "address"),
    [
        ("ipv4:127.0.0.1:50123", "192.0.2.7"),
        ("ipv6:%5B::1%5D:50124", "2001:db8:1:2::/64"),
        ("ipv4:127.0.0.1:50125", "127.0.0.1"),
    ],
)
def test_for_whom_somebody_calls(caller: str, address: str) -> None:
    origins = {("127.0.0.1", 50123): "192.0.2.7", ("::1", 50124): "2001:db8:1:2:3::7"}
    assert address_of(caller, origins) == address
