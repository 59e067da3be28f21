"""How a bridge is set up. Every value is checked when the object is made; nothing is changed afterwards."""

import ipaddress
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata

from bridge.errors import BadConfig

MAX_BODY = 64 << 20
"""Bytes of the largest request body: screenshots in it are dropped, so they must fit first."""

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:\d{1,5})?")


def _installed_version() -> str:
    try:
        return metadata.version("pooled")
    except metadata.PackageNotFoundError:
        return "unpacked"


@dataclass(frozen=True)
class Timeouts:
    """Seconds after which the bridge stops waiting."""

    header: float = 10.0
    """for the rest of a request's header"""
    body: float = 60.0
    """for a request's body, wanted or not"""
    idle: float = 75.0
    """on a connection without a request; SDKs reuse theirs for about a minute"""
    slow_reader: float = 120.0
    """for a caller that takes no byte of its answer"""
    room: float = 300.0
    """for any event of a request that is not in the queue"""
    queue: float = 1800.0
    """for a request's turn"""
    connect: float = 10.0
    """for the room's first word when the bridge starts"""


@dataclass(frozen=True)
class BridgeConfig:
    """Raises BadConfig for a value that makes no sense."""

    host: str = "127.0.0.1"
    """a loopback address: the bridge is for this machine alone"""
    port: int = 8080
    """0: any free one"""
    token: str | None = field(default=None, repr=False)
    """what callers must present; None: any API key works"""
    allow_origins: tuple[str, ...] = ()
    """web pages that may call the bridge, as scheme://host[:port]"""
    max_queue: int = 8
    """requests of this bridge that may wait in the room"""
    keepalive: float = 10.0
    """seconds of silence on a stream before a comment is sent"""
    max_body: int = MAX_BODY
    version: str = field(default_factory=_installed_version)
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        if not _is_loopback(self.host):
            raise BadConfig(f"the bridge listens on a loopback address such as 127.0.0.1 only, not on {self.host}")
        if not 0 <= self.port <= 65535:
            raise BadConfig(f"port {self.port} is not a number from 0 to 65535")
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise BadConfig("the token must be one or more visible ASCII characters without blanks")
        if self.max_queue < 1:
            raise BadConfig(f"max_queue is {self.max_queue}, it must be 1 or more")
        if not (math.isfinite(self.keepalive) and self.keepalive > 0):
            raise BadConfig(f"keepalive is {self.keepalive}, it must be a number of seconds above 0")
        for origin in self.allow_origins:
            if not _ORIGIN.fullmatch(_normal(origin)):
                raise BadConfig(
                    f"{origin!r} is not an origin; one looks like https://chat.example or http://localhost:3000"
                )

    @cached_property
    def origins(self) -> frozenset[str]:
        """The allowed origins as browsers write them."""
        return frozenset(map(_normal, self.allow_origins))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _normal(origin: str) -> str:
    return origin.lower().removesuffix("/")
