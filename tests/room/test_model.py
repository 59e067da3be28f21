import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from room import gguf_extract
from room.headers import read_gguf, read_safetensors
from room.model import Model, ModelError, inspect
from room.model_errors import DamagedFile, ModelNotFound, NotACausalLM, NoTokenizer, UnsupportedModel, UnusableWeights
from room.shape import shape_of
from tests.room import fakes
from tests.room.checkpoints import LAYER_PARAMS, LLAMA, llama_tensors, save_checkpoint, split_checkpoint
from tests.room.text.kinds import smollm2_gguf
from tests.tiny_model import MULTIMODAL, TINY, save_tiny, tiny_config, tiny_model

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def look(tmp_path: Path) -> Any:
    return lambda source, revision=None: inspect(str(source), revision, tmp_path / "cache")


# ---------------------------------------------------------------- directories


def test_a_directory(tmp_path: Path, look: Any) -> None:
    directory = save_checkpoint(tmp_path / "My Model (v2)")
    model: Model = look(directory)
    assert (model.source, model.revision, model.text_dir) == (str(directory), None, directory)
    assert (model.slug, model.architecture) == ("my-model-v2", "llama")
    shape = model.shape
    assert (shape.layers, shape.hidden_size, shape.vocab_size, shape.ctx) == (2, 32, 320, 512)
    assert shape.layer_params == (LAYER_PARAMS,) * 2
    assert (shape.tied, shape.embed_params, shape.head_params) == (False, 320 * 32, 320 * 32 + 32)
    assert shape.params == 2 * LAYER_PARAMS + 2 * 320 * 32 + 32
    assert (shape.kv_per_token, shape.state_elements, shape.hybrid) == ((2 * 2 * 8,) * 2, (0, 0), False)


def test_a_relative_directory_becomes_absolute(tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert look("tiny").source == look("./tiny").source == str(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path / "tiny")
    assert look(".").slug == "tiny"


def test_tied_weights_are_counted_once(tmp_path: Path, look: Any) -> None:
    """Some tied checkpoints hold the output projection all the same."""
    shape = look(save_checkpoint(tmp_path / "m", tie_word_embeddings=True)).shape
    assert (shape.tied, shape.head_params) == (True, 32)


def test_a_checkpoint_without_an_output_projection_is_tied(tmp_path: Path, look: Any) -> None:
    tensors = llama_tensors()
    del tensors["lm_head.weight"]
    shape = look(save_checkpoint(tmp_path / "m", tensors)).shape
    assert (shape.tied, shape.head_params) == (True, 32)


def test_shards(tmp_path: Path, look: Any) -> None:
    whole = look(save_checkpoint(tmp_path / "m")).shape
    split_checkpoint(tmp_path / "m")
    assert look(tmp_path / "m").shape == whole


def test_head_dim_of_its_own(tmp_path: Path, look: Any) -> None:
    assert look(save_checkpoint(tmp_path / "m", head_dim=16)).shape.kv_per_token == (2 * 2 * 16,) * 2


def test_layers_beyond_the_config_do_not_count(tmp_path: Path, look: Any) -> None:
    """Multi-token-prediction layers are stored behind the last one, or in a stack of their own."""
    tensors = llama_tensors(layers=3) | {"mtp.layers.0.mlp.up_proj.weight": (48, 32), "mtp.norm.weight": (32,)}
    assert look(save_checkpoint(tmp_path / "m", tensors)).shape.params == 2 * LAYER_PARAMS + 2 * 320 * 32 + 32


def test_packed_weights_count_as_what_they_hold(tmp_path: Path, look: Any) -> None:
    tensors = llama_tensors()
    packed = {name: (*shape[:-1], shape[-1] // 2) if len(shape) > 1 else shape for name, shape in tensors.items()}
    directory = save_checkpoint(tmp_path / "m", packed, dtype="U8", quantization_config={"quant_method": "mxfp4"})
    norms = 5 * 32  # not packed in a real checkpoint, counted twice here
    assert look(directory).shape.params == 2 * LAYER_PARAMS + 2 * 320 * 32 + 32 + norms


def test_the_directory_of_a_hub_download_is_named_by_its_repository(tmp_path: Path, look: Any) -> None:
    directory = tmp_path / "models--Org--Some-Model" / "snapshots" / ("0" * 40)
    assert look(save_checkpoint(directory)).slug == "some-model"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.q4_1"),
        ("Modèle ünïcode", "mod-le-n-code"),
        ("...", "model"),
        ("模型", "model"),
        ("a--b__c", "a--b__c"),
    ],
)
def test_slugs(name: str, slug: str) -> None:
    assert replace(fakes.model(), name=name).slug == slug


# ---------------------------------------------------------------- against the real thing


@needs_torch
@pytest.mark.parametrize("name", [*TINY, *MULTIMODAL])
def test_shapes_are_those_of_the_real_model(name: str, tmp_path: Path) -> None:
    import torch

    torch.set_num_threads(1)
    save_tiny(name, tmp_path)
    shape = shape_of(tiny_config(name), read_safetensors(tmp_path / "model.safetensors"))
    model = tiny_model(name)
    decoder = model.get_decoder()
    stack = getattr(decoder, "layers", None) or decoder.h
    assert shape.layer_params == tuple(sum(each.numel() for each in layer.parameters()) for layer in stack)
    head = 0 if shape.tied else model.get_output_embeddings().weight.numel()
    assert shape.params == sum(each.numel() for each in decoder.parameters()) + head
    assert shape.tied == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    with torch.no_grad():
        cache = model(input_ids=torch.arange(5)[None], use_cache=True).past_key_values
    for at, layer in enumerate(cache.layers):
        if shape.state_elements[at]:
            states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
            assert shape.state_elements[at] == sum(state.numel() for state in states)
            assert shape.kv_per_token[at] == 0
        else:
            assert shape.kv_per_token[at] * 5 == layer.keys.numel() + layer.values.numel()
    assert shape.hybrid == any(shape.state_elements) == ("qwen3_5" in name or name == "qwen3_next")


def test_latent_attention_keeps_unpacked_keys_and_values() -> None:
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        num_hidden_layers=2,
        hidden_size=32,
        vocab_size=320,
        num_attention_heads=4,
        num_key_value_heads=4,
        qk_nope_head_dim=24,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )
    tensors = read_header(llama_tensors())
    assert shape_of(config, tensors).kv_per_token == (4 * (24 + 8 + 16),) * 2


def read_header(tensors: dict[str, tuple[int, ...]]) -> Any:
    from room.headers import TensorInfo

    return {name: TensorInfo(shape, "F32", 0, 0) for name, shape in tensors.items()}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "source", ["./nowhere", "/no/such/model", "~/no-such-model", "model.gguf", "a b", "org/name/x"]
)
def test_nothing_there(look: Any, source: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no model at"):
        look(source)


def test_a_directory_that_is_no_model(tmp_path: Path, look: Any) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config.json; give the directory"):
        look(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        {"model_type": "bert", "architectures": None},
        {"model_type": "roberta", "architectures": ["RobertaForCausalLM"]},
        {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        {"model_type": "bart", "architectures": ["BartForCausalLM"]},
        {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
    ],
)
def test_not_a_causal_language_model(tmp_path: Path, look: Any, config: dict[str, Any]) -> None:
    with pytest.raises(NotACausalLM, match="is not a causal language model; choose one made for text generation"):
        look(save_checkpoint(tmp_path / "m", **config))


def test_a_decoder_of_an_encoder_family_is_taken(tmp_path: Path, look: Any) -> None:
    directory = save_checkpoint(tmp_path / "m", model_type="bert", architectures=["BertLMHeadModel"], is_decoder=True)
    assert look(directory).architecture == "bert"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "no-such-model"}', '{"model_type": 5}'])
def test_a_config_of_no_known_model(tmp_path: Path, look: Any, content: str) -> None:
    (save_checkpoint(tmp_path / "m") / "config.json").write_text(content)
    with pytest.raises(UnsupportedModel):
        look(tmp_path / "m")


def test_a_config_that_contradicts_itself(tmp_path: Path, look: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"the config.json of .* cannot be used"):
        look(save_checkpoint(tmp_path / "m", num_attention_heads=5))


def test_remote_code_is_never_run(tmp_path: Path, look: Any) -> None:
    directory = save_checkpoint(
        tmp_path / "m", model_type="own", auto_map={"AutoConfig": "configuration_own.OwnConfig"}
    )
    (directory / "configuration_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UnsupportedModel, match="is a own model, which transformers does not know"):
        look(directory)
    assert not (tmp_path / "ran").exists()


def test_layers_that_cannot_be_dealt(tmp_path: Path, look: Any) -> None:
    with pytest.raises(UnsupportedModel, match="mamba model has linear_attention layers"):
        look(save_checkpoint(tmp_path / "m", model_type="mamba", architectures=["MambaForCausalLM"]))


def test_no_tokenizer(tmp_path: Path, look: Any) -> None:
    with pytest.raises(NoTokenizer, match=r"has no tokenizer; its files, such as tokenizer.json"):
        look(save_checkpoint(tmp_path / "m", tokenizer=False))


def test_only_pickled_weights(tmp_path: Path, look: Any) -> None:
    directory = save_checkpoint(tmp_path / "m")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnusableWeights, match="only pickled weights"):
        look(directory)


def test_no_weights(tmp_path: Path, look: Any) -> None:
    (save_checkpoint(tmp_path / "m") / "model.safetensors").unlink()
    with pytest.raises(UnusableWeights, match=r"holds no weights .*; finish the download"):
        look(tmp_path / "m")


def test_a_shard_is_missing(tmp_path: Path, look: Any) -> None:
    shards = split_checkpoint(save_checkpoint(tmp_path / "m"))
    shards[1].unlink()
    with pytest.raises(UnusableWeights, match=r"lacks model-00002-of-00002\.safetensors"):
        look(tmp_path / "m")


def test_layers_are_missing(tmp_path: Path, look: Any) -> None:
    with pytest.raises(UnusableWeights, match="do not hold the 2 layers"):
        look(save_checkpoint(tmp_path / "m", llama_tensors(layers=1)))


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
def test_safetensors_cut_off(tmp_path: Path, look: Any, keep: int) -> None:
    weights = save_checkpoint(tmp_path / "m") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(DamagedFile, match=r"is cut off.*; download it again"):
        look(tmp_path / "m")


@pytest.mark.parametrize(
    "content", [b"\x04\0\0\0\0\0\0\0null", b"\x02\0\0\0\0\0\0\0[]", b"\x0a\0\0\0\0\0\0\0" + b'{"a": {}} ']
)
def test_safetensors_without_a_header(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(DamagedFile, match="no header that can be read"):
        read_safetensors(tmp_path / "x.safetensors")


# ---------------------------------------------------------------- GGUF


def write_gguf(path: Path, architecture: str = "llama", **extra: int) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "c"])
    if architecture == "llama":  # transformers reads no lists of lists
        writer.add_array("lists", [[1, 2], [3]])
    writer.add_bool("flag", True)
    for key, value in extra.items():
        writer.add_uint16(key.replace("__", "."), value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.add_tensor("blk.0.x.weight", np.zeros((2, 32), dtype=np.float16))
    writer.add_tensor("blk.1.x.weight", np.zeros((2, 18), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_header(tmp_path: Path) -> None:
    header = read_gguf(write_gguf(tmp_path / "m.gguf"))
    assert header.metadata == {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": 2,
        "flag": True,
    }
    assert {name: (info.elements, info.dtype) for name, info in header.tensors.items()} == {
        "token_embd.weight": (128, "F32"),
        "blk.0.x.weight": (64, "F16"),
        "blk.1.x.weight": (64, "Q4_0"),
    }


@pytest.mark.parametrize("share", [0.0, 0.005, 0.05, 0.2, 0.4, 0.7, 0.95])
def test_a_gguf_that_is_cut_off(tmp_path: Path, look: Any, share: float) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DamagedFile, match=r"is cut off.*; download it again"):
        look(path)


def test_every_cut_of_a_gguf_is_noticed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) + 1
    for size in range(0, end, 7):
        path.write_bytes(content[:size])
        with pytest.raises(DamagedFile):
            read_gguf(path)


@pytest.mark.parametrize("content", [b"not a model" * 10, b"GGUF" + b"\xff" * 100, b"GGUF" + bytes(4) + b"\x10" * 100])
def test_a_file_that_is_no_gguf(tmp_path: Path, look: Any, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(DamagedFile):
        look(tmp_path / "m.gguf")


@pytest.mark.parametrize("content", [b"# Title", b"not a model" * 10])
def test_a_file_of_another_kind_is_not_called_damaged(tmp_path: Path, look: Any, content: bytes) -> None:
    (tmp_path / "README.md").write_bytes(content)
    with pytest.raises(UnusableWeights, match=r"README\.md is not a GGUF file; give one") as caught:
        look(tmp_path / "README.md")
    assert "download" not in str(caught.value)


def test_one_part_of_a_split_gguf(tmp_path: Path, look: Any) -> None:
    with pytest.raises(UnsupportedModel, match="one part of several; join them"):
        look(write_gguf(tmp_path / "m.gguf", split__count=3))


@needs_torch
def test_a_gguf_that_transformers_does_not_map_is_refused_by_name(tmp_path: Path, look: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"m.gguf \(architecture rwkv9\) cannot be used: .*rwkv9"):
        look(write_gguf(tmp_path / "m.gguf", "rwkv9"))
    assert not list((tmp_path / "cache" / "gguf").iterdir())


def test_a_gguf_where_torch_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gguf_extract", str(tmp_path / "m.gguf"), str(tmp_path)])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="needs torch and gguf on the host's machine"):
        gguf_extract.main()


@needs_torch
@pytest.mark.model
def test_the_embedded_model(tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = smollm2_gguf()
    model: Model = look(gguf)
    assert (model.source, model.revision, model.slug) == (str(gguf), None, "smollm2-135m-instruct.q4_1")
    shape = model.shape
    assert (shape.layers, shape.hidden_size, shape.vocab_size, shape.ctx) == (30, 576, 49152, 8192)
    assert (shape.params, shape.tied, shape.head_params) == (134_515_008, True, 576)
    assert shape.kv_per_token == (2 * 3 * 64,) * 30
    assert json.loads((model.text_dir / "config.json").read_text())["model_type"] == "llama"

    def no_second_time(*_: Any, **__: Any) -> None:
        raise AssertionError("extracted again")

    monkeypatch.setattr(subprocess, "run", no_second_time)
    assert look(gguf) == model


# ---------------------------------------------------------------- without torch


def test_it_works_where_torch_is_not_installed(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path / "m")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from room.model import inspect\n"
        "print(inspect(sys.argv[1], None, Path(sys.argv[2])).shape.params)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.strip() == str(2 * LAYER_PARAMS + 2 * 320 * 32 + 32), done.stderr


def test_errors_are_one_sentence(tmp_path: Path, look: Any) -> None:
    save_checkpoint(tmp_path / "bert", model_type="bert", architectures=["BertModel"])
    for source in ("/no/such/model", tmp_path, tmp_path / "bert"):
        with pytest.raises(ModelError) as caught:
            look(source)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


assert LLAMA["num_hidden_layers"] == 2  # what llama_tensors() and the numbers above stand for
