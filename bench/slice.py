"""What a step of a slice costs: the library's layers against the rebuilt ones."""

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
import typer

from bench.measure import JsonFile, Quick, Report, Rounds, in_turn
from cli.embedded import embedded_model
from peer.kv import PAGE, KvPool
from peer.loading import load_model
from peer.slice import Slice
from peer.step import Engine
from protos import peer_pb2
from protos.lanes import DECODE

CPU = torch.device("cpu")
GREEDY = peer_pb2.SamplingSpec(params=peer_pb2.SamplingParams(top_p=1, repetition_penalty=1))
SHORT, LONG, CHUNK = 200, 4000, 512
PAGES = 2 * -(-(LONG + PAGE) // PAGE)

Step = Callable[[], object]


def main(
    layers: Annotated[int, typer.Option(min=1, max=30, help="Of the embedded model's 30, from the first on.")] = 30,
    threads: Annotated[int, typer.Option(min=1, help="Those that wait spin: more than one needs an idle machine.")] = 1,
    prefill: Annotated[
        bool, typer.Option(help="Prefill 4,000 tokens too, beside the library's own; takes long.")
    ] = False,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Compute steps of the embedded model in this process, in float32, and tell the CPU time of each."""
    torch.set_num_threads(threads)
    engines = {"library": engine(layers, fused=False), "rebuilt": engine(layers, fused=True)}
    report = Report(f"{layers} layers, float32, {threads} threads, CPU time")
    work = {(what, who): step for who, each in engines.items() for what, step in steps(each).items()}
    if prefill:
        work |= {("prefill", who): prompt(each) for who, each in engines.items()}
        work["prefill", "transformers"] = library_prompt()
    names = {f"{what}|{who}": partial(cpu_ms, step) for (what, who), step in work.items()}
    for name, each in in_turn(names, 1 if quick else rounds).items():
        what, _, who = name.partition("|")
        report.add(what, who, "ms", each)
    report.show()
    report.save(json)


def steps(engine: Engine) -> dict[str, Step]:
    return {
        "1 session": decode(engine, 1, SHORT),
        "2 sessions": decode(engine, 2, SHORT),
        "16 sessions": decode(engine, 16, SHORT),
        f"1 session at {LONG}": decode(engine, 1, LONG),
        f"1 session at {LONG}, pages in two runs": decode(engine, 1, LONG, scattered=True),
    }


def cpu_ms(step: Step, _: int) -> float:
    """Milliseconds of CPU time, which other programs disturb less than they do the clock's."""
    began = time.process_time()
    step()
    return (time.process_time() - began) * 1e3


def engine(layers: int, *, fused: bool) -> Engine:
    slice = Slice.load(str(embedded_model()), 0, layers, dtype=torch.float32, device=CPU, fused=fused)
    pool = KvPool(slice, PAGES)
    for kept in (*pool.keys.values(), *pool.values.values()):
        kept.zero_()  # steps attend to a context that nobody has computed
    return Engine(slice, pool)


def decode(engine: Engine, sessions: int, context: int, scattered: bool = False) -> Step:
    """A step of so many sessions, each with so much context; scattered: as after a prefix hit."""
    each = -(-(context + 1) // PAGE)
    half = each // 2
    parts = [
        _segment(
            number,
            context,
            1,
            [(PAGES - half, half), (0, each - half)] if scattered else [(number * each, each)],
            sampled=int(engine.slice.last),
        )
        for number in range(sessions)
    ]
    return _step(engine, *parts)


def prompt(engine: Engine) -> Step:
    """A long prompt, in chunks as the room sends them."""
    chunks = [
        _step(engine, _segment(0, start, min(CHUNK, LONG - start), [(0, PAGES)], int(start + CHUNK >= LONG)))
        for start in range(0, LONG, CHUNK)
    ]
    return lambda: [chunk() for chunk in chunks]


def library_prompt() -> Step:
    """The same prompt through the library's whole model."""
    whole = load_model(str(embedded_model()), 0, 30, dtype=torch.float32, device=CPU)
    whole.set_attn_implementation("sdpa")
    ids = torch.tensor([[_token(0, at) for at in range(LONG)]])

    @torch.inference_mode()
    def forward() -> object:
        return whole(ids, use_cache=True, logits_to_keep=1)

    return forward


def _segment(session: int, start: int, rows: int, pages: list[tuple[int, int]], sampled: int) -> peer_pb2.Segment:
    return peer_pb2.Segment(
        session=session,
        start=start,
        ids=[_token(session, start + at) for at in range(rows)],
        pages=[peer_pb2.PageRun(first=first, count=count) for first, count in pages],
        sampled=sampled,
    )


def _token(session: int, position: int) -> int:
    return (7 * position + session) % 40000


def _step(engine: Engine, *segments: peer_pb2.Segment) -> Step:
    frame = peer_pb2.Frame(epoch=1, step=1, lane=DECODE, segments=segments)
    plan = peer_pb2.SamplingPlan(epoch=1, step=1, specs=[GREEDY] * sum(one.sampled for one in segments))
    return lambda: engine.run(frame, plan, {})
