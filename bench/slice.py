"""What a step of one slice costs: the library's layers against the rebuilt ones, in one process.

    python -m bench.slice [--layers 30] [--threads 1] [--rounds 5] [--json FILE]

Holds the embedded model twice, in float32, and takes turns: decode steps of 1 and 16 sessions at 200 tokens of context,
of one session at 4,000, of one whose pages are in two runs (as after a prefix hit), and the prefill of 4,000 tokens,
beside the library's own forward of the whole model. Prints medians of CPU time, which other programs disturb least, and
their ratios; waiting threads spin, so use one thread unless the machine is idle.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from cli.embedded import embedded_model
from peer.kv import PAGE, KvPool
from peer.slice import Slice
from peer.step import Engine
from protos import peer_pb2
from protos.lanes import DECODE

GREEDY = peer_pb2.SamplingSpec(params=peer_pb2.SamplingParams(top_p=1, repetition_penalty=1))
SESSIONS, SHORT, LONG, CHUNK = 16, 200, 4000, 512
PAGES = 2 * -(-(LONG + PAGE) // PAGE)

Step = Callable[[], object]


def segment(session: int, start: int, rows: int, pages: list[tuple[int, int]], sampled: int) -> peer_pb2.Segment:
    return peer_pb2.Segment(
        session=session,
        start=start,
        ids=[(7 * (start + at) + session) % 40000 for at in range(rows)],
        pages=[peer_pb2.PageRun(first=first, count=count) for first, count in pages],
        sampled=sampled,
    )


def step(engine: Engine, *segments: peer_pb2.Segment) -> Step:
    frame = peer_pb2.Frame(epoch=1, step=1, lane=DECODE, segments=segments)
    plan = peer_pb2.SamplingPlan(epoch=1, step=1, specs=[GREEDY] * sum(one.sampled for one in segments))
    return lambda: engine.run(frame, plan, {})


def decode(engine: Engine, sessions: int, context: int, scattered: bool = False) -> Step:
    """A step of so many sessions, each with so much context."""
    each = -(-(context + 1) // PAGE)
    half = each // 2
    pages = [(PAGES - half, half), (0, each - half)] if scattered else None
    return step(
        engine,
        *(
            segment(number, context, 1, pages or [(number * each, each)], sampled=int(engine.slice.last))
            for number in range(sessions)
        ),
    )


def prefill(engine: Engine) -> Step:
    """A prompt in chunks as the room sends them."""
    chunks = [
        step(engine, segment(0, start, min(CHUNK, LONG - start), [(0, PAGES)], int(start + CHUNK >= LONG)))
        for start in range(0, LONG, CHUNK)
    ]
    return lambda: [chunk() for chunk in chunks]


def timed(work: Step, times: int) -> float:
    """Milliseconds of CPU time of one, by the median."""
    took = []
    for _ in range(times):
        began = time.process_time()
        work()
        took.append((time.process_time() - began) * 1e3)
    return statistics.median(took)


def measure(engines: dict[str, Engine], rounds: int) -> dict[str, float]:
    """Medians over rounds, in which everything has its turn."""
    work: dict[str, tuple[Step, int]] = {}
    for name, engine in engines.items():
        work |= {
            f"{name}, 1 session": (decode(engine, 1, SHORT), 10),
            f"{name}, {SESSIONS} sessions": (decode(engine, SESSIONS, SHORT), 4),
            f"{name}, 1 session at {LONG}": (decode(engine, 1, LONG), 5),
            f"{name}, 1 session at {LONG} in two runs": (decode(engine, 1, LONG, scattered=True), 5),
        }
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, (each, times) in work.items():
            found[name].append(timed(each, times))
    return {name: statistics.median(took[1:]) for name, took in found.items()}


def measure_prefill(engines: dict[str, Engine], whole: torch.nn.Module, rounds: int) -> dict[str, float]:
    ids = torch.tensor([[(7 * at) % 40000 for at in range(LONG)]])

    @torch.inference_mode()
    def library() -> object:
        return whole(ids, use_cache=True, logits_to_keep=1)

    work = {f"{name}, prefill of {LONG}": prefill(engine) for name, engine in engines.items()}
    work[f"transformers, prefill of {LONG}"] = library
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, each in work.items():
            found[name].append(timed(each, 1))
    return {name: statistics.median(took) for name, took in found.items()}


def engine(layers: int, fused: bool) -> Engine:
    slice = Slice.load(str(embedded_model()), 0, layers, dtype=torch.float32, device=torch.device("cpu"), fused=fused)
    pool = KvPool(slice, PAGES)
    for kept in (*pool.keys.values(), *pool.values.values()):
        kept.zero_()  # steps attend to a context that nobody has computed
    return Engine(slice, pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill-rounds", type=int, default=0, help="of 4,000-token prompts; needs all layers")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    engines = {"stock": engine(asked.layers, fused=False), "fused": engine(asked.layers, fused=True)}
    figures = measure(engines, asked.rounds)
    if asked.prefill_rounds:
        from peer.loading import load_model

        whole = load_model(str(embedded_model()), 0, 30, dtype=torch.float32, device=torch.device("cpu"))
        whole.set_attn_implementation("sdpa")
        figures |= measure_prefill(engines, whole.eval(), asked.prefill_rounds)
    print(f"{asked.layers} layers, float32, {asked.threads} threads, medians of {asked.rounds} rounds")
    for name, took in figures.items():
        stock = figures[name.replace("fused", "stock")]
        print(f"  {name:42} {took:8.1f} ms" + (f"   {stock / took:.2f}x" if name.startswith("fused") else ""))
    growth = figures[f"fused, 1 session at {LONG}"] / figures["fused, 1 session"]
    print(f"  a token at {LONG} of context costs {growth:.2f}x one at {SHORT}")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
