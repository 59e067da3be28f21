"""Ours beside its rivals, in turn, on the same weights in float32: `make bench`."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import httpx
import typer

from bench import plot
from bench.asking import TOKENS, Messages, Together
from bench.generate import transformers_generate
from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn, progress
from bench.prefix import converse, opening
from bench.profile import Profiler
from bench.servers import CORES, CannotStart, LlamaCpp, Running, Slow, llama, ours, transformers_serve
from bench.weights import Weights, prepare
from bench.workloads import renaming, stories
from cli.embedded import embedded_model

OURS, LLAMA, LLAMA_RPC = "ours", "llama.cpp", "llama.cpp RPC"
LLAMA_DRAFTS = "llama.cpp RPC, n-gram drafts"
"""Not what llama-server does unless it is told to; asked only where copying makes drafts pay."""
SERVE, GENERATE = "transformers serve", "transformers generate"
WARM_UP_TOKENS = 12
GOAL_DELAY = 25.0
"""Milliseconds one way at which a goal is set."""

RATED_DELAY = 5.0
"""Milliseconds one way of a link whose rate is limited."""


class Contender(Protocol):
    def ask(self, *conversations: Messages, tokens: int = TOKENS) -> Together: ...


C = TypeVar("C", bound=Contender)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    streams: tuple[int, ...]
    many: int
    """Streams where only one and many are compared."""
    delays: tuple[float, ...]
    """Milliseconds one way."""
    rates: tuple[float, ...]
    """Mbit/s in each direction."""
    context: int
    """Tokens of a long conversation."""
    tokens: int = TOKENS
    """Of each answer."""
    copied: int = 128
    """Of an answer that copies its prompt."""

    @property
    def rounds_beside(self) -> int:
        """Where no goal is set and rounds are long."""
        return max(1, self.rounds // 2)


QUICK = Scale(rounds=1, streams=(1, 4), many=4, delays=(0, GOAL_DELAY), rates=(), context=500, tokens=12, copied=24)


@dataclass(frozen=True)
class Bench:
    scale: Scale
    weights: Weights
    folder: Path
    programs: LlamaCpp | None
    report: Report
    salts: Iterator[int]
    profile: Report | None
    """Where the time of ours goes, if that is to be told."""

    # ------------------------------------------------------------ sections

    def machine(self) -> None:
        """One process with the whole model, one and many streams."""
        with ExitStack() as stack:
            field = self._field(stack)
            field.enter(OURS, ours(self.weights.directory, self._folder(), peers=1, verbose=self.profile is not None))
            field.enter(SERVE, transformers_serve(self.weights, self._folder()))
            field.enter(GENERATE, transformers_generate(self.weights.directory, CORES))
            if self.programs:
                field.enter(LLAMA, self._llama(rpc=0, slots=self.scale.many))
            for streams in (1, self.scale.many):
                self._plain(field, f"{streams} streams, one machine", streams, self.scale.rounds)

    def loopback(self) -> None:
        """Two peers or RPC servers, from one stream to many, and an answer that copies its prompt."""
        with ExitStack() as stack:
            field = self._field(stack)
            field.enter(OURS, ours(self.weights.directory, self._folder(), peers=2, verbose=self.profile is not None))
            field.enter(SERVE, transformers_serve(self.weights, self._folder()))
            if self.programs and self.programs.rpc_server:
                field.enter(LLAMA_RPC, self._llama(rpc=2, slots=max(self.scale.streams)))
                field.enter(LLAMA_DRAFTS, self._llama(rpc=2, slots=1, drafts=True))
            for streams in self.scale.streams:
                self._plain(field, f"{streams} streams, 2 peers", streams, self.scale.rounds)
            self._copying(field, "copying, 1 stream, 2 peers", self.scale.rounds)
        for streams, against_llama, against_serve in ((1, 0.8, 1.1), (self.scale.many, 1.0, 1.25)):
            self._ratio(f"{streams} streams, 2 peers", LLAMA_RPC, against_llama)
            self._ratio(f"{streams} streams, 2 peers", SERVE, against_serve)
        grown = [self.report.find(f"{streams} streams, 2 peers", OURS) for streams in self.scale.streams]
        steps = [after.over(before) for before, after in pairwise(each for each in grown if each)]
        if steps:
            self.report.goals.append(Goal("growth with streams, least step", min(steps), 0.95))

    def slow(self) -> None:
        """Every link between the processes delayed, or limited in rate."""
        with ExitStack() as stack:
            field = self._field(stack)
            field.enter(
                OURS,
                ours(self.weights.directory, self._folder(), peers=2, slow=Slow(), verbose=self.profile is not None),
            )
            if self.programs and self.programs.rpc_server:
                field.enter(LLAMA_RPC, self._llama(rpc=2, slots=self.scale.many, slow=True))
                field.enter(LLAMA_DRAFTS, self._llama(rpc=2, slots=1, slow=True, drafts=True))
            for delay, rate in self._conditions():
                for running in field.running:
                    running.slow_down(delay / 1e3, rate and rate * 1e6 / 8)
                rounds = self.scale.rounds if (delay, rate) == (GOAL_DELAY, None) else self.scale.rounds_beside
                where = f"links {delay:g} ms" + (f" {rate:g} Mbit/s" if rate else "")
                field.warm_up(stories(self.scale.many, next(self.salts)), without=LLAMA_DRAFTS)
                for streams in (1, self.scale.many):
                    self._plain(field, f"{streams} streams, {where}", streams, rounds)
                if (delay, rate) == (GOAL_DELAY, None):
                    self._copying(field, f"copying, 1 stream, {where}", rounds)
        where = f"links {GOAL_DELAY:g} ms"
        self._ratio(f"{self.scale.many} streams, {where}", LLAMA_RPC, 2.2)
        self._ratio(f"1 streams, {where}", LLAMA_RPC, 1.1)
        self._ratio(f"copying, 1 stream, {where}", LLAMA_RPC, 2.0)

    def context(self) -> None:
        """A long conversation: its pace beside a short one's, and how soon its next turn is answered."""
        with ours(self.weights.directory, self._folder(), peers=2) as room:
            long = self.scale.context
            room.ask(*stories(1, next(self.salts)))
            short, turns = [], []
            for number in range(self.scale.rounds):
                salt = next(self.salts)
                short.append(room.ask(opening(200, salt + 50_000), tokens=self.scale.tokens).answers[0])
                turns.append(converse(room.server, long, salt, self.scale.tokens))
                progress(f"a conversation of {long} tokens, round {number + 1} of {self.scale.rounds}")
        add = self.report.add
        at_short = add("per token at 200 tokens", OURS, "ms", [each.per_token * 1e3 for each in short])
        at_long = add(f"per token at {long} tokens", OURS, "ms", [each.cold.per_token * 1e3 for each in turns])
        after_hit = add(
            f"per token at {long} tokens, next turn", OURS, "ms", [each.following.per_token * 1e3 for each in turns]
        )
        ttft = add(f"first token at {long} tokens", OURS, "s", [each.cold.first for each in turns])
        next_ttft = add(f"first token at {long} tokens, next turn", OURS, "s", [each.following.first for each in turns])
        kept = add("share of the former turn held", OURS, "", [each.reused for each in turns])
        self.report.goals += [
            Goal(f"per token, {long} over 200 tokens", at_long.over(at_short), 1.8, at_most=True),
            Goal(f"per token, {long} (next turn) over 200 tokens", after_hit.over(at_short), 1.8, at_most=True),
            Goal("first token, next turn over cold", next_ttft.over(ttft), 0.1, at_most=True),
            Goal("cached_tokens over tokens sent before", kept.median, 0.95),
        ]

    # ------------------------------------------------------------ parts of a section

    def _conditions(self) -> Iterator[tuple[float, float | None]]:
        yield from ((delay, None) for delay in self.scale.delays)
        yield from ((RATED_DELAY, rate) for rate in self.scale.rates)

    def _plain(self, field: "Field", what: str, streams: int, rounds: int) -> None:
        salts = [next(self.salts) for _ in range(rounds)]
        field.compare(
            what, lambda number: stories(streams, salts[number]), rounds, self.scale.tokens, without=LLAMA_DRAFTS
        )

    def _copying(self, field: "Field", what: str, rounds: int) -> None:
        salts = [next(self.salts) for _ in range(rounds)]
        field.compare(what, lambda number: [renaming(salts[number])], rounds, self.scale.copied)

    def _ratio(self, what: str, rival: str, bound: float) -> None:
        mine, its = self.report.find(what, OURS), self.report.find(what, rival)
        if mine and its:
            self.report.goals.append(Goal(f"{what}, over {rival}", mine.over(its), bound))

    def _llama(
        self, *, rpc: int, slots: int, slow: bool = False, drafts: bool = False
    ) -> AbstractContextManager[Running]:
        assert self.programs is not None
        return llama(
            self.programs, self.weights, self._folder(), rpc=rpc, slots=slots, ctx=1024, slow=slow, drafts=drafts
        )

    def _field(self, stack: ExitStack) -> "Field":
        return Field(stack, self.report, stories(self.scale.many, next(self.salts)), self.profile)

    def _folder(self) -> Path:
        return self.folder / str(next(self.salts))


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "machine": Bench.machine,
    "loopback": Bench.loopback,
    "slow": Bench.slow,
    "context": Bench.context,
}


class Field:
    """The contenders of one section. One that does not come up, or fails, is left out and noted."""

    def __init__(self, stack: ExitStack, report: Report, warm_up: Sequence[Messages], profile: Report | None) -> None:
        self._stack = stack
        self._report = report
        self._warm_up = warm_up
        self._contenders: dict[str, Contender] = {}
        self._profile = profile
        self._profilers: dict[str, Profiler] = {}

    @property
    def running(self) -> list[Running]:
        return [each for each in self._contenders.values() if isinstance(each, Running)]

    def enter(self, name: str, contender: AbstractContextManager[Contender]) -> None:
        """Start a contender and let it answer once, so that no measurement is its first."""
        try:
            started = self._stack.enter_context(contender)
            began = time.perf_counter()
            started.ask(*self._warm_up, tokens=WARM_UP_TOKENS)
        except (CannotStart, httpx.HTTPError) as error:
            self._report.notes.append(f"{name} is left out: {_told(error)}")
        else:
            self._contenders[name] = started
            if self._profile is not None and isinstance(started, Running) and started.cluster:
                self._profilers[name] = Profiler(started.cluster)
                self._stack.callback(self._profilers[name].tell, self._profile)
            progress(f"{name} is up, {time.perf_counter() - began:.1f} s for its first answers")

    def warm_up(self, conversations: Sequence[Messages], *, without: str) -> None:
        """Let everybody but `without` get used to new conditions."""
        for name in [name for name in self._contenders if name != without]:
            self._ask(name, conversations, WARM_UP_TOKENS)

    def compare(
        self,
        what: str,
        conversations: Callable[[int], Sequence[Messages]],
        rounds: int,
        tokens: int,
        *,
        without: str = "",
    ) -> None:
        """Ask all contenders but `without` in turn, and report the tokens per second of all streams together."""

        def run(name: str, number: int) -> Together | None:
            profiler = self._profilers.get(name)
            if profiler is not None:
                profiler.skip()
            together = self._ask(name, conversations(number), tokens)
            if together is not None and profiler is not None:
                profiler.take(what, together)
            if together is not None:
                progress(f"{what}: {name} {together.tokens_per_second:.1f} tok/s, round {number + 1} of {rounds}")
            return together

        given = in_turn({name: partial(run, name) for name in self._contenders if name != without}, rounds)
        for name, each in given.items():
            done = [together for together in each if together is not None]
            if len(done) == rounds:
                self._report.add(what, name, "tok/s", [together.tokens_per_second for together in done])

    def _ask(self, name: str, conversations: Sequence[Messages], tokens: int) -> Together | None:
        """None where the contender has failed, now or before."""
        if (contender := self._contenders.get(name)) is None:
            return None
        try:
            together = contender.ask(*conversations, tokens=tokens)
        except httpx.HTTPError as error:
            del self._contenders[name]
            self._report.notes.append(f"{name} is left out from here on: {_told(error)}")
            return None
        return together


def main(
    rounds: Rounds = 5,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help=f"Only these parts: {', '.join(SECTIONS)}.")
    ] = None,
    streams: Annotated[str, typer.Option(metavar="N,...", help="Streams at once.")] = "1,2,4,8,16,32",
    delays: Annotated[
        str, typer.Option(metavar="MS,...", help="Delays of each link, one way; '' for none.")
    ] = "0,5,25,50",
    rates: Annotated[
        str, typer.Option(metavar="MBIT,...", help="Rates of each link, beside 5 ms; '' for none.")
    ] = "10,100",
    llama_server: Annotated[Path | None, typer.Option(metavar="PATH", help="llama.cpp's llama-server.")] = None,
    rpc_server: Annotated[
        Path | None, typer.Option(metavar="PATH", help="llama.cpp's rpc-server (ggml-rpc-server).")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A GGUF file. Default: the embedded model.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the weights there, as float32, for the next run.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Tell where the time of ours goes, too.")] = False,
    quick: Quick = False,
    json: JsonFile = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plot there.")] = None,
) -> None:
    """Measure ours and the rivals that are here on the same weights, in turn.

    Streamed answers of 48 tokens over HTTP: on one machine, on two peers, with slow links between all processes, with
    an answer that copies its prompt, and with a long conversation. The full run takes about 25 minutes.
    """
    scale = QUICK if quick else Scale(rounds, _integers(streams), 16, _numbers(delays), _numbers(rates), 4000)
    report = Report("Ours and its rivals: float32, 48-token answers")
    shares = Report("Where the time of ours goes: ms a decode frame, processor ms a token", compared=False)
    programs = LlamaCpp(llama_server.absolute(), rpc_server and rpc_server.absolute()) if llama_server else None
    if programs is None:
        report.notes.append("llama.cpp is left out: name its programs with --llama-server and --rpc-server")
    with tempfile.TemporaryDirectory() as folder:
        weights = prepare(model or embedded_model(), keep or Path(folder))
        bench = Bench(scale, weights, Path(folder), programs, report, count(1), shares if profile else None)
        for name in only.split(",") if only else SECTIONS:
            SECTIONS[name](bench)
    report.show()
    if profile:
        shares.show()
        report.figures += shares.figures
    report.save(json)
    if svg is not None:
        plot.draw(report, svg)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part)


def _told(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
