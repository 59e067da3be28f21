"""In what form peers keep weights and KV, by the room's settings, and how many bytes that takes."""

from dataclasses import dataclass
from typing import TypeAlias

from protos import room_pb2
from room.shape import ModelShape

Quant: TypeAlias = room_pb2.Quant.ValueType
Kv: TypeAlias = room_pb2.Kv.ValueType

QUANTS: dict[str, Quant] = {"none": room_pb2.QUANT_NONE, "int8": room_pb2.QUANT_INT8, "int4": room_pb2.QUANT_INT4}
KVS: dict[str, Kv] = {
    "auto": room_pb2.KV_AUTO,
    "f32": room_pb2.KV_F32,
    "bf16": room_pb2.KV_BF16,
    "int8": room_pb2.KV_INT8,
}

_PACKED = {room_pb2.QUANT_INT8: 1.01, room_pb2.QUANT_INT4: 0.63}
"""Bytes a weight, steps included: one a row in 8 bits, step and middle of every 32 weights in 4."""
_KV_BYTES = {room_pb2.KV_F32: 4, room_pb2.KV_BF16: 2, room_pb2.KV_INT8: 1}
_STEPS = 8
"""Bytes of the steps that KV in 8 bits keeps beside each head's key and value at a position."""


@dataclass(frozen=True)
class Forms:
    quant: Quant = room_pb2.QUANT_NONE
    kv: Kv = room_pb2.KV_AUTO

    def weight_bytes(self, shape: ModelShape, start: int, end: int, dtype_bytes: int) -> int:
        """Of the weights of layers [start, end), with what comes before the first and after the last.

        A tied head is the embedding where both are on one peer, unless it is packed: then the embedding stays beside.
        """
        total = self.layer_bytes(shape, start, end, dtype_bytes)
        if start == 0:
            total += shape.embed_params * dtype_bytes
        if end == shape.layers:
            head = _PACKED[room_pb2.QUANT_INT8] if self.quant else dtype_bytes
            total += shape.head_params * head
            if shape.tied and (start > 0 or self.quant):
                total += shape.embed_params * head
        return int(total)

    def layer_bytes(self, shape: ModelShape, start: int, end: int, dtype_bytes: int) -> float:
        """Of the weights of layers [start, end) alone."""
        matrices = shape.matrices_before[end] - shape.matrices_before[start]
        others = shape.params_before[end] - shape.params_before[start] - matrices
        return matrices * _PACKED.get(self.quant, dtype_bytes) + others * dtype_bytes

    def kv_bytes(self, shape: ModelShape, start: int, end: int, dtype_bytes: int) -> int:
        """Of one position's keys and values in layers [start, end)."""
        heads = shape.kv_heads_before[end] - shape.kv_heads_before[start]
        steps = _STEPS * heads if self.kv == room_pb2.KV_INT8 else 0
        return (shape.kv_before[end] - shape.kv_before[start]) * _KV_BYTES.get(self.kv, dtype_bytes) + steps
