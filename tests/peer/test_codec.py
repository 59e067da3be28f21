from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.codec import AUTO, INT8, KEPT, from_wire, to_wire
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


def test_a_tensor_can_travel_narrower_than_it_is() -> None:
    sent = torch.tensor([[1.0, 0.1]])
    message = to_wire(sent, tensor_pb2.WIRE_BF16)
    assert (message.dtype, len(message.data)) == (tensor_pb2.DTYPE_BF16, 4)
    assert torch.equal(from_wire(message, torch.float32, CPU), sent.bfloat16().float())
    assert to_wire(sent.half(), AUTO).dtype == tensor_pb2.DTYPE_F16


@pytest.mark.parametrize("wire", [AUTO, INT8])
def test_what_arrives_can_be_written_to(wire: int) -> None:
    back = from_wire(to_wire(torch.zeros(1, 2), wire), torch.float32, CPU)
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


# ------------------------------------------------------------ int8


def hidden(rows: int, width: int, seed: int, spread: float) -> torch.Tensor:
    """Like hidden states: a few columns far larger than the rest."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(rows, width, generator=generator) * spread
    tensor[:, :: max(width // 3, 1)] *= 300
    return tensor


@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 300),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
@settings(max_examples=60)
def test_int8_rounds_by_half_a_step_and_keeps_the_largest(
    rows: int, width: int, seed: int, spread: float, dtype: torch.dtype
) -> None:
    sent = hidden(rows, width, seed, spread).to(dtype).nan_to_num()
    message = tensor_pb2.Tensor.FromString(to_wire(sent, INT8).SerializeToString())
    back = from_wire(message, torch.float32, CPU)
    assert back.shape == sent.shape
    full = sent.float()
    order = full.abs().sort(1, descending=True).indices
    kept, rest = order[:, :KEPT], order[:, KEPT:]
    # Which of two equal entries is kept apart is open, so the largest are compared as sorted magnitudes.
    assert torch.equal(full.gather(1, kept).bfloat16().float().abs(), back.gather(1, kept).abs()) or width > KEPT
    loss = (back - full).abs()
    assert (loss.gather(1, kept) <= full.gather(1, kept).abs() * 2**-8).all()
    if rest.shape[1]:
        largest = full.gather(1, rest).abs().amax(1, keepdim=True)
        assert (loss.gather(1, rest) <= largest * (0.5 / 127 + 2**-8)).all()


def test_int8_is_as_large_as_the_protocol_says() -> None:
    assert len(to_wire(torch.ones(3, 576), INT8).data) == 3 * (576 + 4 + 8 * 4)
    assert len(to_wire(torch.ones(2, 5), INT8).data) == 2 * (5 + 4 + 5 * 4)


def test_a_column_beyond_32767_is_found_again() -> None:
    sent = torch.zeros(1, 40_000)
    sent[0, 39_999] = -7
    assert torch.equal(from_wire(to_wire(sent, INT8), torch.float32, CPU), sent)


@pytest.mark.parametrize("size", [0, 1, 43, 45, 10_000])
def test_int8_bytes_that_do_not_fill_the_matrix_are_refused(size: int) -> None:
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_INT8, rows=1, width=8, data=b"\0" * size)
    with pytest.raises(BadFrame, match=f"takes 44 bytes but {size} came"):
        from_wire(message, torch.float32, CPU)


def test_a_huge_matrix_without_its_bytes_is_refused() -> None:
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_INT8, rows=2**32 - 1, width=2**32 - 1, data=b"\0" * 44)
    with pytest.raises(BadFrame, match="send the frame again"):
        from_wire(message, torch.float32, CPU)


@given(st.binary(min_size=88, max_size=88))
@settings(max_examples=60)
def test_any_int8_bytes_are_a_matrix_or_a_bad_frame(data: bytes) -> None:
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_INT8, rows=2, width=8, data=data)
    with suppress(BadFrame):
        assert from_wire(message, torch.bfloat16, CPU).shape == (2, 8)
