"""The slow link that tests and benchmarks put between processes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proxy import QUEUE, SlowLink, Wire


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends everything back, and closes its side when the caller does."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


@pytest.mark.parametrize(("delay", "rate"), [(0.0, None), (0.01, None), (0.001, 20e6)])
def test_every_byte_comes_in_order_and_so_does_the_end(echo: int, delay: float, rate: float | None) -> None:
    sent = bytes(range(256)) * 4096
    with (
        SlowLink(echo, delay=delay, rate=rate) as link,
        closing(socket.create_connection(("127.0.0.1", link.port))) as c,
    ):
        c.settimeout(30)
        writer = threading.Thread(target=lambda: (c.sendall(sent), c.shutdown(socket.SHUT_WR)))
        writer.start()
        got = b""
        while data := c.recv(1 << 16):
            got += data
        writer.join(10)
    assert got == sent


def test_a_link_to_nobody_ends_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with SlowLink(port) as link, closing(socket.create_connection(("127.0.0.1", link.port))) as caller:
        caller.settimeout(10)
        assert caller.recv(1) == b""


@given(st.lists(st.tuples(st.integers(1, 1 << 16), st.floats(0, 1)), min_size=1, max_size=40), st.floats(1e4, 1e8))
def test_a_wire_is_never_faster_than_its_rate_and_never_idle_while_bytes_wait(
    pieces: list[tuple[int, float]], rate: float
) -> None:
    wire, now, free_at = Wire(), 0.0, 0.0
    for size, pause in pieces:
        now += pause
        gone_at, next_at = wire.put(size, now, rate)
        assert gone_at == pytest.approx(max(free_at, now) + size / rate)
        assert now <= next_at
        assert gone_at - next_at <= max(QUEUE, 0) + 1e-9
        free_at, now = gone_at, next_at


def test_a_wire_without_a_rate_takes_no_time() -> None:
    wire = Wire()
    assert wire.put(1 << 20, 5.0, None) == (5.0, 5.0)
    assert wire.put(1 << 20, 5.0, None) == (5.0, 5.0)
    assert wire.put(1000, 5.0, 1000.0) == (6.0, 6.0 - QUEUE)
