"""Why a room cannot listen somewhere."""

import re
import socket

import pytest

from room.errors import CannotListen
from room.listening import check_address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0"])
def test_an_address_that_is_free(address: str) -> None:
    check_address(address, "--listen")


def test_one_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen, match=f"cannot listen on {place}: another program.*; try another --listen"):
            check_address(place, "--listen")


@pytest.mark.parametrize(
    ("address", "why"),
    [("192.0.2.1:7070", "it is no address of this machine"), ("no.such.host.invalid:1", "the name .* is not known")],
)
def test_one_that_is_not_this_machines(address: str, why: str) -> None:
    with pytest.raises(CannotListen, match=f"cannot listen on {re.escape(address)}: {why}"):
        check_address(address, "--ws-listen")
