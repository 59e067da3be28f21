"""`pooled demo`: a room, its peers and a bridge on this machine, each in a process of its own."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import anyio
import typer

from cli import options, values
from cli.embedded import embedded_model
from cli.errors import Failed, WrongUse, failing
from cli.join import Lent, local_model
from cli.loading import RoomState, Teller, room_states
from cli.logs import LogOptions
from cli.options import INVITE_VARIABLE
from cli.processes import Children, Event, pooled, supervised
from cli.screen import Screen, showing
from cli.stopping import run_until_stopped
from protos.invite import Invite

_EMBEDDED_SAMPLING = ("--temperature=0.7", "--top-k=40")
"""For requests that set none: a model this small repeats itself without end when it is greedy."""

_BANNER = """
Pooled is ready: {model} on {peers}.

    Base URL   {base_url}
    API key    anything

Ask it with curl:

    curl {base_url}/chat/completions -H 'content-type: application/json' -d '{{
      "model": "pooled", "messages": [{{"role": "user", "content": "What is a KV cache?"}}],
      "max_completion_tokens": 200, "stream": true}}'

or from Python (pip install openai):

    from openai import OpenAI

    client = OpenAI(base_url="{base_url}", api_key="pooled")
    stream = client.chat.completions.create(
        model="pooled",
        messages=[{{"role": "user", "content": "What is a KV cache?"}}],
        max_completion_tokens=200,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

Ctrl-C ends it. 'pooled invite client' prints an invite to its room, for 'pooled chat' and 'pooled status'.
"""


def demo(
    context: typer.Context,
    peers: Annotated[
        int | None, typer.Option(min=1, max=64, metavar="N", help="Default: 2, or as --layers says.")
    ] = None,
    port: options.Port = 8080,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A directory, GGUF file or hub id. Default: the embedded model.")
    ] = None,
    dtype: options.DType = None,
    layers: options.Layers = None,
) -> None:
    """Try it: a whole room on this machine.

    Runs a room, its peers and a bridge, each in a process of its own, until Ctrl-C. Without --model it is the small
    embedded one, SmolLM2-135M-Instruct.

    \b
    Examples:
      pooled demo
      pooled demo --peers 3 --port 8081
      pooled demo --layers 3,26,1 --dtype float32
    """
    dealt = values.layers(layers) if layers else None
    if dealt and peers not in (None, len(dealt)):
        raise WrongUse(f"--layers names {len(dealt)} peers and --peers {peers}; leave one of them out")
    count = len(dealt) if dealt else peers or 2
    room = ("--devices", str(count), *(("--layers", layers) if layers else ()), *(() if model else _EMBEDDED_SAMPLING))
    with showing(context.obj) as screen:
        show = Demo(model or str(embedded_model()), room, count, port, dtype, screen, context.obj)
        run_until_stopped(show.run())
        screen.say("Stopped.")


@dataclass(frozen=True)
class Demo:
    model: str
    room_arguments: tuple[str, ...]
    peers: int
    port: int
    dtype: str | None
    screen: Screen
    log_options: LogOptions

    async def run(self) -> None:
        """Start everything, tell when it answers, and wait until it is cancelled or a process ends: ChildEnded."""
        _check_port(self.port)
        self.screen.say(f"Starting a room, {self.peers} {'peer' if self.peers == 1 else 'peers'} and a bridge.")
        async with supervised(self.log_options.passed_on) as children:
            peers, clients = await self._start_room(children)
            await self._start_peers(children, peers)
            base_url, answering = await self._start_bridge(children, clients)
            state = await self._loaded(clients)
            await answering  # the bridge may hear it later than this process
            print(_BANNER.format(model=state.model, base_url=base_url, peers=_holders(state)), flush=True)
            await anyio.sleep_forever()

    async def _start_room(self, children: Children) -> tuple[Invite, Invite]:
        """Its invites, for peers and for clients."""
        listening, hear = _milestone("listening")
        command = self._pooled("host", self.model, "--no-lend", "--listen=127.0.0.1:0", "--json", *self.room_arguments)
        await children.start("the room", command, on_event=hear)
        told = await listening
        return Invite.parse(told["peer"][0]), Invite.parse(told["client"][0])

    async def _start_peers(self, children: Children, invite: Invite) -> None:
        env = {INVITE_VARIABLE: str(invite)}
        for number in range(1, self.peers + 1):
            memory, models = values.Memory(share=1 / self.peers), local_model(self.model)
            lent = Lent(name=f"peer {number}", memory=memory, dtype=self.dtype, models=models)
            await children.start(f"peer {number}", self._pooled(*lent.arguments), env=env)

    async def _start_bridge(self, children: Children, invite: Invite) -> tuple[str, "asyncio.Future[Event]"]:
        """Its base URL, and what is done once it can answer there."""
        (listening, hear_listening), (ready, hear_ready) = _milestone("listening"), _milestone("ready")

        def hear(event: Event) -> None:
            hear_listening(event)
            hear_ready(event)

        command = self._pooled("serve", f"--port={self.port}", "--json")
        await children.start("the bridge", command, env={INVITE_VARIABLE: str(invite)}, on_event=hear)
        return str((await listening)["base_url"]), ready

    async def _loaded(self, invite: Invite) -> RoomState:
        """Wait until the room answers. Raises Failed when it cannot with the peers there are."""
        teller = Teller(self.screen)
        async with aclosing(room_states(invite)) as states:
            async for state in states:
                if state.why_code == "no_pipeline" and len(state.peers) >= self.peers:
                    raise Failed(state.why)
                if state.ready:
                    teller.tell_loading(state)
                    break
                teller.tell(state)
        self.screen.settle()
        return state

    def _pooled(self, *arguments: str) -> tuple[str, ...]:
        return pooled(*arguments, *self.log_options.arguments)


def _check_port(port: int) -> None:
    """Raise Failed for a port that the bridge could not listen on: it starts last, when all else has loaded."""
    from bridge.app import listening
    from bridge.config import BridgeConfig
    from bridge.errors import PortTaken

    with failing(PortTaken), listening(BridgeConfig(port=port)):
        pass


def _milestone(name: str) -> tuple["asyncio.Future[Event]", Callable[[Event], None]]:
    """A future of the first event of that name, and what hears a child's events for it."""
    reached: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def hear(event: Event) -> None:
        if event.get("event") == name and not reached.done():
            reached.set_result(event)

    return reached, hear


def _holders(state: RoomState) -> str:
    return " and ".join(f"{peer.name} (layers {peer.start} to {peer.end - 1})" for peer in state.peers if peer.end)
