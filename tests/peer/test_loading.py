"""Loading slices: what is read, what is fetched, and what is said when something is wrong."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peer.checkpoint import open_checkpoint
from peer.errors import (
    CorruptModel,
    ModelNotFound,
    NotACausalLM,
    NotEnoughMemory,
    PeerError,
    UnsupportedArchitecture,
)
from peer.loading import load_model
from peer.slice import Slice
from tests.peer.chains import Chain
from tests.peer.test_slices import CLOSE, difference, through
from tests.tiny_model import save_tiny, tiny_config, tiny_model

CPU = torch.device("cpu")


def load(source: Path | str, start: int = 0, end: int = 4, **options: object) -> Slice:
    return Slice.load(str(source), start, end, dtype=torch.float32, device=CPU, **options)


@pytest.fixture
def model(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the tiny Llama, to be spoiled."""
    return shutil.copytree(tiny("llama"), tmp_path / "model")


def shards(directory: Path) -> dict[str, str]:
    weights: dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    return weights


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def config(directory: Path, **fields: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_progress_rises_from_nothing_to_all(tiny: Callable[[str], Path]) -> None:
    heard: list[float] = []
    load(tiny("qwen3_moe"), 1, 3, progress=heard.append)
    assert (heard[0], heard[-1]) == (0.0, 1.0)
    assert heard == sorted(set(heard))
    assert len(heard) > 10


def test_loading_writes_nothing_on_the_terminal(tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]) -> None:
    load(tiny("gpt_oss"))
    assert capfd.readouterr() == ("", "")


def test_other_slices_files_need_not_be_there(model: Path) -> None:
    """Nothing of another slice is opened, let alone read."""
    mine = {file for name, file in shards(model).items() if ".layers.1." in name or ".layers.2." in name}
    others = set(shards(model).values()) - mine
    assert others
    for file in others:
        (model / file).unlink()
    assert load(model, 1, 3).weight_bytes > 0


@pytest.mark.parametrize("source", ["./nowhere", "/no/such/place", "nowhere", "a/b/c", "some/model.gguf", "~/nothing"])
def test_a_place_that_is_not_there_is_named(source: str) -> None:
    with pytest.raises(ModelNotFound, match=f"no file or directory {source}"):
        load(source)


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        load(tmp_path)


def test_pickled_weights_are_never_loaded(model: Path) -> None:
    for path in model.glob("*.safetensors*"):
        path.unlink()
    torch.save(tiny_model("llama").state_dict(), model / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match=r"has no model\.safetensors"):
        load(model)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_of_weights_that_is_cut_off_is_named(keep: int, model: Path) -> None:
    path = model / shards(model)["model.layers.1.mlp.up_proj.weight"]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptModel, match="cut off or damaged"):
        load(model, 1, 2)
    assert load(model, 3, 4).weight_bytes > 0


def test_a_single_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptModel, match="cut off or damaged"):
        load(tmp_path)


def test_a_tensor_that_is_lacking_is_named(model: Path) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    rewrite(model / shards(model)[name], lambda tensors: {n: t for n, t in tensors.items() if n != name})
    assert load(model, 0, 2).weight_bytes > 0
    with pytest.raises(CorruptModel, match=f"lack {name}"):
        load(model, 1, 3)


def test_a_head_that_is_lacking_is_named(tmp_path: Path) -> None:
    save_tiny("qwen3", tmp_path)
    rewrite(tmp_path / "model.safetensors", lambda tensors: {n: t for n, t in tensors.items() if "lm_head" not in n})
    assert load(tmp_path, 0, 3).weight_bytes > 0
    with pytest.raises(CorruptModel, match=r"lack lm_head\.weight"):
        load(tmp_path, 3, 4)


def test_a_tensor_of_another_shape_is_named(model: Path) -> None:
    config(model, intermediate_size=80)
    with pytest.raises(CorruptModel, match="do not fit its config"):
        load(model, 1, 2)


def test_a_file_of_the_index_that_is_lacking_is_named(model: Path) -> None:
    file = shards(model)["model.layers.1.mlp.up_proj.weight"]
    (model / file).unlink()
    with pytest.raises(ModelNotFound, match=f"has no {file}"):
        load(model, 1, 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 5}', '{"metadata": {}}'])
def test_a_damaged_index_is_named(text: str, model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CorruptModel, match=r"index\.json of .* is damaged"):
        load(model)


@pytest.mark.parametrize("file", ["../outside.safetensors", "/outside.safetensors", "a/../../outside.safetensors"])
def test_an_index_cannot_name_files_outside_the_model(file: str, model: Path) -> None:
    weights = dict.fromkeys(shards(model), file)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(CorruptModel, match="outside the model"):
        load(model)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"llama"', '{"model_type": ["llama"]}'])
def test_a_damaged_config_is_named(text: str, model: Path) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(CorruptModel, match=r"config\.json"):
        load(model)


def test_a_config_that_contradicts_itself_is_named(model: Path) -> None:
    config(model, num_hidden_layers="four")
    with pytest.raises(CorruptModel, match=r"config\.json of .* cannot be read"):
        load(model)


def test_code_that_comes_with_a_model_is_not_run(model: Path) -> None:
    (model / "modeling_evil.py").write_text("raise SystemExit('this was run')")
    auto = {"AutoConfig": "modeling_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"}
    config(model, auto_map=auto)
    assert load(model).weight_bytes > 0
    config(model, model_type="evil", architectures=["EvilForCausalLM"])
    with pytest.raises(UnsupportedArchitecture, match="EvilForCausalLM"):
        load(model)


@pytest.mark.parametrize(
    "fields",
    [
        {"architectures": ["LlamaForSequenceClassification"]},
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
    ],
)
def test_a_model_that_writes_no_text_is_named(fields: dict[str, object], model: Path) -> None:
    config(model, **fields)
    with pytest.raises(NotACausalLM, match=str(fields["architectures"][0])):
        load(model)


@pytest.mark.parametrize(("start", "end"), [(0, 5), (4, 5), (2, 2), (3, 1), (-1, 2)])
def test_layers_the_model_does_not_have_are_refused(start: int, end: int, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ModelNotFound, match="has layers 0 to 3"):
        load(tiny("llama"), start, end)


def test_a_slice_that_does_not_fit_is_refused_in_words(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", full)
    with pytest.raises(NotEnoughMemory, match=r"layers 1 to 2 of .* do not fit"):
        load(tiny("llama"), 1, 3)


def test_a_quantizer_that_is_not_here_is_named(model: Path) -> None:
    config(model, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedArchitecture, match="packed in a way this peer cannot unpack"):
        load(model)


class TestMultimodalLayout:
    @staticmethod
    def renamed(name: str, directory: Path, rename: Callable[[str], str]) -> Path:
        save_tiny(name, directory)
        rewrite(directory / "model.safetensors", lambda tensors: {rename(n): t for n, t in tensors.items()})
        return directory

    def test_older_names_of_the_text_part_are_found(self, tmp_path: Path) -> None:
        """Checkpoints on the hub keep the text part below another prefix than the library saves it under now."""

        def older(name: str) -> str:
            return (
                "language_model." + name.replace("model.language_model", "model") if "language_model" in name else name
            )

        directory = self.renamed("gemma3_vl", tmp_path, older)
        assert difference(through(Chain.load(directory, (0, 1, 4))), tiny_model("gemma3_vl")) < CLOSE

    def test_a_head_below_a_prefix_is_found(self, tmp_path: Path) -> None:
        directory = self.renamed(
            "qwen3_5_vl", tmp_path, lambda n: f"language_model.{n}" if n.startswith("lm_head") else n
        )
        assert difference(through(Chain.load(directory, (0, 1, 4))), tiny_model("qwen3_5_vl")) < CLOSE

    def test_no_weight_of_the_vision_tower_is_held(self, tiny: Callable[[str], Path]) -> None:
        text = sum(p.numel() * 4 for n, p in tiny_model("gemma3_vl").named_parameters() if "language_model" in n)
        model = load_model(str(tiny("gemma3_vl")), 0, 4, dtype=torch.float32, device=CPU)
        assert sum(p.numel() * 4 for p in model.parameters()) == text


def test_opening_a_model_reads_no_weights(model: Path) -> None:
    for path in model.glob("*.safetensors*"):
        path.unlink()
    found = open_checkpoint(str(model))
    assert found.config.num_hidden_layers == 4
    assert found.model_class.__name__ == "LlamaForCausalLM"


def test_every_refusal_is_one_sentence() -> None:
    with pytest.raises(PeerError) as refusal:
        load("/no/such/place")
    assert "\n" not in str(refusal.value)


_MEASURE = """
import sys, torch
torch.set_num_threads(1)
import peer.slice, gguf, transformers
from pathlib import Path
from transformers import LlamaForCausalLM
def high_water():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
for start, end in ((10, 20), (0, 10), (20, 30)):
    Path("/proc/self/clear_refs").write_text("5")  # start a new high-water mark
    bare = high_water()
    slice = peer.slice.Slice.load(sys.argv[1], start, end, dtype=torch.float32, device=torch.device("cpu"))
    print(slice.weight_bytes, high_water() - bare)
    del slice
"""


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_memory_while_loading_follows_the_slice(kind: str, smollm2: Path, smollm2_directory: Path) -> None:
    source = smollm2 if kind == "gguf" else smollm2_directory
    command = [sys.executable, "-W", "ignore", "-c", _MEASURE, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        weights, peak = map(int, line.split())
        assert weights < 0.5 * 538e6
        assert peak < 2.5 * weights + 300e6


def test_configs_are_not_changed_by_loading(tiny: Callable[[str], Path]) -> None:
    before = json.loads((tiny("llama") / "config.json").read_text())
    load(tiny("llama"))
    assert json.loads((tiny("llama") / "config.json").read_text()) == before
    assert tiny_config("llama").num_hidden_layers == 4
