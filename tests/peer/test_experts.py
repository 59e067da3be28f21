"""A mixture's experts, computed as on a GPU, give what the library's plain loop gives."""

from types import SimpleNamespace

import pytest
import torch

from peer import experts
from peer.experts import compute_experts, loader_options
from tests.tiny_model import tiny_model

IDS = torch.randint(5, 256, (1, 20), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("most", [0, 1 << 28], ids=["experts read once", "experts copied"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_both_ways_give_what_the_plain_loop_gives(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(name)
    with torch.inference_mode():
        model.set_experts_implementation("eager")
        expected = model(IDS).logits
        model.set_experts_implementation(experts.NAME)
        monkeypatch.setattr(experts, "MOST_COPIED", most)
        found = model(IDS).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_experts_are_copied_for_as_many_rows_as_their_size_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[tuple[str, int]] = []
    for way in ("batched_mm", "grouped_mm"):

        def note(_: object, hidden: torch.Tensor, *__: object, way: str = way) -> torch.Tensor:
            ways.append((way, len(hidden)))
            return hidden

        monkeypatch.setattr(experts, f"{way}_experts_forward", note)
    layer = torch.nn.Module()
    layer.register_parameter("gate_up_proj", torch.nn.Parameter(torch.empty(8, 1 << 12, 1 << 11, device="meta")))
    for rows in (1, 4, 5):  # of two experts each, whose largest matrix has 2^25 bytes
        compute_experts(layer, torch.zeros(rows, 1), torch.zeros(rows, 2), torch.zeros(rows, 2))
    assert ways == [("batched_mm", 1), ("batched_mm", 4), ("grouped_mm", 5)]


def test_the_library_is_told_on_a_gpu_only_and_not_for_packed_weights() -> None:
    plain, packed = SimpleNamespace(), SimpleNamespace(quantization_config={"quant_method": "fp8"})
    assert loader_options(plain, torch.device("cuda:1")) == {"experts_implementation": experts.NAME}
    assert loader_options(packed, torch.device("cuda:1")) == {}
    assert loader_options(plain, torch.device("cpu")) == {}
