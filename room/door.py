"""The room's door: who may call it, and how a call ends that may not, or fails."""

import logging
import secrets
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from protos import PROTOCOL, dial
from room.errors import CallError, InternalError, ProtocolMismatch, UnknownRoom, WrongHostKey, WrongKey

log = logging.getLogger("pooled.room")

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Door:
    """Checks the metadata that every call carries."""

    code: str
    key: str = field(repr=False)
    """What the invite carries."""
    host_key: str = field(repr=False)
    """What only the host has."""
    version: str
    """Of this side's pooled, for whoever speaks another protocol."""
    fingerprint: str | None = None
    """Of the room's certificate; None: plain text."""

    async def let_in(self, context: Context) -> dict[str, str]:
        """The metadata of a call that may go on; any other call is ended."""
        said = {key: str(value) for key, value in (context.invocation_metadata() or ())}
        try:
            self._check(said)
        except CallError as error:
            await abort(context, error)
        return said

    async def let_host_in(self, context: Context) -> None:
        """End the call unless the host makes it."""
        said = await self.let_in(context)
        if not _same(said.get(dial.HOST_KEY, ""), self.host_key):
            await abort(context, WrongHostKey())

    def _check(self, said: dict[str, str]) -> None:
        _check_protocol(said.get(dial.PROTOCOL_KEY, ""), said.get(dial.VERSION, "unknown"), self.version)
        if said.get(dial.CODE) != self.code:
            raise UnknownRoom(said.get(dial.CODE, "")[:8])
        if not _same(said.get(dial.KEY, ""), self.key):
            raise WrongKey()


def _same(given: str, key: str) -> bool:
    return secrets.compare_digest(given.encode(), key.encode())


def _check_protocol(theirs: str, their_version: str, our_version: str) -> None:
    """Raise ProtocolMismatch, which says which side is older and what to do."""
    if theirs == str(PROTOCOL):
        return
    if not theirs.isdigit():
        raise ProtocolMismatch("this is a Pooled room; the caller does not speak its protocol")
    older = "yours is the older one" if int(theirs) < PROTOCOL else "the room's is the older one"
    raise ProtocolMismatch(
        f"your pooled {their_version} speaks protocol {theirs}, the room's pooled {our_version} speaks {PROTOCOL}: "
        f"{older}, upgrade it with: pip install --upgrade pooled"
    )


async def abort(context: Context, error: CallError) -> NoReturn:
    """End a call with what the error says."""
    if isinstance(error, InternalError):
        log.error("request failed", extra={"why": str(error)})
    trailing = [(dial.ERROR, error.code)]
    if error.param is not None:
        trailing.append((dial.PARAM, error.param))
    if error.retry_after is not None:
        trailing.append((dial.RETRY_AFTER, str(error.retry_after)))
    await context.abort(error.status, str(error), tuple(trailing))
    raise AssertionError("abort raises")
