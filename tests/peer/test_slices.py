"""Logits through a chain of slices equal the whole model's, whatever the architecture and the cut."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from peer.kv import KvPool
from peer.slice import Slice
from peer.step import Engine
from tests.peer.chains import Chain, Session, greedy
from tests.tiny_model import MULTIMODAL, TINY, save_tiny, tiny_model

CLOSE = 1e-5

PAGES = {0: [(3, 1), (9, 1)], 1: [(5, 1)], 2: [(0, 2)]}
"""Session 0's pages do not follow each other."""

STEPS = [{0: 5, 2: 9}, {0: 4, 1: 6, 2: 6}, {0: 1, 1: 1, 2: 1}, {0: 1, 2: 1}, {0: 8, 2: 4}, {1: 1, 0: 1}]
"""Chunks and single tokens mixed in a frame; windows of 6 overrun; a page of 16 crossed by a chunk and by a token."""

CHAT = [1, 4093, 198, 1780, 314, 253, 659, 70, 13842, 47, 2, 198, 1, 520, 9531, 198]
SECOND = [1, 4093, 198, 9825, 288, 1296, 2, 198, 1, 520, 9531, 198]
"""Token ids of two short prompts for the embedded model."""


def texts(vocabulary: int = 256) -> dict[int, list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = {session: sum(step.get(session, 0) for step in STEPS) for session in PAGES}
    return {s: torch.randint(5, vocabulary, (n,), generator=generator).tolist() for s, n in lengths.items()}


def through(chain: Chain) -> dict[int, torch.Tensor]:
    """The logits of every position of every session."""
    sessions = {number: Session(number, pages) for number, pages in PAGES.items()}
    rows: dict[int, list[torch.Tensor]] = {number: [] for number in PAGES}
    for step in STEPS:
        segments = []
        for number, count in step.items():
            session = sessions[number]
            segments.append(session.segment(texts()[number][session.done : session.done + count], sampled=count))
        chain.run(segments)
        for number, part in zip(step, torch.split(chain.logits, list(step.values())), strict=True):
            rows[number].append(part)
    return {number: torch.cat(parts) for number, parts in rows.items()}


def difference(found: dict[int, torch.Tensor], model: torch.nn.Module) -> float:
    """The largest one, relative to the largest logit of the whole model."""
    with torch.inference_mode():
        expected = {number: model(torch.tensor([ids])).logits[0] for number, ids in texts().items()}
    largest = max(logits.abs().max().item() for logits in expected.values())
    return max((found[n] - expected[n]).abs().max().item() for n in expected) / largest


@pytest.mark.parametrize("cuts", [(0, 2, 4), (0, 1, 4), (0, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("name", [*TINY, *MULTIMODAL])
def test_a_chain_of_slices_gives_the_logits_of_the_whole(
    name: str, cuts: Sequence[int], tiny: Callable[[str], Path]
) -> None:
    assert difference(through(Chain.load(tiny(name), cuts)), tiny_model(name)) < CLOSE


@pytest.mark.parametrize(("cuts", "devices"), [((0, 4), 3), ((0, 3, 4), 2)], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_5_moe"])
def test_slices_over_several_devices_give_the_logits_of_the_whole(
    name: str, cuts: Sequence[int], devices: int, tiny: Callable[[str], Path]
) -> None:
    chain = Chain.load(tiny(name), cuts, devices=devices)
    assert [len(engine.slice.parts) for engine in chain.engines] == [devices, 1][: len(chain.engines)]
    assert difference(through(chain), tiny_model(name)) < CLOSE


def test_the_comparison_notices_one_wrong_token(tiny: Callable[[str], Path]) -> None:
    """Guards the test above: a model that ignores its context would pass it."""
    model = tiny_model("llama")
    found = through(Chain.load(tiny("llama"), (0, 2, 4)))
    changed = texts()[0].copy()
    changed[3] = 4
    with torch.inference_mode():
        other = model(torch.tensor([changed])).logits[0]
    assert (found[0][-1] - other[-1]).abs().max() > 1e-3


def test_weights_in_one_file_load_like_weights_in_many(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path)
    assert difference(through(Chain.load(tmp_path, (0, 2, 4))), tiny_model("qwen3_moe")) < CLOSE


@pytest.mark.parametrize(("tied", "held"), [(True, 2), (False, 3)])
def test_tied_weights_are_held_where_they_are_needed(tied: bool, held: int, tmp_path: Path) -> None:
    """The embedding goes to the first and, tied, to the last slice; the middle has neither."""
    save_tiny("llama", tmp_path, tie_word_embeddings=tied, num_hidden_layers=3)
    first, middle, last = (
        Slice.load(str(tmp_path), at, at + 1, dtype=torch.float32, device=torch.device("cpu")) for at in range(3)
    )
    matrix = 256 * 64 * 4
    assert first.weight_bytes - middle.weight_bytes == matrix
    assert last.weight_bytes - middle.weight_bytes == matrix + 64 * 4  # and the final norm
    assert (first.first, first.last, middle.first, middle.last, last.last) == (True, False, False, False, True)


def test_a_slice_of_the_whole_needs_no_neighbours(tiny: Callable[[str], Path]) -> None:
    assert difference(through(Chain.load(tiny("gemma3"), (0, 4))), tiny_model("gemma3")) < CLOSE


def test_peers_of_different_dtypes_work_together(tiny: Callable[[str], Path]) -> None:
    chain = Chain.load(tiny("qwen3"), (0, 2, 4), dtypes=[torch.bfloat16, torch.float32])
    assert difference(through(chain), tiny_model("qwen3")) < 0.05


def test_a_bfloat16_slice_answers_in_float32_logits(tiny: Callable[[str], Path]) -> None:
    chain = Chain.load(tiny("qwen3"), (0, 4), dtypes=[torch.bfloat16])
    assert difference(through(chain), tiny_model("qwen3")) < 0.05
    assert chain.logits.dtype == torch.float32


def test_sessions_that_share_a_prefix_share_its_pages(tiny: Callable[[str], Path]) -> None:
    """A second session starts after the first one's full page without computing it again."""
    model, ids = tiny_model("qwen3"), texts()[2]
    chain = Chain.load(tiny("qwen3"), (0, 2, 4))
    chain.run([Session(1, [(4, 2)]).segment(ids)])
    other = Session(2, [(4, 1), (8, 1)], done=16)
    chain.run([other.segment(ids[16:20], sampled=4)])
    with torch.inference_mode():
        expected = model(torch.tensor([ids[:20]])).logits[0, 16:]
    assert (chain.logits - expected).abs().max() / expected.abs().max() < CLOSE


def test_a_learned_position_table_limits_positions(tiny: Callable[[str], Path]) -> None:
    first, last = (
        Slice.load(str(tiny("gpt2")), *cut, dtype=torch.float32, device=torch.device("cpu")) for cut in ((0, 2), (2, 4))
    )
    assert first.position_limit == 512
    assert last.position_limit is None


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, 512),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
            },
            64,
        ),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}, None),
    ],
)
def test_a_rotary_embedding_that_depends_on_the_batch_limits_positions(
    rope: dict[str, object], limit: int | None, tmp_path: Path
) -> None:
    """Beyond the limit the length of one session would change what is cached for another."""
    save_tiny("llama", tmp_path, rope_parameters=rope)
    slice = Slice.load(str(tmp_path), 1, 2, dtype=torch.float32, device=torch.device("cpu"))
    assert slice.position_limit == limit


def test_repr_is_the_dashboard(tiny: Callable[[str], Path]) -> None:
    slice = Slice.load(str(tiny("llama")), 1, 3, dtype=torch.float32, device=torch.device("cpu"))
    assert repr(slice) == "<Slice LlamaForCausalLM layers 1-2 of 4, 0 MB>"
    assert repr(Engine(slice, KvPool(slice, 8))) == f"<Engine {slice!r} <KvPool 8 pages, 0 MB on cpu>>"


@pytest.mark.model
@pytest.mark.parametrize("cuts", [(0, 10, 20, 30), (0, 3, 29, 30)], ids=str)
def test_greedy_answers_equal_generate(cuts: Sequence[int], smollm2_directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_directory, dtype=torch.float32)
    chain = Chain.load(smollm2_directory, cuts, pages=16)
    for number, prompt in enumerate([CHAT, SECOND]):
        inputs = torch.tensor([prompt])
        whole = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=8, do_sample=False, pad_token_id=2
        )
        assert greedy(chain, Session(number, [(number * 4, 4)]), prompt, 8) == whole[0, len(prompt) :].tolist()
