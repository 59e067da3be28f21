"""Attention of all of a frame's segments in one call on CUDA, by torch's `varlen_attn`. Untested on hardware.

The flash attention that torch brings takes pages of 256 positions and multiples of that, and a room's are smaller. So
it is given no pages: of a session whose pages follow each other it reads keys and values where they lie, told their
first slot and how many they are. Where a session's do not, the frame's are gathered first.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch

from peer.attention import Heads, Span
from peer.fuse import close
from peer.staging import to_device

log = logging.getLogger("pooled.peer")


@dataclass(frozen=True, slots=True)
class Table:
    """A frame's spans as the kernel wants them: int32 on the device, but for `index`."""

    starts: torch.Tensor
    """[spans + 1] the first row of each span, then the number of rows."""
    firsts: torch.Tensor
    """[spans + 1] the first slot of each span, then any."""
    lengths: torch.Tensor
    """[spans] the positions that its last row sees."""
    index: torch.Tensor | None
    """[positions] int64, the slots that are to be gathered, among which the first ones are then counted."""
    most_rows: int
    most_positions: int

    @classmethod
    def of(cls, spans: Sequence[Span], device: torch.device) -> "Table":
        rows, lengths = [span.rows for span in spans], [span.length for span in spans]
        scattered = any(len(span.runs) > 1 for span in spans)
        firsts = list(accumulate(lengths, initial=0)) if scattered else [*(span.runs[0][0] for span in spans), 0]
        packed = np.array([*accumulate(rows, initial=0), *firsts, *lengths], dtype=np.int32)
        count = len(spans)
        moved = to_device(torch.from_numpy(packed), device)
        begin, first, length = torch.split(moved, [count + 1, count + 1, count])
        index = None
        if scattered:
            slots = [np.arange(first, first + many) for first, many in chain.from_iterable(span.runs for span in spans)]
            index = to_device(torch.from_numpy(np.concatenate(slots)), device)
        return cls(begin, first, length, index, max(rows), max(lengths))

    @property
    def repeatable(self) -> bool:
        """Single rows, whose keys and values need not be gathered."""
        return self.most_rows == 1 and self.index is None


def works_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether it is worth trying, with keys and values kept in `dtype`."""
    return device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)


def takes(keys: torch.Tensor, values: torch.Tensor, heads: Heads) -> bool:
    """Whether the kernel knows such a layer: without capped logits and sinks."""
    return heads.plain and keys.shape[-1] == values.shape[-1]


def attend(table: Table, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: Heads) -> torch.Tensor:
    """query [rows, heads, dim], a pool's keys and values [slots, kv heads, dim] -> [rows, heads, dim].

    Raises what the kernel raises where it cannot.
    """
    from torch.nn.attention.varlen import varlen_attn

    if table.index is not None:
        keys, values = keys.index_select(0, table.index), values.index_select(0, table.index)
    out = varlen_attn(
        query,
        keys,
        values,
        table.starts,
        table.firsts,
        table.most_rows,
        table.most_positions,
        scale=heads.scale,
        window_size=(heads.window - 1 if heads.window else -1, 0),
        enable_gqa=True,
        seqused_k=table.lengths,
    )
    assert isinstance(out, torch.Tensor)
    return out


class VarlenKernel:
    """Tells whether it could. Once it has raised, or given other numbers than the loop over spans, it is not asked
    again: what a kernel takes depends on the GPU and on torch's build."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.usable = works_on(device, dtype)
        self._compared: set[tuple[object, ...]] = set()

    def attend(
        self,
        table: Table,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        heads: Heads,
        plainly: Callable[[], torch.Tensor],
    ) -> torch.Tensor | None:
        """As the function of this name; None where the kernel cannot do it. `plainly` does the same without it."""
        if not (self.usable and takes(keys, values, heads)):
            return None
        try:
            out = attend(table, query, keys, values, heads)
            kind = (table.most_rows > 1, table.index is None, heads.window, query.shape[1:], keys.shape[1:])
            if kind not in self._compared:
                if not close(out, plainly()):
                    raise RuntimeError("it gives other numbers than the loop over sessions")
                self._compared.add(kind)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            self.usable = False
            log.info("attention goes session by session on this device: %s", error)
            return None
        return out
