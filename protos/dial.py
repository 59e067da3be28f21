"""How one side dials another: pinned channels, their options, and the metadata every call carries."""

import hashlib
import ssl
from collections.abc import Sequence
from typing import NamedTuple

import grpc

from protos import PROTOCOL
from protos.invite import Invite
from protos.machine import user_id
from protos.proxies import open_connection, proxy_for

CODE, KEY, PROTOCOL_KEY, VERSION = "pooled-code", "pooled-key", "pooled-protocol", "pooled-version"
MEMBER, LANE, LINK, SHARE = "pooled-member", "pooled-lane", "pooled-link", "pooled-share"
ERRAND = "pooled-errand"
GUEST, HOST_KEY = "pooled-guest", "pooled-host-key"
ERROR, PARAM, RETRY_AFTER = "pooled-error", "pooled-param", "pooled-retry-after"

Metadata = tuple[tuple[str, str], ...]
Options = Sequence[tuple[str, int | str]]

CERTIFIED_NAME = "room.pooled.internal"
"""The name in every certificate of ours, whatever the address: whose it is, its fingerprint tells."""

MAX_MESSAGE = 64 << 20
"""Bytes of the largest gRPC message any side takes: a frame of a wide model's prefill chunk fits."""

HANDSHAKE = 5.0
"""Seconds that a server gets to show its certificate."""

SERVER_OPTIONS: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # Without this the server cuts a connection whose client pings every 5 s ("too many pings").
    ("grpc.http2.min_ping_interval_without_data_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    # What a caller that has vanished had open ends, and its memory with it.
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 10000),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # A second room on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
)

_CLIENT_OPTIONS: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 10000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # Channels to the same address would share one TCP connection, and a prefill would queue before a token.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class Refusal(NamedTuple):
    """Why the other side ended a call, as its trailing metadata tells."""

    code: str
    message: str
    param: str | None
    retry_after: int | None


class Unreachable(Exception):
    """Nobody speaks TLS at the address."""


class WrongCertificate(Exception):
    """Whoever answers at the address is not the room of the invite."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"who answers at {address} is not the room of this invite: the room was opened anew, or somebody sits in "
            "between; ask the host for a fresh invite"
        )


async def open_channel(invite: Invite, options: Options = ()) -> grpc.aio.Channel:
    """A channel to the invite's room, with a TCP connection of its own. `options` go before the usual ones.

    The certificate is looked at before anything is sent. Raises Unreachable or WrongCertificate.
    """
    return channel_to(invite.address, await pinned(invite), options)


async def pinned(invite: Invite) -> bytes | None:
    """The certificate at the invite's address (DER), which is the one the invite names; None for plain text.

    Raises Unreachable or WrongCertificate.
    """
    if invite.fingerprint is None:
        return None
    found = await _certificate_at(invite.host, invite.port)
    if fingerprint_of(found) != invite.fingerprint:
        raise WrongCertificate(invite.place)
    return found


def channel_to(address: str, certificate: bytes | None, options: Options = ()) -> grpc.aio.Channel:
    """A channel to HOST:PORT where whoever answers must hold the key of `certificate` (DER); None: plain text."""
    chosen = {**dict(_CLIENT_OPTIONS), **dict(options)}
    proxy = proxy_for(address.rpartition(":")[0].strip("[]"))
    if proxy is None:
        chosen["grpc.enable_http_proxy"] = 0
    else:
        chosen["grpc.http_proxy"] = proxy.url
    if certificate is None:
        return grpc.aio.insecure_channel(address, options=tuple(chosen.items()))
    roots = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
    chosen["grpc.ssl_target_name_override"] = CERTIFIED_NAME
    return grpc.aio.secure_channel(address, roots, options=tuple(chosen.items()))


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER), in hex."""
    return hashlib.sha256(certificate).hexdigest()


async def _certificate_at(host: str, port: int) -> bytes:
    """What a server shows to whoever shakes hands with it; nothing is trusted, and nothing sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])  # gRPC servers hang up on others
    try:
        _, writer = await open_connection(host, port)
    except OSError as error:
        raise Unreachable(f"nobody answers at {host}:{port}") from error
    try:
        await writer.start_tls(context, ssl_handshake_timeout=HANDSHAKE)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    except (OSError, EOFError) as error:
        raise Unreachable(f"nobody answers at {host}:{port}") from error
    finally:
        writer.transport.abort()  # a polite end would wait for the other side
    assert isinstance(shown, bytes)  # a TLS server always shows one
    return shown


def credentials(invite: Invite, version: str, guest: str = "") -> Metadata:
    """The metadata that lets a caller into the room; `guest` is a peer's id, by default whoever uses this machine."""
    return (
        (CODE, invite.code),
        (KEY, invite.key),
        (PROTOCOL_KEY, str(PROTOCOL)),
        (VERSION, version),
        (GUEST, guest or user_id()),
    )


def refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """What a failed call said. A failure without our metadata (nobody listens, the link broke) has code ''."""
    said: dict[str, str] = {key: value for key, value in (error.trailing_metadata() or ()) if isinstance(value, str)}
    retry_after = said.get(RETRY_AFTER, "")
    return Refusal(
        code=said.get(ERROR, ""),
        message=error.details() or error.code().name.lower().replace("_", " "),
        param=said.get(PARAM),
        retry_after=int(retry_after) if retry_after.isdigit() else None,
    )
