"""Whether a peer is who it says it is."""

import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protos import room_pb2
from protos.identity import KEY_SIZE, NONCE_SIZE, peer_id_of, to_sign
from room.errors import ForgedPeer


@dataclass(frozen=True)
class Challenge:
    """What one peer has to sign, once: a fresh nonce, for the room of that certificate."""

    room_fingerprint: str | None
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_SIZE))

    def check(self, hello: room_pb2.Hello) -> None:
        """Raise ForgedPeer unless the caller holds the private key that its id stands for."""
        if len(hello.public_key) != KEY_SIZE or hello.peer_id != peer_id_of(hello.public_key):
            raise ForgedPeer()
        signed = to_sign(self.nonce, self.room_fingerprint, hello.certificate)
        try:
            Ed25519PublicKey.from_public_bytes(hello.public_key).verify(hello.signature, signed)
        except (InvalidSignature, ValueError) as error:
            raise ForgedPeer() from error
