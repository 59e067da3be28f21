"""A room of real processes, its links through proxies, and the faults that are done to it while it answers."""

import math
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import openai

from protos import room_pb2
from tests.cluster import Cluster, Process, get
from tests.e2e.rpc import Caller
from tests.proxy import SlowLink

QUESTIONS = ("Tell me of the sea.", "Who are you?", "What is left of it all? " * 20, "Count the ships. " * 12)
NEW = 120
"""Tokens of each answer."""

PEERS = ("p1", "p2", "p3", "p4")
"""Three serve, one is spare; which, changes from round to round."""

HEALED_WITHIN = 240.0


@dataclass(frozen=True)
class Outcome:
    text: str
    error: str
    """The typed error's code; empty for a whole answer."""
    pause: float
    """Longest between two chunks, in seconds."""


class Chaos:
    """Use `opened`. Each fault is a method; it returns when it is over."""

    def __init__(self, cluster: Cluster, links: dict[str, SlowLink], seed: int, lost_for: float) -> None:
        self.cluster = cluster
        self.links = links
        self.random = random.Random(seed)
        self.lost_for = lost_for
        self.peers: dict[str, Process] = {}
        self.twins: dict[str, str] = {}
        self._chunks = 0  # that have come, of all answers
        self._usual = 0  # of the twins

    # ------------------------------------------------------------ the room

    def join(self, name: str) -> None:
        behind = replace(self.cluster.invite, port=self.links[name].port)
        self.peers[name] = self.cluster.join(invite=behind, name=name)

    def open_room(self) -> None:
        self.cluster.open_room(f"127.0.0.1:{self.cluster.invite.port}")

    def state(self) -> room_pb2.RoomState:
        with Caller(self.cluster.client_invite) as caller:
            return caller.state()

    def holders(self) -> list[str]:
        """The names of the peers that hold layers."""
        return sorted(peer.name for peer in self.state().peers if peer.end)

    def serving(self) -> str:
        """One of them, drawn by lot."""
        return self.random.choice(self.holders())

    def heal(self) -> None:
        """Everybody is back, the room is at rest, and the bridge knows."""
        for name, process in self.peers.items():
            if process.popen.poll() is not None:
                self.join(name)

        def healed() -> bool:
            state = self.state()
            if get(f"{self.cluster.origin}/ready") != 200:
                return False
            rest = (state.running, state.waiting, state.pages_free) == (0, 0, state.pages)
            kinds = {peer.state for peer in state.peers}
            return rest and state.ready and len(state.peers) == len(self.peers) and kinds <= {"ready", "spare"}

        self.wait(healed)

    def know_twins(self) -> None:
        """Ask everything once, undisturbed."""
        self.twins = {question: self.ask(question).text for question in QUESTIONS}
        self._usual = self._chunks

    def wait(self, reached: Callable[[], bool], look_every: float = 0.2) -> None:
        deadline = time.monotonic() + HEALED_WITHIN
        while not reached():
            assert time.monotonic() < deadline, f"{self.state()}\n{self.cluster.room.said()}"
            time.sleep(look_every)

    # ------------------------------------------------------------ answers

    def ask(self, question: str) -> Outcome:
        text, error, pause, heard_at = "", "", 0.0, math.inf
        with openai.OpenAI(base_url=self.cluster.base_url, api_key="any", max_retries=0, timeout=300) as client:
            try:
                for chunk in client.chat.completions.create(
                    model="pooled",
                    messages=[{"role": "user", "content": question}],
                    max_tokens=NEW,
                    temperature=0,
                    stream=True,
                ):
                    self._chunks += 1
                    pause, heard_at = max(pause, time.monotonic() - heard_at), time.monotonic()
                    text += chunk.choices[0].delta.content or ""
            except openai.APIError as raised:
                error = raised.code or type(raised).__name__
        return Outcome(text, error, pause)

    @contextmanager
    def asking(self, count: int) -> Iterator[list[Future[Outcome]]]:
        """Requests at work, some of them in line; their outcomes are there when the block has ended."""
        with ThreadPoolExecutor(count) as pool:
            yield [pool.submit(self.ask, QUESTIONS[number % len(QUESTIONS)]) for number in range(count)]

    def round(self, fault: str, *, count: int = 6) -> list[Outcome]:
        """Do a fault at a random moment to a room at work, then see it heal."""
        # Counted in chunks, since how fast they come depends on the machine; before the first, prompts are read.
        begun, wait_for = self._chunks, int(self.random.uniform(0.0, 0.6) * self._usual * count / len(QUESTIONS))
        with self.asking(count) as futures:
            self.wait(lambda: self.state().running > 0)
            self.wait(lambda: self._chunks >= begun + wait_for, look_every=0.005)
            getattr(self, fault)()
        outcomes = [future.result() for future in futures]
        self.heal()
        return outcomes

    def wrong(self, outcomes: Sequence[Outcome], *, may_end_with: frozenset[str] = frozenset()) -> list[str]:
        """What is not as in an undisturbed room."""
        found = []
        for number, outcome in enumerate(outcomes):
            twin = self.twins[QUESTIONS[number % len(QUESTIONS)]]
            if outcome.error and outcome.error not in may_end_with:
                found.append(f"{number}: {outcome.error} after {len(outcome.text)} characters")
            elif not outcome.error and outcome.text != twin:
                found.append(f"{number}: another answer, {outcome.text[:60]!r} for {twin[:60]!r}")
            elif not twin.startswith(outcome.text):
                found.append(f"{number}: another beginning")
        return found

    # ------------------------------------------------------------ faults

    def kill(self) -> None:
        popen = self.peers[self.serving()].popen
        popen.kill()
        popen.wait(10)  # else it may still seem alive when all answers are there

    def stop_briefly(self) -> None:
        self._stop(3.0)

    def stop_for_long(self) -> None:
        self._stop(self.lost_for)

    def _stop(self, seconds: float) -> None:
        peer = self.peers[self.serving()]
        peer.signal(signal.SIGSTOP)
        time.sleep(seconds)
        peer.signal(signal.SIGCONT)

    def cut(self) -> None:
        self.links[self.serving()].cut()

    def swallow(self) -> None:
        """A link that loses everything without a word, until the peer counts as lost."""
        link = self.links[self.serving()]
        link.hole = True
        time.sleep(self.lost_for)
        link.hole = False
        link.cut()

    def slow(self) -> None:
        link = self.links[self.serving()]
        link.delay, link.rate = 0.1, 200_000.0
        time.sleep(3.0)
        link.delay, link.rate = 0.0, None

    def leave(self) -> None:
        peer = self.peers[self.serving()]
        peer.signal(signal.SIGTERM)
        assert peer.popen.wait(120) == 0, peer.said()

    def restart_room(self) -> None:
        self.cluster.room.popen.kill()
        self.cluster.room.popen.wait(60)
        self.open_room()


FAULTS = ("kill", "stop_briefly", "cut", "slow", "stop_for_long", "swallow", "leave")


@contextmanager
def opened(model: Path, folder: Path, *, seed: int, lost_for: float, running: int = 3) -> Iterator[Chaos]:
    """`lost_for`: seconds of a fault that makes a peer count as lost. `running`: answers at once."""
    host = ["--state", str(folder / "state"), "--max-running", str(running), "--max-waiting", "512", "--devices", "3"]
    serve = ["--max-queue", "256", "--keepalive", "0.5"]
    with ExitStack() as stack:
        cluster = Cluster(model, folder, peers=0, host=host, serve=serve, threads=1)
        # The room comes back at the same address, so it cannot be given any free port.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cluster.listen = f"127.0.0.1:{port}"
        stack.enter_context(cluster)
        links = {name: stack.enter_context(SlowLink(port)) for name in PEERS}
        chaos = Chaos(cluster, links, seed, lost_for)
        for name in PEERS:
            chaos.join(name)
        chaos.heal()
        chaos.know_twins()
        yield chaos
