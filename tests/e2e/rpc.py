"""Asks a room over gRPC, as a bridge does but with every sampling parameter."""

import asyncio
import ssl
from collections.abc import Iterator
from importlib.metadata import version

import grpc

from protos import dial, room_pb2, room_pb2_grpc
from protos.invite import Invite


class Caller:
    """Blocking calls to one room. Use as a context manager."""

    def __init__(self, invite: Invite) -> None:
        certificate = asyncio.run(dial.pinned(invite))
        assert certificate is not None
        roots = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
        name = ("grpc.ssl_target_name_override", dial.CERTIFIED_NAME)
        self._channel = grpc.secure_channel(invite.address, roots, options=[name])
        self._stub = room_pb2_grpc.RoomStub(self._channel)
        self._metadata = dial.credentials(invite, version("pooled"))

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def generate(self, question: str, max_new: int = 64, **sampling: object) -> Iterator[room_pb2.GenerateEvent]:
        request = room_pb2.GenerateRequest(
            turns=[room_pb2.Turn(role=room_pb2.ROLE_USER, text=question)],
            sampling=room_pb2.Sampling(**sampling),
            max_new=max_new,
        )
        return iter(self._stub.Generate(request, metadata=self._metadata, timeout=300))

    def tokens(self, question: str, max_new: int = 64, **sampling: object) -> list[bytes]:
        """The answer's visible tokens, one by one."""
        events = self.generate(question, max_new, logprobs=True, **sampling)
        return [token.token for event in events for token in event.text.tokens]

    def state(self) -> room_pb2.RoomState:
        watch = self._stub.Watch(room_pb2.WatchRequest(), metadata=self._metadata, timeout=120)
        state = next(iter(watch))
        watch.cancel()
        return state
