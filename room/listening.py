"""Whether a room can listen on an address, found out before its model is read, and why not."""

import errno
import os
import socket

from room.config import split_address
from room.errors import CannotListen

_WHY = {
    errno.EADDRINUSE: "another program listens there",
    errno.EADDRNOTAVAIL: "it is no address of this machine, unlike 127.0.0.1, or 0.0.0.0 for all that it has",
    errno.EACCES: "only an administrator may use that port",
}


def check_address(address: str, option: str) -> None:
    """Raise CannotListen unless HOST:PORT, or one of the addresses that its name stands for, can be listened on.

    gRPC does not say why it cannot. May block for as long as a name takes to look up.
    """
    host, port = split_address(address, option)
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(address, f"the name {host} is not known here", option) from error
    refusals = []
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            refusals.append(error)
        else:
            return
    raise CannotListen(address, why(refusals[-1]), option) from refusals[-1]


def why(error: OSError) -> str:
    return _WHY.get(error.errno or 0) or os.strerror(error.errno or 0).lower()
