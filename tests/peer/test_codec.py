import pytest
import torch

from peer.codec import from_wire, to_wire
from peer.errors import BadFrame
from protos import tensor_pb2

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_survives_the_wire_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1.5, -0.0, float("inf")], [1e-7, 3.14159, -65504.0]], dtype=dtype)
    message = tensor_pb2.Tensor.FromString(to_wire(tensor).SerializeToString())
    assert (message.rows, message.width) == (2, 3)
    back = from_wire(message, dtype, CPU)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_the_bytes_are_rows_of_little_endian_numbers() -> None:
    assert to_wire(torch.tensor([[1.0, 2.0]])).data == b"\x00\x00\x80\x3f\x00\x00\x00\x40"
    assert to_wire(torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)).data == b"\x80\x3f\x00\x40"


def test_a_view_is_sent_as_the_rows_it_shows() -> None:
    whole = torch.arange(12.0).view(3, 4)
    assert torch.equal(from_wire(to_wire(whole.T[1:3]), torch.float32, CPU), whole.T[1:3])


def test_another_dtype_is_converted_on_arrival() -> None:
    sent = torch.tensor([[1.0, 0.1]], dtype=torch.bfloat16)
    assert torch.equal(from_wire(to_wire(sent), torch.float32, CPU), sent.float())


def test_what_arrives_can_be_written_to() -> None:
    back = from_wire(to_wire(torch.zeros(1, 2)), torch.float32, CPU)
    back += 1
    assert back.tolist() == [[1, 1]]


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_bytes_that_do_not_fill_the_matrix_are_refused(size: int) -> None:
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, rows=1, width=2, data=b"\0" * size)
    with pytest.raises(BadFrame, match=f"takes 8 bytes but {size} came"):
        from_wire(message, torch.float32, CPU)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(BadFrame, match="unknown"):
        from_wire(tensor_pb2.Tensor(rows=1, width=2, data=b"\0" * 8), torch.float32, CPU)
