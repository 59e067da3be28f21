"""`pooled host`: open a room for a model and, unless told otherwise, lend this machine to it."""

import asyncio
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from cli import options, values
from cli.devices import check_device
from cli.draft import draft_command
from cli.errors import Failed, failing, ungrouped, wrong_use
from cli.events import print_event
from cli.gate import Gate
from cli.join import Lent, local_model
from cli.loading import Teller, room_states, tell_reading
from cli.logs import LogOptions, log
from cli.options import INVITE_VARIABLE
from cli.processes import ChildEnded, Event, pooled, supervised
from cli.screen import Screen, as_argument, showing
from cli.stopping import run_until_stopped
from protos.invite import Invite

if TYPE_CHECKING:
    from room.app import Opened
    from room.config import RoomConfig


def host(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a GGUF file, or a model id of the hub.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where peers and bridges dial in.")
    ] = "127.0.0.1:7070",
    public: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="What the invite names, where it differs from --listen.")
    ] = None,
    ws_listen: Annotated[
        str | None,
        typer.Option(
            parser=values.address,
            metavar="HOST:PORT",
            help="Where WebSockets come in besides, for networks that pass only HTTP. Default: nowhere.",
        ),
    ] = None,
    ws_public: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="wss://HOST/PATH, what the invite for WebSockets names: a proxy that leads to --ws-listen.",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDR",
            help="A proxy that leads to --ws-listen, an address or a network: its X-Forwarded-For says who comes. "
            "May be given more than once.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain text in place of TLS, on a loopback address; to look at traffic.")
    ] = False,
    allow_all: Annotated[
        bool, typer.Option("--allow-all", help="Let in who comes by an invite without its key; for closed networks.")
    ] = False,
    devices: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Deal once N peers are there. Default: as soon as the model fits."),
    ] = None,
    layers: options.Layers = None,
    deal: Annotated[
        str,
        typer.Option(metavar="AIM", help="Deal layers by memory, so that all peers are as full, or by measured speed."),
    ] = "memory",
    chains: Annotated[
        str,
        typer.Option(metavar="auto|N", help="Most chains of peers at work; auto: as many as hold the model."),
    ] = "auto",
    audit: Annotated[
        float,
        typer.Option(metavar="RATE", help="Share of prompts whose start other holders of layers check."),
    ] = 0.0,
    ctx: Annotated[int | None, typer.Option(metavar="N", help="Tokens of context. Default: the model's own.")] = None,
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests a chain answers at once.")] = 32,
    max_waiting: Annotated[int, typer.Option(min=0, metavar="N", help="Requests that may wait in line.")] = 64,
    quant: Annotated[
        str, typer.Option(metavar="BITS", help="Weights in none (as computed with), int8 or int4.")
    ] = "none",
    kv: Annotated[
        str, typer.Option(metavar="FORM", help="Keys and values in f32, bf16, int8, or auto: as computed.")
    ] = "auto",
    wire: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="Hidden states between peers: f32, bf16, int8, or auto: as computed, less where a link is slow.",
        ),
    ] = "auto",
    model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's id is pooled/NAME. Default: made from MODEL.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The room's name, shown to people.")] = None,
    speculate: Annotated[
        str, typer.Option(metavar="auto|off|K", help="Guess K tokens ahead from what the text repeats; auto: as pays.")
    ] = "auto",
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A small model on this machine, of the same tokens, that guesses where the text repeats nothing.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="T", help="Where a request sets none. Default: the model's own, else greedy."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Where a request sets none.")] = None,
    revision: Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a hub id.")] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What MODEL has to be, made by 'pooled manifest'. Default: what it is now."),
    ] = None,
    invite_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the invites there, readable by you alone.")
    ] = None,
    no_lend: Annotated[
        bool, typer.Option("--no-lend", help="Only coordinate; lend no memory of this machine.")
    ] = False,
    memory: options.Memory = None,
    device: options.Device = None,
    dtype: options.DType = None,
    threads: options.Threads = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep invites, peers and deal there: a restarted room takes them back."),
    ] = None,
    scripted: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play the tokens in FILE in place of a model; for tests.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what a scripted room was asked, prompts and all.")
    ] = None,
    events: options.Events = False,
) -> None:
    """Open a room and lend this machine to it.

    Prints two invites and runs until Ctrl-C: one for volunteers (pooled join) and one for those who may ask (pooled
    serve). Whoever has one gets in. 'pooled invite' makes others, and revokes them.

    \b
    Examples:
      pooled host ~/models/Qwen3-8B
      pooled host Qwen/Qwen3-8B --listen 0.0.0.0:7070 --public room.example:7070 --devices 3
      pooled host model.gguf --no-lend --invite-file invites.txt
      pooled host ~/models/Qwen3-8B --ws-listen 127.0.0.1:7080 --ws-public wss://room.example/pooled
      pooled host ~/models/Qwen3-8B --state ~/my-room
      pooled host ~/models/Qwen3-8B --draft ~/models/Qwen3-0.6B
    """
    from room.config import RoomConfig
    from room.errors import RoomError
    from room.model_errors import ModelError

    with wrong_use(RoomError):
        config = RoomConfig(
            model=model,
            revision=revision,
            manifest=manifest,
            listen=listen,
            public=public,
            ws_listen=ws_listen,
            ws_public=ws_public,
            trusted_proxies=tuple(trusted_proxy or ()),
            insecure=insecure,
            allow_all=allow_all,
            name=name,
            model_name=model_name,
            devices=devices,
            layers=values.layers(layers) if layers else None,
            deal=deal,
            chains=values.chains(chains),
            audit=audit,
            ctx=ctx,
            max_running=max_running,
            max_waiting=max_waiting,
            quant=quant,
            kv=kv,
            wire=wire,
            speculate=values.speculate(speculate),
            draft=draft,
            temperature=temperature,
            top_k=top_k,
            state=state,
            scripted=scripted,
            record=record,
        )
    lent = (
        None
        if no_lend or scripted
        else Lent(memory=memory, device=device, dtype=dtype, threads=threads, models=local_model(model))
    )
    if (lent or draft) and device not in (None, "cpu"):
        check_device(device)
    with showing(context.obj, silent=events) as screen, failing(RoomError, ModelError):
        drafting = draft_command(draft, device, threads) if draft else ()
        run_until_stopped(Opening(config, lent, drafting, invite_file, events, screen, context.obj).run())


@dataclass(frozen=True)
class Opening:
    """One room being opened: what is asked for, and where it is told."""

    config: "RoomConfig"
    lent: Lent | None
    """What a peer of this machine lends; None: nothing."""
    drafting: tuple[str, ...]
    """The command that runs the draft model, but for the room's code; empty: there is none."""
    invite_file: Path | None
    events: bool
    screen: Screen
    log_options: LogOptions

    async def run(self) -> None:
        """Run the room, and its local peer in a process of its own, until cancelled or until one of them fails."""
        _do_without_torch()
        from room.app import Opened, run_host

        opening: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        with ungrouped():
            async with anyio.create_task_group() as group, supervised(self.log_options.passed_on) as children:
                reading = partial(tell_reading, self.screen, "reading")
                group.start_soon(partial(run_host, self.config, ready=opening.set_result, reading=reading))
                opened = await opening
                self._publish(opened)
                group.start_soon(Gate(opened.host_key, self.screen, events=self.events).run)
                if self.lent is not None:
                    command = pooled(*self.lent.arguments, *self.log_options.arguments)
                    env = {INVITE_VARIABLE: str(opened.own)}
                    heard, left = self._heard, self._goes_on_without
                    await children.start("the local peer", command, env=env, on_event=heard, on_end=left)
                if self.drafting:
                    command = pooled(*self.drafting, f"--room={opened.own.code}", *self.log_options.arguments)
                    await children.start("the draft model", command, on_event=self._drafts, on_end=self._drafts_no_more)
                await self._tell(opened.own)

    def _publish(self, opened: "Opened") -> None:
        """Tell the invites: for each side a line for each way to the room."""
        invites = {"peer": list(map(str, opened.peers)), "client": list(map(str, opened.clients))}
        if self.invite_file is not None:
            lines = (f"{side} {invite}\n" for side, each in invites.items() for invite in each)
            _write_private(self.invite_file, "".join(lines))
        if self.events:
            print_event("listening", **invites)
        else:
            for side, command in (("peer", "join"), ("client", "serve")):
                for invite in invites[side]:
                    print(f"pooled {command} {as_argument(invite)}", flush=True)
        self.screen.say(
            "'pooled join' is for volunteers, 'pooled serve' for those who ask. An invite lets in whoever has it; "
            "without its k=... it lets in whom you allow. 'pooled invite' makes more."
        )

    def _heard(self, event: Event) -> None:
        """The local peer says something. That it loads, and how far, the room knows itself."""
        if event["event"] in ("reconnecting", "refused"):
            self.screen.say(f"The local peer: {event['text']}.")

    def _goes_on_without(self, ended: ChildEnded) -> None:
        """Somebody has asked the local peer to leave. Raises `ended` where it ended for another reason."""
        if ended.code != 0:
            raise ended
        self.screen.say(
            "The local peer has left; the room goes on without it. 'pooled join' with a peer's invite lends anew."
        )

    def _drafts(self, event: Event) -> None:
        """The draft model says something."""
        self.screen.say(f"Guesses: {event['text']}.")
        if self.events:
            print_event(**event)

    def _drafts_no_more(self, ended: ChildEnded) -> None:
        """Its guesses only made answers quicker."""
        self.screen.say(f"No more guesses: {ended}. The room goes on without.")
        log.warning("the draft model has ended; the room goes on without", extra={"why": str(ended)})

    async def _tell(self, local: Invite) -> None:
        teller, was_ready = Teller(self.screen), False
        async for state in room_states(local):
            teller.tell(state)
            if self.events and state.ready and not was_ready:
                print_event("ready", model=state.model, ctx=state.ctx)
            was_ready = state.ready


def _do_without_torch() -> None:
    """A room computes nothing, but transformers loads torch wherever it is: 2 s, and 200 MB for as long as it runs."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # as if it were not installed
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # else it says so


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, also where another one stood."""
    try:
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
    except OSError as error:
        raise Failed(f"cannot write the invite to {file}: {error.strerror}") from error
