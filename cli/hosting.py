"""How a host's commands reach the room that runs on this machine."""

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, TypeVar

import grpc
import typer

from cli.errors import Failed, WrongUse
from protos import dial
from protos.host_key import HostKey, open_rooms
from protos.room_pb2_grpc import HostStub

if TYPE_CHECKING:
    from protos.room_pb2_grpc import HostAsyncStub

T = TypeVar("T")

RoomCode = Annotated[
    str | None, typer.Option("--room", metavar="CODE", help="Which room, where several run on this machine.")
]


def hand_on(context: typer.Context, room: str | None, as_json: bool) -> None:
    """Give a group's command what stood before its name. Raises WrongUse for --json, which only lists know."""
    if as_json:
        raise WrongUse(f"--json lists; leave it out, or leave out {context.invoked_subcommand}")
    if room is not None:
        context.default_map = {str(context.invoked_subcommand): {"room": room}}


def ask_room(code: str | None, call: Callable[["HostAsyncStub", dial.Metadata], Awaitable[T]]) -> T:
    """What this machine's room answers to `call`, which is given a stub and the metadata that opens it.

    Raises Failed when there is no such room, when there are several and no code, or when the room refuses.
    """
    return asyncio.run(_ask(open_room(code), call))


async def _ask(host_key: HostKey, call: Callable[["HostAsyncStub", dial.Metadata], Awaitable[T]]) -> T:
    try:
        async with await dial.open_channel(host_key.invite) as channel:
            return await call(HostStub(channel), host_key.credentials(version("pooled")))
    except (dial.Unreachable, dial.WrongCertificate) as error:
        raise _hangs(host_key, str(error)) from error
    except grpc.aio.AioRpcError as error:
        said = dial.refusal(error)
        if said.code or error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise Failed(said.message) from error
        raise _hangs(host_key, said.message) from error


def _hangs(host_key: HostKey, why: str) -> Failed:
    return Failed(f"room {host_key.invite.code} of this machine does not answer, so it is ending or hangs: {why}")


def open_room(code: str | None) -> HostKey:
    """The room of that code on this machine, or the only one. Raises Failed."""
    rooms = {host_key.invite.code: host_key for host_key in open_rooms()}
    if not rooms:
        raise Failed("no room of yours runs on this machine; open one with 'pooled host', or ask where it runs")
    if code is None and len(rooms) > 1:
        raise Failed(f"several rooms run on this machine; name one with --room: {', '.join(rooms)}")
    chosen = rooms.get(code.upper()) if code else next(iter(rooms.values()))
    if chosen is None:
        raise Failed(f"no room {code} of yours runs on this machine; there is {', '.join(rooms)}")
    return chosen
