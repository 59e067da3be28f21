"""How fast one address may try keys. Free of I/O: the time comes in."""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import unquote

FREE = 3
"""Wrong keys that cost nothing: people mistype, and paste old invites."""

FIRST, LONGEST = 1.0, 60.0
"""Seconds until an address may try again, doubling with each wrong key."""

FORGOTTEN_AFTER = 600.0
"""Seconds without a wrong key after which an address starts anew."""

MOST_ADDRESSES = 4096


@dataclass
class _Record:
    wrong: int = 0
    until: float = 0.0


class Tries:
    """Wrong keys by address."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def wait(self, address: str, now: float) -> float:
        """Seconds until `address` may try a key; 0: now."""
        record = self._records.get(address)
        return max(record.until - now, 0.0) if record else 0.0

    def wrong(self, address: str, now: float) -> None:
        """A key from there was wrong."""
        record = self._records.pop(address, None)
        if record is None or now - record.until > FORGOTTEN_AFTER:
            record = _Record()
        record.wrong += 1
        over = record.wrong - FREE
        record.until = now + (min(FIRST * 2.0 ** min(over - 1, 16), LONGEST) if over > 0 else 0.0)
        self._records[address] = record
        while len(self._records) > MOST_ADDRESSES:
            self._records.popitem(last=False)


def address_of(caller: str) -> str:
    """Where a call comes from, by what gRPC says: without the port, and of IPv6 the network, which is one home's."""
    host = unquote(caller.partition(":")[2]).rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return caller
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
