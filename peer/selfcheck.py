"""Before a peer lends itself to a model, it cuts a tiny random model of the same class and compares it with the whole.

Which architectures can be cut is not a list of names kept here: it is tried out, each time.
"""

import copy
import logging
from typing import Any
from zlib import crc32

import torch

from peer.batch import Batch
from peer.checkpoint import Checkpoint, open_checkpoint
from peer.errors import UnsupportedArchitecture
from peer.kv import KvPool
from peer.library import quiet
from peer.model import architecture, cut
from peer.shrink import VOCABULARY, shrink
from peer.slice import Slice
from peer.varlen import VarlenKernel
from protos import peer_pb2

log = logging.getLogger("pooled.peer")

CLOSE = 1e-4
"""Largest difference of logits, relative to the largest logit, that counts as rounding."""

_PAGES = {0: [(3, 1), (9, 1)], 1: [(5, 1)], 2: [(0, 2)]}
"""By session: runs of pages. Session 0's do not follow each other."""

_STEPS: list[dict[int, int]] = [{0: 5, 2: 9}, {0: 4, 1: 6, 2: 6}, {0: 1, 1: 1, 2: 1}, {0: 1, 2: 1}, {0: 8, 2: 4}]
"""By frame: tokens of each session. Chunks and single tokens mixed, windows overrun, a page crossed."""


def self_check(source: str) -> Checkpoint:
    """Raise UnsupportedArchitecture, naming the architecture, unless slices of a model like `source` work.

    Opens the checkpoint (raising what `open_checkpoint` raises) and reads no weights. Takes a second or two.
    """
    checkpoint = open_checkpoint(source)
    check_architecture(checkpoint.config, checkpoint.model_class)
    return checkpoint


def check_architecture(config: Any, model_class: Any) -> None:
    """Compare two slices of a tiny random model of `model_class`, with `config`'s flags, with the whole of it.

    Raises UnsupportedArchitecture.
    """
    name = architecture(config)
    found = 0.0
    # A second try, since a random router may stand on the edge between two experts.
    for seed in (0, 1):
        try:
            with quiet():
                whole = _tiny(config, model_class, seed)
                expected = _whole_logits(whole)
        except Exception as error:
            raise UnsupportedArchitecture(
                f"{name} could not be tried out on a small model ({_brief(error)}); use a model of another architecture"
            ) from error
        try:
            found = _difference(expected, _sliced_logits(whole))
        except UnsupportedArchitecture:
            raise
        except Exception as error:
            raise UnsupportedArchitecture(
                f"{name} cannot be cut into slices ({_brief(error)}); use a model of another architecture"
            ) from error
        if found <= CLOSE:
            log.info("slices of %s match the whole within %.1e", name, found)
            return
    raise UnsupportedArchitecture(
        f"{name} cannot be cut into slices (their logits differ from the whole model's by {found:.0e}); "
        "use a model of another architecture"
    )


def fingerprint(source: str) -> bytes:
    """What slices of a tiny model like `source` make of a few frames: logits, as float32 little-endian.

    Its weights follow from its tensors' names, so that two peers get the same whatever their libraries' way of drawing
    weights, as long as they compute the same. Raises what `self_check` raises.
    """
    checkpoint = open_checkpoint(source)
    try:
        with quiet():
            model = _tiny(checkpoint.config, checkpoint.model_class, 0)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(crc32(name.encode())))
                    parameter.copy_(1 + drawn / 10 if parameter.dim() == 1 else drawn / parameter.shape[-1] ** 0.5)
            ends = [logits[-1] for logits in _sliced_logits(model)]
    except Exception as error:
        raise UnsupportedArchitecture(
            f"{architecture(checkpoint.config)} cannot be cut into slices ({_brief(error)}); use a model of another "
            "architecture"
        ) from error
    return torch.cat(ends).numpy().astype("<f4").tobytes()


def _tiny(config: Any, model_class: Any, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class._from_config(shrink(config), dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Fresh weights are so small that every token looks alike, and norms of exactly one would hide a lot.
                if parameter.dim() > 1:
                    parameter.mul_(4)
                else:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def _tokens(session: int) -> torch.Tensor:
    count = sum(step.get(session, 0) for step in _STEPS)
    return torch.randint(5, VOCABULARY, (count,), generator=torch.Generator().manual_seed(session))


@torch.inference_mode()
def _whole_logits(model: Any) -> list[torch.Tensor]:
    return [model(_tokens(session)[None], use_cache=False).logits[0] for session in _PAGES]


@torch.inference_mode()
def _sliced_logits(model: Any) -> list[torch.Tensor]:
    """The same logits, through two slices and a few mixed frames."""
    count = model.get_decoder().config.num_hidden_layers
    stages = []
    for start, end in ((0, count // 2), (count // 2, count)):
        part = copy.deepcopy(model)
        cut(part, start, end)
        slice = Slice(part, start, end, torch.float32, torch.device("cpu"))
        stages.append((slice, KvPool(slice, 12, len(_PAGES)), VarlenKernel(slice.device, slice.dtype)))
    done = dict.fromkeys(_PAGES, 0)
    parts: dict[int, list[torch.Tensor]] = {session: [] for session in _PAGES}
    for step in _STEPS:
        segments = [_segment(session, done[session], rows) for session, rows in step.items()]
        hidden = None
        for slice, pool, kernel in stages:
            batch = Batch(segments, slice, pool, kernel)
            if slice.last:
                every = torch.arange(len(batch.ids))
                logits = slice.logits(batch, batch.ids, batch.positions, hidden, every)
            else:
                hidden = slice.forward(batch, batch.ids, batch.positions, hidden)
        for (session, rows), part in zip(step.items(), torch.split(logits, list(step.values())), strict=True):
            parts[session].append(part)
            done[session] += rows
    return [torch.cat(pieces) for pieces in parts.values()]


def _segment(session: int, start: int, rows: int) -> peer_pb2.Segment:
    return peer_pb2.Segment(
        session=session,
        start=start,
        ids=_tokens(session)[start : start + rows].tolist(),
        pages=[peer_pb2.PageRun(first=first, count=count) for first, count in _PAGES[session]],
        state=peer_pb2.StateSlots(read=session + 1 if start else 0, write=session + 1),
    )


def _difference(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    largest = max(logits.abs().max().item() for logits in expected)
    worst = max((a - b).abs().max().item() for a, b in zip(expected, found, strict=True))
    return worst / largest


def _brief(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:200]
