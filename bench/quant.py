"""What weights, keys and values in fewer bits cost and gain: speed, memory, and how often the best token changes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import typer
from transformers import AutoTokenizer

from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn
from cli.embedded import embedded_model
from peer.codec import INT8 as WIRE_INT8
from peer.kv import PAGE, KvPool
from peer.linear import INT4, INT8, NONE, Quant
from peer.slice import Slice
from peer.step import Engine
from protos import peer_pb2
from protos.lanes import DECODE
from tests.e2e.test_equality import PROMPTS

CPU = torch.device("cpu")
GREEDY = peer_pb2.SamplingSpec(params=peer_pb2.SamplingParams(top_p=1, repetition_penalty=1))
ANSWER = 50
"""Tokens of each greedy answer; the ten prompts of the equality test make 500 positions."""
LONG, MANY = 4000, 16
PAGES = 16 * 32


@dataclass(frozen=True)
class Form:
    dtype: torch.dtype = torch.float32
    quant: Quant = NONE
    kv: torch.dtype | None = None
    wire: bool = False
    """Hidden states cross to a second slice in 8 bits."""


FORMS = {
    "float32": Form(),
    "bfloat16": Form(torch.bfloat16),
    "int8": Form(quant=INT8),
    "int4": Form(quant=INT4),
    "KV bf16": Form(kv=torch.bfloat16),
    "KV int8": Form(kv=torch.int8),
    "wire int8": Form(wire=True),
}


class Contender:
    """The embedded model in one form, on one peer or, where hidden states are to cross a wire, on two."""

    def __init__(self, form: Form) -> None:
        cuts = [(0, 15), (15, 30)] if form.wire else [(0, 30)]
        self.engines = []
        for start, end in cuts:
            slice = Slice.load(str(embedded_model()), start, end, dtype=form.dtype, device=CPU, quant=form.quant)
            pool = KvPool(slice, PAGES, 0, form.kv)
            for kept in (*pool.keys.values(), *pool.values.values(), *(s for two in pool.steps.values() for s in two)):
                kept.zero_()  # steps that are timed attend to a context that nobody has computed
            self.engines.append(Engine(slice, pool))
            self.engines[-1].wire = WIRE_INT8 if form.wire else self.engines[-1].wire

    @property
    def megabytes(self) -> float:
        return sum(engine.slice.weight_bytes for engine in self.engines) / 1e6

    def run(self, *segments: peer_pb2.Segment) -> list[list[int]]:
        """The tokens of one frame, segment by segment."""
        frame = peer_pb2.Frame(epoch=1, step=1, lane=DECODE, segments=segments)
        plan = peer_pb2.SamplingPlan(epoch=1, step=1, specs=[GREEDY] * sum(one.sampled > 0 for one in segments))
        for engine in self.engines:
            out = engine.run(frame, plan, {})
            if isinstance(out, peer_pb2.FrameResult):
                return [[token.id for token in tokens.tokens] for tokens in out.segments]
            frame = out
        raise AssertionError("the last slice passed a frame on")

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """The greedy answer, token by token."""
        made: list[int] = []
        fed, done = list(prompt), 0
        while len(made) < count:
            ((token,),) = self.run(segment(0, done, fed, 1))
            done, fed = done + len(fed), [token]
            made.append(token)
        return made

    def choices(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """What it would say at each position of somebody's answer, given that answer so far."""
        ids = [*prompt, *answer[:-1]]
        (chosen,) = self.run(segment(0, 0, ids, len(answer)))
        return chosen

    def step(self, sessions: int, context: int) -> float:
        """Milliseconds of CPU time of one decode step, of a few the least disturbed."""
        segments = [segment(number, context, [5 + number], 1) for number in range(sessions)]
        took = []
        for _ in range(5):
            began = time.process_time()
            self.run(*segments)
            took.append((time.process_time() - began) * 1e3)
        return min(took)

    def prefill(self) -> float:
        """Milliseconds of CPU time of a chunk of 512 tokens."""
        began = time.process_time()
        self.run(segment(0, 0, range(1000, 1512), 1))
        return (time.process_time() - began) * 1e3


def segment(session: int, start: int, ids: Sequence[int], sampled: int) -> peer_pb2.Segment:
    each = -(-(start + len(ids)) // PAGE)
    pages = [peer_pb2.PageRun(first=session * each, count=each)]
    return peer_pb2.Segment(session=session, start=start, ids=ids, pages=pages, sampled=sampled)


def conversations() -> list[list[int]]:
    """The prompts, as the model's template renders them."""
    file = embedded_model()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    turns = ([{"role": "user", "content": prompt}] for prompt in PROMPTS)
    return [tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"] for each in turns]


def main(
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Waiting threads spin: one, unless all is idle.")
    ] = 1,
    rounds: Rounds = 5,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Hold the embedded model in several forms in one process; time steps in turn and compare greedy choices."""
    torch.set_num_threads(threads)
    rounds, prompts = 1 if quick else rounds, conversations()[: 1 if quick else None]
    report = Report(f"one slice of all layers, {threads} threads, CPU time")
    held = {name: Contender(form) for name, form in FORMS.items()}
    works = {
        "1 session": partial(Contender.step, sessions=1, context=200),
        f"1 session at {LONG}": partial(Contender.step, sessions=1, context=LONG),
        f"{MANY} sessions": partial(Contender.step, sessions=MANY, context=200),
        "prefill of 512": Contender.prefill,
    }
    figures = {}
    for what, work in works.items():
        turns = {name: (lambda _, each=each, work=work: work(each)) for name, each in held.items()}
        for name, took in in_turn(turns, rounds).items():
            figures[what, name] = report.add(what, name, "ms", took)
    answers = [held["float32"].answer(prompt, ANSWER) for prompt in prompts]
    same = {}
    for name, each in held.items():
        report.add("weights", name, "MB", [each.megabytes])
        chosen = [each.choices(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        pairs = [pair for one, answer in zip(chosen, answers, strict=True) for pair in zip(one, answer, strict=True)]
        same[name] = 100 * sum(a == b for a, b in pairs) / len(pairs)
        report.add(f"same best token, of {len(pairs)}", name, "%", [same[name]])
    report.goals += [
        Goal("1 session, float32 over int8", figures["1 session", "float32"].over(figures["1 session", "int8"]), 1.4),
        Goal("points that int8 agrees less than bfloat16", same["bfloat16"] - same["int8"], 3, at_most=True),
    ]
    report.show()
    report.save(json)
