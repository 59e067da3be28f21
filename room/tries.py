"""How fast somebody may try keys. Free of I/O: the time comes in."""

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

FREE = 3
"""Wrong keys that cost nothing: people mistype, and paste old invites."""

FIRST, LONGEST = 1.0, 60.0
"""Seconds until somebody may try again, doubling with each wrong key."""

FORGOTTEN_AFTER = 600.0
"""Seconds without a wrong key after which somebody starts anew."""

MOST_REMEMBERED = 4096


@dataclass
class _Record:
    wrong: int = 0
    until: float = 0.0


class Tries:
    """Wrong keys by who tried them: an address, or one that names an invite."""

    def __init__(self) -> None:
        self._records: OrderedDict[Hashable, _Record] = OrderedDict()

    def wait(self, who: Hashable, now: float) -> float:
        """Seconds until `who` may try a key; 0: now."""
        record = self._records.get(who)
        return max(record.until - now, 0.0) if record else 0.0

    def wrong(self, who: Hashable, now: float) -> None:
        """A key of theirs was wrong."""
        record = self._records.pop(who, None)
        if record is None or now - record.until > FORGOTTEN_AFTER:
            record = _Record()
        record.wrong += 1
        over = record.wrong - FREE
        record.until = now + (min(FIRST * 2.0 ** min(over - 1, 16), LONGEST) if over > 0 else 0.0)
        self._records[who] = record
        while len(self._records) > MOST_REMEMBERED:
            self._records.popitem(last=False)


def address_of(caller: str, origins: Mapping[tuple[str, int], str] | None = None) -> str:
    """Where a call comes from, by what gRPC says: without the port, and of IPv6 the network, which is one home's.

    `origins` tells for whom somebody calls who only passes calls on, by his own address and port.
    """
    host, _, port = unquote(caller.partition(":")[2]).rpartition(":")
    host = host.strip("[]")
    if origins and port.isdigit():
        host = origins.get((host, int(port)), host)
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return caller
    if address.version == 6:
        address = address.ipv4_mapped or address
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
