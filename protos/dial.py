"""How one side dials another: channel options and the metadata every call carries."""

from collections.abc import Sequence
from typing import NamedTuple

import grpc

from protos import PROTOCOL
from protos.invite import Invite

CODE, KEY, PROTOCOL_KEY, VERSION = "pooled-code", "pooled-key", "pooled-protocol", "pooled-version"
MEMBER, LANE, LINK = "pooled-member", "pooled-lane", "pooled-link"
HOST_KEY = "pooled-host-key"
ERROR, PARAM, RETRY_AFTER = "pooled-error", "pooled-param", "pooled-retry-after"

Metadata = tuple[tuple[str, str], ...]
Options = Sequence[tuple[str, int | str]]

MAX_MESSAGE = 64 << 20
"""Bytes of the largest gRPC message any side takes: a frame of a wide model's prefill chunk fits."""

SERVER_OPTIONS: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # Without this the server cuts a connection whose client pings every 5 s ("too many pings").
    ("grpc.http2.min_ping_interval_without_data_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
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


def open_channel(address: str, options: Options = ()) -> grpc.aio.Channel:
    """A channel with a TCP connection of its own to `address` (HOST:PORT). `options` go before the usual ones."""
    return grpc.aio.insecure_channel(address, options=tuple({**dict(_CLIENT_OPTIONS), **dict(options)}.items()))


def credentials(invite: Invite, version: str) -> Metadata:
    """The metadata that lets a caller into the room."""
    return (
        (CODE, invite.code),
        (KEY, invite.key),
        (PROTOCOL_KEY, str(PROTOCOL)),
        (VERSION, version),
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
