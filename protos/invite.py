"""An invite: where a room is and what opens its door, in one line that can be pasted.

    pooled://HOST:PORT/CODE#k=KEY

The key stands behind `#` so that nothing that logs addresses logs it. Parts this version does not know
(`&name=value`) are ignored: later versions add more.
"""

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, quote, urlsplit

CODE_ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Letters and digits without I L O U 0 1, which people misread."""

_CODE = re.compile(f"[{CODE_ALPHABET}]{{6}}")
_FORM = "pooled://HOST:PORT/CODE#k=KEY"


class InvalidInvite(ValueError):
    """The text is not an invite; the message says which part is wrong."""


@dataclass(frozen=True)
class Invite:
    host: str
    port: int
    code: str
    key: str = field(repr=False)

    @property
    def address(self) -> str:
        """HOST:PORT as gRPC dials it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def from_here(self, listen: str) -> "Invite":
        """The invite for this machine, where the room listens on `listen`: no way round by the public address."""
        host, _, port = listen.rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
        return replace(self, host=host, port=int(port) or self.port)

    def __str__(self) -> str:
        return f"pooled://{self.address}/{self.code}#k={quote(self.key, safe='')}"

    @classmethod
    def parse(cls, text: str) -> "Invite":
        """Read an invite as a person pasted it: surrounding blanks and the code's case do not matter.

        Raises InvalidInvite.
        """
        parts = urlsplit(text.strip())
        if parts.scheme != "pooled":
            raise InvalidInvite(f"an invite looks like {_FORM}; this one does not start with pooled://")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInvite(f"an invite looks like {_FORM}; its port is not a number up to 65535") from error
        if not host or not port:
            raise InvalidInvite(f"an invite looks like {_FORM}; this one names no HOST:PORT")
        code = parts.path.strip("/").upper()
        if not _CODE.fullmatch(code):
            raise InvalidInvite(f"an invite looks like {_FORM}; CODE is 6 letters and digits, was it cut off?")
        key = parse_qs(parts.fragment).get("k", [""])[-1]
        if not key:
            raise InvalidInvite(f"an invite looks like {_FORM}; this one has no key: copy it to its end, '#k=...' too")
        return cls(host, port, code, key)
