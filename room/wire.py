"""In which form hidden states travel on each link: decided here, from the room's setting or from what was measured."""

from typing import TypeAlias

from protos import tensor_pb2
from room.schedule import Limits

Wire: TypeAlias = tensor_pb2.Wire.ValueType

AUTO, F32, BF16, INT8 = tensor_pb2.WIRE_AUTO, tensor_pb2.WIRE_F32, tensor_pb2.WIRE_BF16, tensor_pb2.WIRE_INT8
NAMES: dict[str, Wire] = {"auto": AUTO, "f32": F32, "bf16": BF16, "int8": INT8}

CROSSING = 0.1
"""Seconds that a full prefill chunk may take from peer to peer: about what a stage computes on it, so that a link
which keeps to it does not hold up its stages."""

_KEPT_BYTES = 36
"""What a row in int8 costs beside one byte an entry: its step and its outliers (protos/tensor.proto)."""


def row_bytes(wire: Wire, width: int, dtype_bytes: int) -> int:
    """Bytes of a row of `width` entries in that form; `dtype_bytes` as in `fitting`."""
    if wire == INT8:
        return width + _KEPT_BYTES
    return width * {AUTO: dtype_bytes, F32: 4, BF16: 2}[wire]


def fitting(bytes_per_second: int, width: int, dtype_bytes: int) -> Wire:
    """The widest form in which a full chunk of rows of `width` crosses the link in time; int8 when none does.

    `dtype_bytes` are those of an entry in the sender's compute dtype, which is what AUTO means.
    """
    forms = [AUTO, *[BF16] * (dtype_bytes > 2)]
    in_time = bytes_per_second * CROSSING / Limits.prefill_tokens
    narrowest = INT8 if width > _KEPT_BYTES else AUTO
    return next((wire for wire in forms if row_bytes(wire, width, dtype_bytes) <= in_time), narrowest)
