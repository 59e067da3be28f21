"""How a command comes in by an invite that has no key: it asks the host, and waits."""

import getpass
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import grpc

from cli.errors import Failed
from protos import dial, room_pb2
from protos.invite import Invite
from protos.room_pb2_grpc import RoomStub
from protos.tunnel import TunnelFailed, reached


async def admitted(invite: Invite, side: str, name: str | None, tell: Callable[[str], None]) -> Invite:
    """An invite with a key: this one, or what the host of its room gives to `side` (peer or client) after a while.

    Raises Failed when the host says no, or the room cannot be reached.
    """
    if invite.key:
        return invite
    request = room_pb2.KnockRequest(name=name or _own_name(side), side=side)
    try:
        async with reached(invite) as near, await dial.open_channel(near) as channel:
            call = RoomStub(channel).Knock(request, metadata=dial.credentials(invite, version("pooled")))
            async for reply in call:
                if reply.key:
                    tell("the host has let this machine in")
                    return replace(invite, key=reply.key)
                tell(f"waiting for the host to let {reply.waiting.name} in")
    except (dial.Unreachable, dial.WrongCertificate, TunnelFailed) as error:
        raise Failed(str(error)) from error
    except grpc.aio.AioRpcError as error:
        raise Failed(dial.refusal(error).message) from error
    raise Failed("the room closed before its host had answered")


def _own_name(side: str) -> str:
    machine = platform.node() or side
    return machine if side == "peer" else f"{getpass.getuser()} at {machine}"
