"""Tensors as they travel: raw little-endian bytes in one field."""

import numpy as np
import torch

from peer.errors import BadFrame
from protos import tensor_pb2

_DTYPES: dict[int, torch.dtype] = {
    tensor_pb2.DTYPE_F32: torch.float32,
    tensor_pb2.DTYPE_BF16: torch.bfloat16,
    tensor_pb2.DTYPE_F16: torch.float16,
}
_WIRE: dict[torch.dtype, "tensor_pb2.DType.ValueType"] = {
    torch.float32: tensor_pb2.DTYPE_F32,
    torch.bfloat16: tensor_pb2.DTYPE_BF16,
    torch.float16: tensor_pb2.DTYPE_F16,
}


def to_wire(tensor: torch.Tensor) -> tensor_pb2.Tensor:
    """Encode a matrix [rows, width] of float32, bfloat16 or float16, from any device."""
    rows, width = tensor.shape
    # NumPy has no bfloat16, so the bytes are read as plain ones.
    raw = tensor.detach().contiguous().cpu().view(torch.uint8).numpy()
    return tensor_pb2.Tensor(dtype=_WIRE[tensor.dtype], rows=rows, width=width, data=raw.tobytes())


def from_wire(message: tensor_pb2.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Decode a matrix [rows, width] into `dtype` on `device`, whatever dtype it travelled in.

    Raises BadFrame when the message's dtype is unknown or its bytes do not fill the matrix.
    """
    sent = _DTYPES.get(message.dtype)
    if sent is None:
        raise BadFrame(f"the tensor's dtype {message.dtype} is unknown to this peer; is it of another version?")
    expected = message.rows * message.width * sent.itemsize
    if len(message.data) != expected:
        raise BadFrame(
            f"a [{message.rows}, {message.width}] tensor takes {expected} bytes but {len(message.data)} came; "
            "send the frame again"
        )
    # The copy is what makes the buffer writable; torch takes no read-only memory.
    raw = torch.from_numpy(np.frombuffer(message.data, dtype=np.uint8).copy())
    return raw.view(sent).view(message.rows, message.width).to(device=device, dtype=dtype)
