"""Computing again what another holder of the same layers did, to compare."""

from collections.abc import Sequence

import torch

from peer.codec import from_wire
from peer.kv import PAGE, KvPool
from peer.parts import Parts
from peer.spread import Layers
from protos import peer_pb2, tensor_pb2


@torch.inference_mode()
def difference(slice: Layers, ids: Sequence[int], came: tensor_pb2.Tensor, gave: tensor_pb2.Tensor) -> float:
    """How far the slice's result for a session's first tokens is from what another peer `gave`, at most.

    Relative to the largest value. `came` are the hidden states it was given, none for the first slice. Pages are made
    for the purpose. Raises BadFrame.
    """
    pages = -(-len(ids) // PAGE)
    pools = [KvPool(part, pages, state_slots=1) for part in slice.parts]
    state = peer_pb2.StateSlots(write=1) if any(pool.states for pool in pools) else None
    segment = peer_pb2.Segment(ids=ids, pages=[peer_pb2.PageRun(count=pages)], state=state)
    parts = Parts(slice, pools)
    hidden = None if slice.first else from_wire(came, slice.dtype, slice.device)
    mine = parts.forward(parts.pack([segment]), hidden).float()
    theirs = from_wire(gave, torch.float32, mine.device)
    if mine.shape != theirs.shape:
        return float("inf")
    return float((mine - theirs).abs().max() / theirs.abs().max().clamp_min(torch.finfo(torch.float32).tiny))
