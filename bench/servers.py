"""Ours and its rivals as processes on this machine, each behind an OpenAI-compatible address."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from bench.asking import TOKENS, Messages, Server, Together
from bench.weights import Weights
from peer.threads import usable
from tests.cluster import Cluster, free_port
from tests.e2e.rpc import Caller
from tests.proxy import SlowLink

NOWHERE = "127.0.0.1:9"
"""An address at which no peer is reached."""

LEAST_ROW = 128
"""Bytes that a token's hidden state takes at least on its way from one process to the next, in any form."""

START_WITHIN = 180.0
CORES = usable(os.cpu_count() or 1)


class CannotStart(Exception):
    """A rival is not installed or does not come up; the message says which and why."""


class LinksUnused(Exception):
    """What was measured did not go over the links that it was to be measured on: the figures mean nothing."""


@dataclass(frozen=True)
class Slow:
    """What every link between the processes of ours is like, from their start on."""

    delay: float = 0.0
    """Seconds one way."""
    rate: float | None = None
    """Bytes a second in each direction; None: no limit."""
    relayed: bool = False
    """Peers cannot reach each other: the room relays."""


@dataclass(frozen=True)
class Running:
    """One contender that answers."""

    server: Server
    links: tuple[SlowLink, ...] = ()
    """Between all its processes, where they were asked for."""
    cluster: Cluster | None = None
    """Of ours."""

    def ask(self, *conversations: Messages, tokens: int = TOKENS) -> Together:
        """Raises LinksUnused where there are links and less went over them than the answers take."""
        carried = self.carried
        together = self.server.ask(*conversations, tokens=tokens)
        if self.links:
            rows = sum(each.prompt_tokens - each.cached_tokens + each.tokens - 1 for each in together.answers)
            require_carried(self.carried - carried, rows * LEAST_ROW)
        return together

    @property
    def carried(self) -> int:
        """Bytes that all links have carried."""
        return sum(link.carried for link in self.links)

    @property
    def straight(self) -> bool:
        """Whether the first peer of ours sends straight to the next one."""
        assert self.cluster is not None
        with Caller(self.cluster.client_invite) as caller:
            return min(caller.state().peers, key=lambda peer: peer.start).direct

    def slow_down(self, delay: float, rate: float | None) -> None:
        """Let every link take `delay` seconds one way, and at most `rate` bytes a second."""
        for link in self.links:
            link.delay, link.rate = delay, rate


def require_carried(carried: int, least: int) -> None:
    """Raises LinksUnused."""
    if carried < least:
        raise LinksUnused(f"{carried} bytes went over the links where {least} at least have to")


@contextmanager
def ours(
    model: Path, folder: Path, *, peers: int, slow: Slow | None = None, verbose: bool = False, host: Sequence[str] = ()
) -> Iterator[Running]:
    """A room, its peers and a bridge; with `slow` all links but the bridge's are SlowLinks: there is no way round them.

    Raises LinksUnused where the first peer does not send the way it should.
    """
    folder.mkdir()
    log = ("--json-log", "-vv") if verbose else ()
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(
                model,
                folder,
                peers=0,
                host=["--devices", str(peers), *log, *host],
                serve=["--max-queue", "64"],
                join=["--dtype", "float32"],
                threads=CORES,
            )
        )
        links: list[SlowLink] = []
        for _ in range(peers):
            if slow is None:
                cluster.join()
                continue
            to_room = stack.enter_context(SlowLink(cluster.invite.port, delay=slow.delay, rate=slow.rate))
            port = free_port()
            to_peer = stack.enter_context(SlowLink(port, delay=slow.delay, rate=slow.rate))
            at = NOWHERE if slow.relayed else f"127.0.0.1:{to_peer.port}"
            here = ("--listen", f"127.0.0.1:{port}", "--advertise", at)
            cluster.join(*here, invite=replace(cluster.invite, port=to_room.port))
            links += (to_room, to_peer)
        cluster.wait_ready()
        running = Running(Server(cluster.base_url), tuple(links), cluster)
        if slow is not None and peers > 1 and running.straight is slow.relayed:
            raise LinksUnused(f"hidden states go {'straight' if slow.relayed else 'through the room'}")
        yield running


@dataclass(frozen=True)
class LlamaCpp:
    """Where llama.cpp's programs are."""

    server: Path
    rpc_server: Path | None


@contextmanager
def llama(
    programs: LlamaCpp,
    weights: Weights,
    folder: Path,
    *,
    rpc: int,
    slots: int,
    ctx: int,
    slow: bool = False,
    drafts: bool = False,
) -> Iterator[Running]:
    """llama-server with `rpc` RPC servers that share the layers evenly, or with none and the layers its own.

    `ctx` is tokens for each of `slots`. With `slow` the links to the RPC servers are SlowLinks. With `drafts` it
    guesses ahead by n-grams. Raises CannotStart.
    """
    folder.mkdir()
    with ExitStack() as stack:
        addresses, links = [], []
        for number in range(rpc):
            port = free_port()
            command = [str(programs.rpc_server), "-H", "127.0.0.1", "-p", str(port), "-t", str(CORES)]
            rpc_server = stack.enter_context(_running(f"rpc-server-{number}", command, folder))
            rpc_server.wait_until(partial(_listens, port))
            if slow:
                links.append(stack.enter_context(SlowLink(port)))
            addresses.append(f"127.0.0.1:{links[-1].port if slow else port}")
        port = free_port()
        command = [str(programs.server), "-m", str(weights.gguf), "--host", "127.0.0.1", "--port", str(port), "--jinja"]
        # Else it saves a slot's prompt in its own memory before it takes another: minutes, over a slow link.
        command += ["-t", str(CORES), "-np", str(slots), "-c", str(slots * ctx), "--cache-ram", "0"]
        if drafts:
            command += ["--spec-type", "ngram-simple"]
        if rpc:
            command += ["--rpc", ",".join(addresses), "-ngl", "999", "-ts", ",".join("1" * rpc)]
        server = stack.enter_context(_running("llama-server", command, folder))
        server.wait_until(partial(_answers, f"http://127.0.0.1:{port}/health"))
        yield Running(Server(f"http://127.0.0.1:{port}/v1", model="default"), tuple(links))


@contextmanager
def transformers_serve(weights: Weights, folder: Path) -> Iterator[Running]:
    """`transformers serve` with continuous batching. Raises CannotStart."""
    folder.mkdir()
    port = free_port()
    model = str(weights.directory)
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, "--continuous-batching"]
    # Unbounded, it takes most of the machine's memory for its cache: here as many tokens as llama-server gets.
    command += ["--cb-block-size", "32", "--cb-num-blocks", "1024"]
    command += ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    with _running("transformers serve", command, folder) as server:
        server.wait_until(partial(_answers, f"http://127.0.0.1:{port}/health"))
        yield Running(Server(f"http://127.0.0.1:{port}/v1", model=model))


@dataclass(frozen=True)
class _Rival:
    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def wait_until(self, up: Callable[[], bool]) -> None:
        """Raises CannotStart."""
        deadline = time.monotonic() + START_WITHIN
        while not up():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace").strip().splitlines()[-5:]
                raise CannotStart(f"{self.name} does not come up: {' / '.join(said)[-500:]}")
            time.sleep(0.1)


@contextmanager
def _running(name: str, command: Sequence[str], folder: Path) -> Iterator[_Rival]:
    log = folder / f"{name.replace(' ', '-')}.log"
    env = {**os.environ, "OMP_NUM_THREADS": str(CORES), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        try:
            popen = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
        except OSError as error:
            raise CannotStart(f"{name} cannot be run: {error.strerror}") from error
    try:
        yield _Rival(name, popen, log)
    finally:
        popen.terminate()
        try:
            popen.wait(10)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as reply:
            return int(reply.status) == 200
    except OSError:
        return False
