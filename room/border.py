"""What peers say, looked at before anything is made of it: sizes, names, and numbers that are none.

What is refused here costs its sender the stream it came on, and nobody else anything.
"""

import math

from protos import peer_pb2, room_pb2
from room.errors import InvalidValue
from room.members import DTYPE_BYTES
from room.names import checked_name

MAX_ADDRESSES, MAX_ADDRESS = 8, 300
MAX_CERTIFICATE = 8 << 10
MAX_TESTED = 1 << 20
"""Bytes of what a test frame came to."""

MAX_REASON = 500
"""Characters of a sentence about what failed; more is cut off."""

MAX_TOP = 20
"""Alternatives to one sampled token."""


def checked_hello(message: room_pb2.FromMember | None) -> room_pb2.Hello:
    """A peer's first message, as a Hello that makes sense. Raises InvalidValue."""
    if message is None or message.WhichOneof("payload") != "hello":
        raise InvalidValue("hello", "a peer says hello first")
    hello = message.hello
    if not hello.peer_id:
        raise InvalidValue("hello", "a peer has an id")
    for name in (
        hello.peer_id, hello.name, hello.device, hello.machine, hello.torch_version, hello.transformers_version
    ):  # fmt: skip
        checked_name("hello", name)
    if len(hello.link_addresses) > MAX_ADDRESSES or any(len(each) > MAX_ADDRESS for each in hello.link_addresses):
        raise InvalidValue(
            "link_addresses", f"a peer has at most {MAX_ADDRESSES} addresses of {MAX_ADDRESS} characters"
        )
    if len(hello.certificate) > MAX_CERTIFICATE:
        raise InvalidValue("certificate", f"a peer's certificate has at most {MAX_CERTIFICATE} bytes")
    if hello.dtype not in DTYPE_BYTES:
        raise InvalidValue("dtype", f"dtype is one of {', '.join(DTYPE_BYTES)}, got {hello.dtype[:20]!r}")
    return hello


def checked_word(message: room_pb2.FromMember) -> room_pb2.FromMember:
    """A later message of a peer's membership stream, sentences cut to their limit. Raises InvalidValue."""
    beat, ready, prepared, link = message.heartbeat, message.ready, message.prepared, message.link
    seconds = (
        beat.step_seconds,
        beat.echo,
        beat.since,
        ready.layer_seconds,
        prepared.layer_seconds,
        link.round_trip,
        message.progress.done,
    )
    if not all(math.isfinite(number) and number >= 0 for number in seconds) or message.progress.done > 1:
        raise InvalidValue("seconds", "times are 0 or more, and progress is between 0 and 1")
    if len(message.tested.values) > MAX_TESTED:
        raise InvalidValue("tested", f"a test frame comes to at most {MAX_TESTED} bytes")
    if len(message.failed.reason) > MAX_REASON:
        message.failed.reason = message.failed.reason[:MAX_REASON]
    return message


def checked_frame(message: peer_pb2.FromPeer) -> peer_pb2.FromPeer:
    """A message on one of a peer's lanes, sentences cut to their limit. Raises InvalidValue."""
    tokens = (token for segment in message.result.segments for token in segment.tokens)
    if any(len(token.top) > MAX_TOP for token in tokens):
        raise InvalidValue("top", f"a token has at most {MAX_TOP} alternatives")
    if len(message.fault.reason) > MAX_REASON:
        message.fault.reason = message.fault.reason[:MAX_REASON]
    return message
