"""Tensors as they travel: raw little-endian bytes in one field. protos/tensor.proto tells the forms."""

from collections.abc import Sequence
from typing import TypeAlias

import torch

from peer.errors import BadFrame
from peer.staging import bytes_to_device, to_cpu
from protos import tensor_pb2

Wire: TypeAlias = tensor_pb2.Wire.ValueType

AUTO, INT8 = tensor_pb2.WIRE_AUTO, tensor_pb2.WIRE_INT8
KEPT = 8
"""Entries of a row that travel in bfloat16 when the others travel in int8: a few large ones carry most of its length,
and would cost all others their precision."""

_DTYPES: dict[int, torch.dtype] = {
    tensor_pb2.DTYPE_F32: torch.float32,
    tensor_pb2.DTYPE_BF16: torch.bfloat16,
    tensor_pb2.DTYPE_F16: torch.float16,
}
_NAMES: dict[torch.dtype, "tensor_pb2.DType.ValueType"] = {
    torch.float32: tensor_pb2.DTYPE_F32,
    torch.bfloat16: tensor_pb2.DTYPE_BF16,
    torch.float16: tensor_pb2.DTYPE_F16,
}
_CAST: dict[Wire, torch.dtype] = {tensor_pb2.WIRE_F32: torch.float32, tensor_pb2.WIRE_BF16: torch.bfloat16}
_WIDEST = 1 << 16
"""Columns that a uint16 can tell apart."""


def to_wire(tensor: torch.Tensor, wire: Wire = AUTO) -> tensor_pb2.Tensor:
    """Encode a matrix [rows, width] of float32, bfloat16 or float16, from any device. AUTO: in its own dtype.

    What does not fit a narrower form is rounded; with INT8 by at most half a step, a step being the row's largest
    entry beside the KEPT outliers, divided by 127.
    """
    rows, width = tensor.shape
    if wire == INT8 and width <= _WIDEST:
        data = _raw(_quantised(tensor.detach()))
        return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_INT8, rows=rows, width=width, data=data)
    tensor = tensor.detach().to(_CAST.get(wire, tensor.dtype))
    return tensor_pb2.Tensor(dtype=_NAMES[tensor.dtype], rows=rows, width=width, data=_raw([tensor]))


def from_wire(message: tensor_pb2.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Decode a matrix [rows, width] into `dtype` on `device`, in whatever form it travelled.

    Raises BadFrame, before memory is spent, when the message's dtype is unknown or its bytes do not make the matrix.
    """
    rows, width = message.rows, message.width
    sent = _DTYPES.get(message.dtype)
    if sent is None and message.dtype != tensor_pb2.DTYPE_INT8:
        raise BadFrame(f"the tensor's dtype {message.dtype} is unknown to this peer; is it of another version?")
    expected = rows * (_int8_row_bytes(width) if sent is None else width * sent.itemsize)
    if len(message.data) != expected:
        raise BadFrame(
            f"a [{rows}, {width}] tensor takes {expected} bytes but {len(message.data)} came; send the frame again"
        )
    raw = bytes_to_device(message.data, device)
    if sent is None:
        return _restored(raw, rows, width).to(dtype)
    return raw.view(sent).view(rows, width).to(dtype)


def _raw(tensors: Sequence[torch.Tensor]) -> bytes:
    """One after the other."""
    held = to_cpu([tensor.contiguous() for tensor in tensors])
    # NumPy has no bfloat16, so the bytes are read as plain ones.
    return b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in held)


def _int8_row_bytes(width: int) -> int:
    return width + 4 + min(KEPT, width) * (2 + 2)


def _quantised(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """int8 [rows, width], its steps float32 [rows], and columns int16 and values bfloat16 [rows, k] of outliers."""
    full = tensor.float()
    columns = full.abs().topk(min(KEPT, full.shape[1]), dim=1, sorted=False).indices
    rest = full.scatter(1, columns, 0.0)
    steps = rest.abs().amax(1, keepdim=True) / 127
    # A row of zeros has no step; what its zeros are divided by does not matter.
    levels = (rest / torch.where(steps > 0, steps, 1.0)).round_().clamp_(-127, 127).to(torch.int8)
    return levels, steps, columns.to(torch.int16), full.gather(1, columns).bfloat16()


def _restored(raw: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """The inverse of `_quantised`, float32. Raises BadFrame for a column beyond the matrix."""
    kept = min(KEPT, width)
    sizes = [rows * width, rows * 4, rows * kept * 2, rows * kept * 2]
    # Cloned, since a view as wider numbers needs its bytes aligned.
    levels, steps, columns, values = (part.clone() for part in torch.split(raw, sizes))
    at = columns.view(torch.int16).view(rows, kept).long() & 0xFFFF
    if at.numel() and int(at.max()) >= width:
        raise BadFrame(f"an outlier of the tensor stands in column {int(at.max())} of {width}; send the frame again")
    full = levels.view(torch.int8).view(rows, width).float() * steps.view(torch.float32).view(rows, 1)
    full.scatter_(1, at, values.view(torch.bfloat16).view(rows, kept).float())
    return full
