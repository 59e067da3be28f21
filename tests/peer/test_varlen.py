"""Attention by one call of torch's kernel, which itself needs a GPU: how it is called, checked and given up."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from peer import varlen
from peer.attention import Heads, Span, attend_spans
from peer.varlen import Table, VarlenKernel
from tests.peer import kernels
from tests.peer.chains import Chain
from tests.peer.test_attention import DIM, HEADS, SINKS, by_head, pool
from tests.peer.test_slices import CLOSE, difference, through
from tests.tiny_model import tiny_model

CPU, KERNEL = torch.device("cpu"), "torch.nn.attention.varlen.varlen_attn"
FOLLOWING = [Span(1, ((4, 12),)), Span(3, ((30, 5),)), Span(2, ((50, 9),))]
SCATTERED = [Span(1, ((4, 12),)), Span(3, ((63, 1), (0, 1), (20, 4)), torch.tensor([63, 0, 20, 21, 22, 23]))]


def query_for(spans: Sequence[Span]) -> torch.Tensor:
    return torch.randn(sum(span.rows for span in spans), HEADS, DIM, generator=torch.Generator().manual_seed(9))


def by_loop(spans: Sequence[Span], heads: Heads) -> torch.Tensor:
    return attend_spans(spans, query_for(spans), by_head(pool(1), pool(2)), heads)


def by_kernel(kernel: VarlenKernel, heads: Heads, spans: Sequence[Span] = FOLLOWING) -> torch.Tensor | None:
    table = Table.of(spans, CPU)
    return kernel.attend(table, query_for(spans), pool(1), pool(2), heads, lambda: by_loop(spans, heads))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> VarlenKernel:
    kernels.use_on_cpu(monkeypatch)
    return VarlenKernel(CPU, torch.float32)


def test_it_is_for_half_precision_on_cuda() -> None:
    assert VarlenKernel(torch.device("cuda"), torch.bfloat16).usable
    assert not VarlenKernel(torch.device("cuda"), torch.float32).usable
    assert not VarlenKernel(torch.device("cuda"), torch.int8).usable
    assert not VarlenKernel(CPU, torch.bfloat16).usable


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("spans", [FOLLOWING, SCATTERED], ids=["following pages", "scattered pages"])
def test_it_is_given_what_the_loop_sees(spans: list[Span], window: int | None, kernel: VarlenKernel) -> None:
    found = varlen.attend(Table.of(spans, CPU), query_for(spans), pool(1), pool(2), Heads(0.5, window))
    assert torch.allclose(found, by_loop(spans, Heads(0.5, window)), atol=1e-6)


def test_single_rows_of_following_pages_can_be_repeated() -> None:
    assert Table.of([Span(1, ((4, 12),)), Span(1, ((30, 5),))], CPU).repeatable
    assert not Table.of(FOLLOWING, CPU).repeatable
    assert not Table.of([Span(1, ((4, 1), (9, 1)), torch.tensor([4, 9]))], CPU).repeatable


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "gpt_oss", "qwen3_5"])
def test_a_chain_with_it_gives_the_logits_of_the_whole(
    name: str, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.use_on_cpu(monkeypatch)
    called = []
    monkeypatch.setattr(KERNEL, lambda *given, **more: called.append(1) or kernels.varlen_attn(*given, **more))
    assert difference(through(Chain.load(tiny(name), (0, 2, 4))), tiny_model(name)) < CLOSE
    assert bool(called) == (name not in ("gemma2", "gpt_oss")), "capped logits and sinks are left to the loop"


def test_capped_logits_and_sinks_are_left_to_the_loop(kernel: VarlenKernel) -> None:
    assert by_kernel(kernel, Heads(0.5, softcap=3.0)) is None
    assert by_kernel(kernel, Heads(0.5, sinks=SINKS)) is None
    assert kernel.usable


def test_after_a_failure_it_is_not_asked_again(kernel: VarlenKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    assert by_kernel(kernel, Heads(0.5)) is not None
    monkeypatch.setattr(KERNEL, broken)
    assert by_kernel(kernel, Heads(0.5)) is None
    assert not kernel.usable


def test_what_gives_other_numbers_is_found_out_at_once(kernel: VarlenKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes pages in another order, say: each kind of call is compared once."""

    def wrong(query: torch.Tensor, key: torch.Tensor, *given: object, **more: object) -> torch.Tensor:
        return kernels.varlen_attn(query, key.roll(1, 0), *given, **more)

    assert by_kernel(kernel, Heads(0.5)) is not None
    monkeypatch.setattr(KERNEL, wrong)
    assert by_kernel(kernel, Heads(0.5)) is not None, "this kind has been compared before"
    assert by_kernel(kernel, Heads(0.5), SCATTERED) is None
    assert not kernel.usable


def test_a_full_gpu_is_no_reason_to_give_it_up(kernel: VarlenKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(KERNEL, full)
    with pytest.raises(torch.OutOfMemoryError):
        by_kernel(kernel, Heads(0.5))
    assert kernel.usable
