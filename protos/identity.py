"""How a peer shows that it is the one it was before: its id stands for its public key, and it signs what proves that.

The signature covers a nonce of the room's, so that an overheard one opens nothing later, the room's certificate, so
that it opens no other room, and the peer's own certificate, so that nobody else can answer for it on a link.
"""

import hashlib

_PURPOSE = b"pooled peer joins a room, 1\0"

KEY_SIZE, NONCE_SIZE = 32, 32
"""Bytes of an Ed25519 public key, and of a room's nonce."""


def peer_id_of(public_key: bytes) -> str:
    """A peer's stable id: 128 bits of its public key's hash, in hex."""
    return hashlib.sha256(public_key).hexdigest()[:32]


def to_sign(nonce: bytes, room_fingerprint: str | None, certificate: bytes) -> bytes:
    """What a peer signs as it joins. `certificate` is its own (DER), no fingerprint stands for a room without TLS."""
    return b"".join(
        (_PURPOSE, nonce, bytes.fromhex(room_fingerprint or "00" * 32), hashlib.sha256(certificate).digest())
    )
