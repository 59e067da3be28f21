"""The way out through a CONNECT proxy, where the environment names one, as gRPC goes it.

gRPC's variables hold: grpc_proxy, else https_proxy, else http_proxy; and no_grpc_proxy, else no_proxy, for hosts that
are reached without. The decision is taken here once, so that raw connections and channels take the same way.
"""

import asyncio
import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

OWN_HOST = "localhost"
"""This machine, as no proxy is asked for it: from there the name would lead to the proxy itself."""

MOST_REPLY = 64 << 10
"""Bytes of a proxy's reply to CONNECT."""


class ProxyRefused(OSError):
    """The proxy does not lead there, or does not speak CONNECT."""


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    user: str | None = None
    """NAME:PASSWORD."""

    @property
    def url(self) -> str:
        """As gRPC takes it."""
        user = f"{quote(self.user, safe=':')}@" if self.user else ""
        return f"http://{user}{self.host}:{self.port}"


def proxy_for(host: str, environ: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy on the way to `host`; None where there is none, or the variable names no http:// address."""
    named = next((environ[name] for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)), "")
    spared = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    parts = urlsplit(named)
    if parts.scheme != "http" or not parts.hostname or host == OWN_HOST or _is_spared(host, spared):
        return None
    user = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(parts.hostname, parts.port or 80, user)


async def open_connection(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TCP connection, through a proxy where the environment names one. Raises OSError."""
    proxy = proxy_for(host)
    if proxy is None:
        return await asyncio.open_connection(host, port)
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=MOST_REPLY)
    try:
        writer.write(_connect(host, port, proxy))
        status = (await reader.readuntil(b"\r\n\r\n")).split(None, 2)[1:2]
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        writer.transport.abort()
        raise ProxyRefused(f"the proxy at {proxy.host}:{proxy.port} does not speak CONNECT") from error
    if status != [b"200"]:
        writer.transport.abort()
        raise ProxyRefused(f"the proxy at {proxy.host}:{proxy.port} does not lead to {host}:{port}")
    return reader, writer


def _is_spared(host: str, spared: str) -> bool:
    """Whether the list names the host, or a domain that it is in, or all (`*`)."""
    names = [name.strip().lstrip(".").lower() for name in spared.split(",")]
    return "*" in names or any(name and f".{host.lower()}".endswith(f".{name}") for name in names)


def _connect(host: str, port: int, proxy: Proxy) -> bytes:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.user:
        head.append(f"Proxy-Authorization: Basic {base64.b64encode(proxy.user.encode()).decode()}")
    return "\r\n".join([*head, "", ""]).encode()
