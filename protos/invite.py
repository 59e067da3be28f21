"""An invite: where a room is and what opens its door, in one line that can be pasted.

    pooled://HOST:PORT/CODE#k=KEY&f=FINGERPRINT
    wss://HOST/PATH#c=CODE&k=KEY&f=FINGERPRINT      by WebSocket, where a network lets nothing else through; also ws://

The key stands behind `#` so that nothing that logs addresses logs it. FINGERPRINT is the SHA-256 of the room's
certificate, in hex: who dials knows the room by it, without any authority. Who has an invite without `k=KEY` can ask
the host to be let in. `f=none` stands for plain text, which only a loopback address may have. Parts this version does
not know (`&name=value`) are ignored: later versions add more.
"""

import ipaddress
import re
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

CODE_ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Letters and digits without I L O U 0 1, which people misread."""

_CODE = re.compile(f"[{CODE_ALPHABET}]{{6}}")
_FINGERPRINT = re.compile("[0-9a-f]{64}")
_PLAIN = "none"
_FORMS = {
    "pooled": "an invite looks like pooled://HOST:PORT/CODE#k=KEY&f=FINGERPRINT",
    "wss": "an invite by WebSocket looks like wss://HOST/PATH#c=CODE&k=KEY&f=FINGERPRINT",
}
_FORMS["ws"] = _FORMS["wss"]
_HTTPS_PORT, _HTTP_PORT = 443, 80
_USUAL_PORTS = {"wss": _HTTPS_PORT, "ws": _HTTP_PORT}
"""Of the schemes of WebSockets."""


class InvalidInvite(ValueError):
    """The text is not an invite; the message says which part is wrong."""


@dataclass(frozen=True)
class Invite:
    host: str
    port: int
    code: str
    key: str = field(repr=False)
    """'': whoever comes by it waits until the host lets him in."""
    fingerprint: str | None = None
    """SHA-256 of the room's certificate, in hex; None: plain text, on loopback."""
    path: str | None = None
    """Of the WebSocket that leads to the room; None: `host` and `port` are the room's own."""
    outer_tls: bool = True
    """Whether that WebSocket is wss:// and not ws://. The room's own TLS is inside of it either way."""
    by_way_of: str = ""
    """The WebSocket's URL, where `host` and `port` are this end of a tunnel through it."""

    @property
    def address(self) -> str:
        """HOST:PORT as gRPC dials it, or as the WebSocket's URL names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Of the WebSocket that leads to the room; '' where none does."""
        if self.path is None:
            return ""
        scheme, usual = ("wss", _HTTPS_PORT) if self.outer_tls else ("ws", _HTTP_PORT)
        return f"{scheme}://{self.address.removesuffix(f':{usual}')}{self.path}"

    @property
    def place(self) -> str:
        """Where the room is, for people."""
        return self.by_way_of or self.url or self.address

    def by_websocket(self, url: str) -> "Invite":
        """The invite to the same room by the WebSocket at `url` (ws:// or wss://). Raises InvalidInvite."""
        parts = urlsplit(url)
        if parts.scheme not in _USUAL_PORTS or parts.query or parts.fragment:
            raise InvalidInvite(f"a WebSocket's address looks like wss://HOST/PATH; got {url!r}")
        host, port = _address(parts, "a WebSocket's address looks like wss://HOST/PATH", _USUAL_PORTS[parts.scheme])
        return replace(self, host=host, port=port, path=parts.path or "/", outer_tls=parts.scheme == "wss")

    def from_here(self, listen: str) -> "Invite":
        """The invite for this machine, where the room listens on `listen`: no way round by the public address."""
        host, _, port = listen.rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
        return replace(self, host=host, port=int(port) or self.port, path=None)

    def __str__(self) -> str:
        key = f"k={quote(self.key, safe='')}&" if self.key else ""
        secret = f"{key}f={self.fingerprint or _PLAIN}"
        if self.path is None:
            return f"pooled://{self.address}/{self.code}#{secret}"
        return f"{self.url}#c={self.code}&{secret}"

    @classmethod
    def parse(cls, text: str) -> "Invite":
        """Read an invite as a person pasted it: surrounding blanks and the case of code and fingerprint do not matter.

        Raises InvalidInvite.
        """
        parts = urlsplit(text.strip())
        if parts.scheme not in _FORMS:
            raise InvalidInvite(f"{_FORMS['pooled']}; this one does not start with pooled://")
        form, by_socket = _FORMS[parts.scheme], parts.scheme in _USUAL_PORTS
        said = {name: values[-1] for name, values in parse_qs(parts.fragment).items()}
        host, port = _address(parts, form, _USUAL_PORTS.get(parts.scheme))
        code = (said.get("c", "") if by_socket else parts.path.strip("/")).upper()
        if not _CODE.fullmatch(code):
            raise InvalidInvite(f"{form}; CODE is 6 letters and digits, was it cut off?")
        fingerprint = _fingerprint(said.get("f", ""), form, host)
        path = (parts.path or "/") if by_socket else None
        return cls(host, port, code, said.get("k", ""), fingerprint, path, outer_tls=parts.scheme != "ws")


def _address(parts: SplitResult, form: str, usual_port: int | None) -> tuple[str, int]:
    try:
        host, port = parts.hostname, parts.port or usual_port
    except ValueError as error:
        raise InvalidInvite(f"{form}; its port is not a number up to 65535") from error
    if not host or not port:
        raise InvalidInvite(f"{form}; this one names no HOST:PORT")
    return host, port


def _fingerprint(text: str, form: str, host: str) -> str | None:
    """What the room's certificate must be; None for plain text, where that is allowed."""
    if text == _PLAIN:
        if not is_loopback(host):
            raise InvalidInvite(f"this invite asks for plain text, which goes within one machine only, not to {host}")
        return None
    if not _FINGERPRINT.fullmatch(text.lower()):
        raise InvalidInvite(f"{form}; FINGERPRINT is 64 digits in hex: copy the invite to its end, and quote it")
    return text.lower()


def is_loopback(host: str) -> bool:
    """Whether what is sent to `host` stays on this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
