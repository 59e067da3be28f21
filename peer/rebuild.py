"""Rebuilding a slice: its layers as lean ones, and the decoder's own forward around them."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from peer.attention import Current
from peer.fuse import Call, Unfamiliar, close, fuse, watching
from peer.lean import LeanLayer
from peer.model import Entry, Exit
from peer.trunk import Outline, Trunk

log = logging.getLogger("pooled.peer")


def rebuild(
    decoder: Any,
    layers: nn.ModuleList,
    own: range,
    ends: tuple[Entry | None, Exit | None],
    current: Current,
    probe: Callable[[], torch.Tensor],
) -> frozenset[int]:
    """Replace what can be of the layers `own` and of the decoder's forward, in place; the layers that were.

    `probe` sends some rows through the slice and gives what comes out.
    """
    around = [*(child for child in decoder.children() if child is not layers), decoder]
    with watching(layers[index] for index in own) as calls, watching(around) as others:
        probe()
    outline = _outline(others, calls, ends)
    done, why = _rebuild_layers(layers, own, current, calls)
    if outline is not None and len(done) == len(own):
        expected, library = probe(), decoder.forward
        decoder.forward = Trunk(outline, list(done.values()), *ends, current).forward
        if not close(probe(), expected):
            decoder.forward = library
            log.info("the library goes from layer to layer: done otherwise, other numbers come out")
    for reason, index in why.items():
        log.info("the library computes layers such as %d: %s", index, reason)
    return frozenset(done)


def _outline(around: list[Call], calls: list[Call], ends: tuple[Entry | None, Exit | None]) -> Outline | None:
    entry, exit = ends
    try:
        return Outline.of(around, calls, first=entry is None, last=exit is None)
    except Unfamiliar as error:
        log.info("the library goes from layer to layer: %s", error)
        return None


def _rebuild_layers(
    layers: nn.ModuleList, own: range, current: Current, calls: list[Call]
) -> tuple[dict[int, LeanLayer], dict[str, int]]:
    """One by one: no more than one layer's weights are held twice. What was rebuilt, and why others were not."""
    done: dict[int, LeanLayer] = {}
    why: dict[str, int] = {}
    for index in own:
        try:
            # Taken off the list, so that the layer's own weights go when it is replaced.
            layers[index] = done[index] = fuse(calls.pop(0), current)
        except Unfamiliar as error:
            why[str(error)] = index
        finally:
            current.clear()
    return done, why
