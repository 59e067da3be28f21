"""What a GPU has and a CPU has not, as documented, for tests of what surrounds it."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
) -> torch.Tensor:
    """`torch.nn.attention.varlen.varlen_attn`, sequence by sequence."""
    assert {each.dtype for each in (cu_seq_q, cu_seq_k, seqused_k)} == {torch.int32}
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1
    before, after = window_size
    assert after == 0
    out = torch.full_like(query, torch.nan)
    for at in range(len(seqused_k)):
        start, end, first, length = (int(each) for each in (*cu_seq_q[at : at + 2], cu_seq_k[at], seqused_k[at]))
        assert end - start <= max_q
        assert length <= max_k
        rows, kept = torch.arange(length - (end - start), length)[:, None], torch.arange(length)
        seen = (kept <= rows) & (kept >= rows - before if before >= 0 else True)
        q, k, v = (
            each.transpose(0, 1) for each in (query[start:end], *(t[first : first + length] for t in (key, value)))
        )
        part = scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=enable_gqa)
        out[start:end] = part.transpose(0, 1)
    return out


def use_on_cpu(patch: pytest.MonkeyPatch) -> None:
    """From now on kernels count as usable here, and this one is called."""
    patch.setattr("peer.varlen.works_on", lambda device, dtype: True)
    patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
