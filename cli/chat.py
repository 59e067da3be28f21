"""`pooled chat`: ask a room from the terminal."""

import asyncio
import os
import secrets
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, values
from cli.errors import failing
from cli.knocking import admitted
from cli.loading import LOADING, loaded
from cli.screen import Screen, printable, showing
from protos import room_pb2
from protos.invite import Invite

if TYPE_CHECKING:
    from bridge.client import RoomClient

_MAX_NEW = 16_384
"""Tokens of an answer at most, as in the HTTP API; the room caps it by the context left."""

_PROMPT = "> "


def chat(
    context: typer.Context,
    invite: options.InviteOrQuestion,
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="Ask this and leave; without it, talk.")
    ] = None,
) -> None:
    """Ask a room from the terminal.

    One question, or a conversation that remembers what was said and ends with Ctrl-D. Waits while the room loads.

    \b
    Examples:
      pooled chat 'pooled://room.example:7070/ABC234#k=...&f=...' "What is a KV cache?"
      pooled chat 'pooled://...'
      POOLED_INVITE='pooled://...' pooled chat "What is a KV cache?"
    """
    from bridge.client import RoomClient
    from bridge.errors import BridgeError

    room_invite, question = _told_apart(invite, question)
    # A runner, not one coroutine: between two questions `input` may wait in this thread, where Ctrl-C ends it.
    with showing(context.obj) as screen, failing(BridgeError), asyncio.Runner() as runner:
        key = runner.run(admitted(room_invite, "client", None, screen.say))
        room = runner.run(RoomClient.connect(key, version=version("pooled")))
        try:
            if room.state.why_code == LOADING:
                runner.run(loaded(key, screen))
            talk = Talk(room, screen, key)
            if question is not None:
                runner.run(talk.ask(question))
            else:
                _converse(runner, talk, screen)
        finally:
            runner.run(room.close())


def _told_apart(first: str, question: str | None) -> tuple[Invite, str | None]:
    """A question alone is for the room of POOLED_INVITE. Raises BadParameter."""
    kept = os.environ.get(options.INVITE_VARIABLE)
    if kept and question is None and "://" not in first:
        return values.invite(kept), first
    try:
        return values.invite(first), question
    except typer.BadParameter as error:
        error.param_hint = "'INVITE'"
        raise


def _converse(runner: asyncio.Runner, talk: "Talk", screen: Screen) -> None:
    from bridge.errors import ApiError

    with suppress(ImportError):
        import readline  # noqa: F401  (gives `input` its line editing)

    while (line := _read_line()) is not None:
        try:
            if line.strip():
                runner.run(talk.ask(line))
        except ApiError as error:
            screen.say(f"That did not work: {error}")


def _read_line() -> str | None:
    """What was typed; None at the end of the input."""
    try:
        return input(_PROMPT if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _whole(text: str) -> str:
    """Without the halves of characters that bytes of another encoding leave in what is typed or piped in."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Talk:
    """A conversation. A question that fails is not remembered."""

    def __init__(self, room: "RoomClient", screen: Screen, invite: Invite) -> None:
        self._room = room
        self._screen = screen
        self._invite = invite
        self._turns: list[room_pb2.Turn] = []

    async def ask(self, question: str) -> None:
        """Print the answer on stdout as it comes, once the room does not load (any more). Raises ApiError."""
        from bridge.errors import Loading

        while True:
            try:
                return await self._ask(question)
            except Loading:  # its peers changed since the last question
                await loaded(self._invite, self._screen)

    async def _ask(self, question: str) -> None:
        asked = room_pb2.Turn(role=room_pb2.ROLE_USER, text=_whole(question))
        request = room_pb2.GenerateRequest(
            request_id=secrets.token_hex(8), turns=[*self._turns, asked], max_new=_MAX_NEW, client=self._room.id
        )
        answer, cut = "", False
        try:
            async for event in self._room.generate(request):
                answer += event.text.text
                cut = event.finish.reason == room_pb2.FINISH_REASON_LENGTH or cut
                self._show(event)
        finally:
            if answer and not answer.endswith("\n"):
                print(flush=True)
        if cut:
            self._screen.say("The answer is cut off here: there is no room left in the context.")
        self._turns += [asked, room_pb2.Turn(role=room_pb2.ROLE_ASSISTANT, text=answer)]

    def _show(self, event: room_pb2.GenerateEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "text":
            print(printable(event.text.text), end="", flush=True)
        elif kind == "queued" and event.queued.ahead:
            about = f", about {event.queued.eta} s" if event.queued.eta else ""
            self._screen.say(f"Waiting, {event.queued.ahead} ahead{about}.")
        elif kind == "notice":
            self._screen.say(event.notice.text)
