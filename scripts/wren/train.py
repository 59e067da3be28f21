"""Training, from short conversations to long ones."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch.nn import functional
from torch.optim import AdamW, Muon
from transformers import Qwen3ForCausalLM

from scripts.wren.batches import Batch, Rows, batched, copying_row
from scripts.wren.model import logits
from scripts.wren.talks import training_talk
from scripts.wren.tools import Scope
from scripts.wren.words import Dice


@dataclass(frozen=True)
class Stage:
    """A part of the training."""

    share: float  # of all tokens
    longest: int  # conversation, in tokens
    batch: int  # tokens
    scope: Scope


@dataclass(frozen=True)
class Part:
    """A run of stages, whose learning rate warms up to `rate` of the usual one, stays, and falls to nothing."""

    stages: tuple[Stage, ...]
    rate: float
    copying: int = 0  # rows that teach copying alone, before everything else


# Copying, and choosing among few tools, are learned soonest where there is little else.
FIRST = Part(
    (
        Stage(0.15, 320, 2048, Scope(1, 2, 1)),
        Stage(0.25, 384, 3072, Scope(1, 3, 2)),
        Stage(0.60, 512, 4096, Scope(1, 4, 3)),
    ),
    rate=1.0,
    copying=2500,
)
# To tell what it can do from what it cannot comes last: from the start on it would take far longer to copy well.
SECOND = Part((Stage(1.0, 512, 4096, Scope(1, 4, 3, wide=True)),), rate=0.3)
TALKS = 400
"""How many are made at a time."""


def training_batches(part: Part, rows: Rows, dice: Dice, budget: int) -> Iterator[Batch]:
    yield from batched([copying_row(dice, rows.vocabulary) for _ in range(part.copying)], dice, part.stages[0].batch)
    for stage in part.stages:
        left = budget * stage.share
        while left > 0:
            made = rows.make([training_talk(dice, stage.scope) for _ in range(TALKS)], dice)
            for batch in batched([row for row in made if len(row.ids) <= stage.longest], dice, stage.batch):
                yield batch
                left -= batch.ids.numel()


def train(
    model: Qwen3ForCausalLM, part: Part, rows: Rows, dice: Dice, budget: int, keep: Callable[[int], None], every: int
) -> None:
    """Train on about `budget` tokens: Muon for the matrices of the layers, Adam for embeddings and norms.

    `keep` is called with the number of tokens seen, each time `every` more are.
    """
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    optimizers = [
        Muon(matrices, lr=0.01, weight_decay=0.01, momentum=0.95),
        AdamW(others, lr=0.004, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    rates = [group["lr"] * part.rate for opt in optimizers for group in opt.param_groups]
    seen, steps, shown, started = 0, 0, [], time.monotonic()
    for batch in training_batches(part, rows, dice, budget):
        done = seen / budget
        for group, rate in zip((g for opt in optimizers for g in opt.param_groups), rates, strict=True):
            group["lr"] = rate * min(1.0, (steps + 1) / 20, max(0.01, (1 - done) / 0.6))
        targets = batch.learn.roll(-1, 1)
        targets[:, -1] = False
        guess = logits(model, batch.ids, targets).float()
        loss = functional.cross_entropy(guess, batch.ids.roll(-1, 1)[targets])
        loss.backward()  # type: ignore[no-untyped-call]
        for opt in optimizers:
            opt.step()
            opt.zero_grad()
        if seen // every != (seen + batch.ids.numel()) // every:
            keep(seen)
        seen, steps = seen + batch.ids.numel(), steps + 1
        shown.append(loss.item())
        if steps % 50 == 0:
            mean, speed = sum(shown) / len(shown), seen / (time.monotonic() - started)
            print(f"step {steps} tokens {seen / 1e6:.2f}M loss {mean:.4f} {speed:.0f} tok/s", flush=True)
            shown.clear()
