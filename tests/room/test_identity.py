"""A peer's id is its own: nobody else can go by it, and what was signed once opens nothing later."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protos import room_pb2
from protos.identity import peer_id_of, to_sign
from room.errors import ForgedPeer
from room.identity import Challenge

ROOM = "ab" * 32


def hello(key: Ed25519PrivateKey, challenge: Challenge, room: str | None = ROOM) -> room_pb2.Hello:
    """What a peer with that key answers."""
    public = key.public_key().public_bytes_raw()
    signature = key.sign(to_sign(challenge.nonce, room, b"certificate"))
    return room_pb2.Hello(
        peer_id=peer_id_of(public), public_key=public, certificate=b"certificate", signature=signature
    )


@pytest.mark.parametrize("room", [ROOM, None])
def test_a_peer_is_who_it_is(room: str | None) -> None:
    challenge = Challenge(room)
    challenge.check(hello(Ed25519PrivateKey.generate(), challenge, room))


def test_a_forged_or_overheard_hello_is_refused() -> None:
    mine, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    challenge = Challenge(ROOM)
    theirs = hello(other, challenge)
    forged = {
        "its id beside my key": {"peer_id": theirs.peer_id},
        "its id and key, signed by me": {"peer_id": theirs.peer_id, "public_key": theirs.public_key},
        "another certificate on the link": {"certificate": b"mine"},
        "no signature": {"signature": b""},
        "half a key": {"public_key": theirs.public_key[:16]},
        "all that was overheard earlier": {"signature": hello(mine, Challenge(ROOM)).signature},
        "overheard in another room": {"signature": hello(mine, challenge, "cd" * 32).signature},
    }
    for changed in forged.values():
        said = hello(mine, challenge)
        for name, value in changed.items():
            setattr(said, name, value)
        with pytest.raises(ForgedPeer):
            challenge.check(said)
