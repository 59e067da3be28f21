"""`pooled serve`: the bridge, OpenAI's API on this machine for one room."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli import options
from cli.client_token import VARIABLE, client_token
from cli.errors import failing, wrong_use
from cli.events import print_event
from cli.knocking import admitted
from cli.logs import log
from cli.screen import Screen, showing
from cli.stopping import run_until_stopped


def serve(
    context: typer.Context,
    invite: options.InviteArgument,
    port: options.Port = 8080,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Ask clients for the token in this file; goes before {VARIABLE}."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The token itself; other users can read it. Goes last.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Let web pages of this origin in; may be given several times."),
    ] = None,
    max_queue: Annotated[int, typer.Option(min=1, metavar="N", help="How many requests may wait before 429.")] = 8,
    keepalive: Annotated[
        float,
        typer.Option(min=0.05, metavar="SECONDS", help="Silence on a stream before a comment; for tests and demos."),
    ] = 10.0,
    events: options.Events = False,
) -> None:
    """Speak OpenAI's API on this machine for a room.

    Serves Chat Completions on 127.0.0.1 until Ctrl-C. Any API key works unless you set a token: by --token-file, by
    the variable POOLED_TOKEN, or by --token.

    \b
    Examples:
      pooled serve 'pooled://room.example:7070/ABC234#k=...&f=...'
      pooled serve 'pooled://...' --port 8081 --token-file ~/.pooled-token
      POOLED_INVITE='pooled://...' pooled serve
    """
    from bridge.app import run_bridge
    from bridge.config import BridgeConfig
    from bridge.errors import BadConfig, BridgeError

    chosen, warnings = client_token(token_file, os.environ, token)
    for warning in warnings:
        log.warning(warning)
    with wrong_use(BadConfig):
        config = BridgeConfig(
            port=port, token=chosen, allow_origins=tuple(allow_origin or ()), max_queue=max_queue, keepalive=keepalive
        )
    with showing(context.obj, silent=events) as screen, failing(BridgeError):
        tell = partial(_tell, screen, bool(chosen), events)

        async def run() -> None:
            admitted_by = await admitted(invite, "client", None, screen.say)
            await run_bridge(
                config,
                admitted_by,
                ready=tell,
                unready=partial(_tell_unready, screen),
                answering=partial(_tell_answering, screen, events),
            )

        run_until_stopped(run())


def _tell(screen: Screen, asks_token: bool, events: bool, base_url: str) -> None:
    if events:
        print_event("listening", base_url=base_url)
    else:
        print(base_url, flush=True)
    key = "your token as its API key" if asks_token else "any API key"
    screen.say(f"Give your OpenAI client this base URL and {key}.")


def _tell_answering(screen: Screen, events: bool) -> None:
    if events:
        print_event("ready")
    screen.say("The room is ready.")


def _tell_unready(screen: Screen, why: str) -> None:
    screen.say(f"The room is not ready yet, and requests are refused until it is: {why}.")
