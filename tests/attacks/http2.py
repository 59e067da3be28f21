"""HTTP/2 written by hand, for what gRPC's own client would never send."""

import asyncio
import ssl
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call(path: str, metadata: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """The beginning of a gRPC call on stream 1, which the caller does not end."""
    headers = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", "room"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *metadata,
    ]
    block = b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)
    opening = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, block)
    return opening + frame(DATA, 0, 1, body)


def _string(text: str) -> bytes:
    """HPACK's literal, without Huffman's code. Surrogates stand for bytes that are no UTF-8."""
    data = text.encode(errors="surrogateescape")
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, length = len(data) - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    length.append(rest)
    return bytes(length) + data


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """TLS to a port of loopback, whoever is there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends stream 1, or the connection."""
    try:
        while True:
            head = await reader.readexactly(9)
            size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            await reader.readexactly(size)
            of_stream = int.from_bytes(head[5:]) == 1
            if of_stream and (kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM)):
                return True
    except (OSError, asyncio.IncompleteReadError):
        return True
