"""GGUF files: the header, the copy with one slice's tensors, and what loads from it."""

import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from peer.errors import CorruptModel, ModelNotFound, UnsupportedArchitecture
from peer.gguf_file import read_header, write_outline, write_part
from peer.loading import load_model
from peer.slice import Slice
from tests.peer.chains import Chain
from tests.peer.test_slices import CLOSE, difference, through
from tests.tiny_model import tiny_model

CPU = torch.device("cpu")

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """A tensor's name in a GGUF, from that in the library."""
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return fixed.get(name, "output.weight")
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def save_gguf(path: Path, *, tied: bool = True, architecture: str = "llama", **overrides: object) -> Path:
    """The tiny Llama as a GGUF: norms in float32, matrices in Q8_0."""
    model = tiny_model("llama", tie_word_embeddings=tied, **overrides)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(model.config.num_hidden_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"<{number}>" for number in range(256)])
    writer.add_token_scores([0.0] * 256)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def load(source: Path, start: int = 0, end: int = 4) -> Slice:
    return Slice.load(str(source), start, end, dtype=torch.float32, device=CPU)


def test_the_header_tells_what_the_gguf_package_tells(tiny_gguf: Path) -> None:
    ours, theirs = read_header(tiny_gguf), gguf.GGUFReader(tiny_gguf)
    assert ours.architecture == "llama"
    assert ours.data == theirs.data_offset
    assert [(t.name, t.dims, t.kind, t.size, ours.data + t.offset) for t in ours.tensors] == [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.n_bytes), int(t.data_offset))
        for t in theirs.tensors
    ]
    kept = {key for key in theirs.fields if not key.startswith("GGUF.")}
    assert kept - ours.fields.keys() == {"tokenizer.ggml.tokens", "tokenizer.ggml.scores"}


def test_an_outline_tells_everything_but_the_data(tiny_gguf: Path, tmp_path: Path) -> None:
    write_outline(read_header(tiny_gguf), tmp_path / "outline.gguf")
    before, after = gguf.GGUFReader(tiny_gguf), gguf.GGUFReader(tmp_path / "outline.gguf")
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    assert not any(t.data.any() for t in after.tensors)


def test_a_part_holds_the_wanted_tensors_still_packed(tiny_gguf: Path, tmp_path: Path) -> None:
    heard: list[float] = []
    write_part(read_header(tiny_gguf), tmp_path / "part.gguf", lambda name: name.startswith("blk.2."), heard.append)
    before = {t.name: t for t in gguf.GGUFReader(tiny_gguf).tensors if t.name.startswith("blk.2.")}
    after = {t.name: t for t in gguf.GGUFReader(tmp_path / "part.gguf").tensors}
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert tensor.tensor_type == before[name].tensor_type
        assert np.array_equal(tensor.data, before[name].data)
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cuts", [(0, 2, 4), (0, 1, 4)], ids=str)
def test_slices_of_a_gguf_equal_the_whole(tied: bool, cuts: Sequence[int], tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "tiny.gguf", tied=tied)
    whole = load_model(str(path), 0, 4, dtype=torch.float32, device=CPU)
    assert whole.config.tie_word_embeddings == tied
    assert difference(through(Chain.load(path, cuts)), whole) < CLOSE


def test_a_gguf_loads_close_to_what_it_was_made_from(tiny_gguf: Path) -> None:
    # Its matrices are rounded to 8 bits. The writer above leaves queries and keys in the library's order, and the
    # library turns them back from that of llama.cpp, so only what does not pass through them can be compared.
    mine = dict(load_model(str(tiny_gguf), 0, 4, dtype=torch.float32, device=CPU).named_parameters())
    for name, parameter in tiny_model("llama").named_parameters():
        if "q_proj" not in name and "k_proj" not in name:
            assert torch.allclose(mine[name], parameter, atol=5e-3), name


def test_a_directory_with_one_gguf_is_that_file(tiny_gguf: Path) -> None:
    assert load(tiny_gguf.parent, 1, 2).weight_bytes == load(tiny_gguf, 1, 2).weight_bytes


def test_a_directory_with_two_ggufs_asks_which(tiny_gguf: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).symlink_to(tiny_gguf)
    with pytest.raises(ModelNotFound, match="2 GGUF files; name one"):
        load(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.05, 0.3, 0.9, 0.9999])
def test_a_gguf_that_is_cut_off_is_named(share: float, tiny_gguf: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: max(4, int(len(whole) * share))])
    with pytest.raises(CorruptModel, match=r"cut\.gguf.*download"):
        load(cut, 1, 2)


def test_every_cut_inside_the_header_is_named(tiny_gguf: Path, tmp_path: Path) -> None:
    header, cut = tiny_gguf.read_bytes()[: read_header(tiny_gguf).data], tmp_path / "cut.gguf"
    for size in range(4, len(header), 41):
        cut.write_bytes(header[:size])
        with pytest.raises(CorruptModel):
            read_header(cut)


@pytest.mark.parametrize(
    ("at", "bytes_"),
    [
        (4, struct.pack("<I", 1)),  # version
        (4, struct.pack(">I", 3)),  # the other byte order
        (8, struct.pack("<Q", 2**60)),  # tensors
        (16, struct.pack("<Q", 2**60)),  # fields
        (24, struct.pack("<Q", 2**60)),  # length of the first key
        (24 + 8 + len("general.architecture"), struct.pack("<I", 99)),  # type of the first value
    ],
)
def test_a_damaged_header_is_named(at: int, bytes_: bytes, tiny_gguf: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny_gguf.read_bytes())
    whole[at : at + len(bytes_)] = bytes_
    (tmp_path / "bad.gguf").write_bytes(whole)
    with pytest.raises(CorruptModel, match=r"bad\.gguf"):
        load(tmp_path / "bad.gguf")


def test_another_file_is_not_taken_for_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("not one")
    with pytest.raises(ModelNotFound, match="is not a GGUF file"):
        load(path)


def test_a_part_of_a_split_gguf_asks_to_be_joined(tiny_gguf: Path, tmp_path: Path) -> None:
    header = read_header(tiny_gguf)
    name = b"split.count"
    header.fields["split.count"] = struct.pack("<Q", len(name)) + name + struct.pack("<IH", 2, 3)
    write_part(header, tmp_path / "part.gguf", lambda _: True)
    with pytest.raises(ModelNotFound, match="one part of several"):
        read_header(tmp_path / "part.gguf")


def test_an_architecture_the_library_cannot_read_is_named(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "other.gguf", architecture="granite")
    with pytest.raises(UnsupportedArchitecture, match="granite"):
        load(path)


def test_a_tensor_that_is_lacking_is_named(tiny_gguf: Path, tmp_path: Path) -> None:
    write_part(read_header(tiny_gguf), tmp_path / "less.gguf", lambda name: name != "blk.2.ffn_up.weight")
    assert load(tmp_path / "less.gguf", 0, 2).weight_bytes > 0
    with pytest.raises(CorruptModel, match=r"layers\.2\.mlp\.up_proj\.weight"):
        load(tmp_path / "less.gguf", 2, 4)


def test_nothing_is_left_in_the_temporary_directory(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    heard: list[float] = []
    slice = Slice.load(str(tiny_gguf), 0, 2, dtype=torch.float32, device=CPU, progress=heard.append)
    assert slice.weight_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert heard == sorted(heard)
    assert capfd.readouterr() == ("", "")


@pytest.mark.model
@pytest.mark.parametrize(("start", "end"), [(0, 3), (13, 15), (29, 30)])
def test_a_slice_of_the_embedded_model_equals_that_of_its_unpacked_copy(
    start: int, end: int, smollm2: Path, smollm2_directory: Path
) -> None:
    packed, unpacked = (load(source, start, end) for source in (smollm2, smollm2_directory))
    mine, other = dict(packed._model.named_parameters()), dict(unpacked._model.named_parameters())
    assert mine.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in mine.items())


@pytest.mark.model
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_the_embedded_model_cut_off_is_named(share: float, smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2.open("rb") as source:
        cut.write_bytes(source.read(int(smollm2.stat().st_size * share)))
    with pytest.raises(CorruptModel, match=r"cut\.gguf.*download"):
        load(cut, 0, 3)
