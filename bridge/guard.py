"""Who may call the bridge: programs of this machine that name it rightly, no web page, and the token's owner."""

import hmac
from collections.abc import Mapping

from starlette.responses import Response

from bridge.config import BridgeConfig
from bridge.errors import ForbiddenHost, ForbiddenOrigin, InvalidApiKey

_OPEN_PATHS = frozenset({"/health", "/ready"})
"""Answered without the token, but only with what does not matter."""

_EXPOSED = "x-request-id, retry-after, x-should-retry"
_PREFLIGHT_SECONDS = "600"


class Guard:
    """`port` is the one the bridge listens on, which config.port does not tell when it is 0."""

    def __init__(self, config: BridgeConfig, port: int) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        names = {host, "127.0.0.1", "localhost"}
        self._hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
        self._origins = config.origins
        self._token = config.token.encode() if config.token is not None else None

    def check_door(self, headers: Mapping[str, str]) -> None:
        """Refuse another Host (a name that a page made resolve to this machine) and pages nobody allowed."""
        if headers.get("host", "").lower() not in self._hosts:
            allowed = " or ".join(sorted(self._hosts))
            raise ForbiddenHost(f"The Host header must be {allowed}.")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            raise ForbiddenOrigin("Web pages of this origin may not call the bridge; --allow-origin lets one in.")

    def check_token(self, headers: Mapping[str, str], path: str) -> None:
        if path not in _OPEN_PATHS and not self.knows(headers):
            raise InvalidApiKey("This bridge asks for its token, as Authorization: Bearer TOKEN.")

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether the caller presents the token, or none is set."""
        if self._token is None:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip()]
        # Both are compared, in constant time, whatever the first one gave.
        matches = [hmac.compare_digest(value.encode("utf-8", "replace"), self._token) for value in given]
        return any(matches)

    def preflight(self, method: str, headers: Mapping[str, str]) -> Response | None:
        """The answer to a browser that asks whether an allowed page may call; it comes before any token."""
        if method != "OPTIONS" or "origin" not in headers or "access-control-request-method" not in headers:
            return None
        answer = {
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": _PREFLIGHT_SECONDS,
        }
        if "access-control-request-private-network" in headers:
            answer["access-control-allow-private-network"] = "true"
        return Response(status_code=204, headers=answer)

    def cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What every answer to an allowed page carries."""
        origin = headers.get("origin")
        if origin is None or origin.lower() not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": _EXPOSED,
            "vary": "origin",
        }
