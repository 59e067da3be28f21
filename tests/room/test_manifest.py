"""Manifests of real files: what they say of each byte, and when they are made anew."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from protos.manifest import Manifest, digest
from protos.progress import Meter
from room import manifest
from room.headers import read_safetensors
from room.model import Model, inspect
from room.model_errors import DamagedFile, ModelError, UnusableWeights, WrongManifest
from tests.room.checkpoints import save_checkpoint, split_checkpoint


def nothing(meter: Meter) -> None: ...


def look(directory: Path) -> Model:
    return inspect(str(directory), None, directory.parent / "cache")


def fill(path: Path) -> None:
    """Give the tensors of a file, which are zeros, bytes that tell them apart."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start:] = bytes(at % 251 for at in range(len(content) - start))
    path.write_bytes(content)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    directory = save_checkpoint(tmp_path / "model")
    for path in split_checkpoint(directory):
        fill(path)
    return look(directory)


def test_each_piece_has_its_hash(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protos.manifest.BLOCK", 1000)
    monkeypatch.setattr("room.manifest.BLOCK", 1000)
    made = manifest.make(model, nothing)
    names = set()
    for file in made.weights:
        content = model.file(file.name).read_bytes()
        names |= {tensor.name for tensor in file.tensors}
        for region in (file.header, *file.tensors):
            pieces = list(region.pieces())
            assert sum(piece.size for piece in pieces) == region.size
            for piece in pieces:
                assert digest(content[piece.offset : piece.offset + piece.size]) == piece.sha256
    expected = [name for path in model.weights for name in read_safetensors(model.file(path))]
    assert names == set(expected)
    texts = {text.name: text.sha256 for text in made.texts}
    assert texts["config.json"] == digest((model.text_dir / "config.json").read_bytes())
    assert "tokenizer.json" in texts
    assert "model.safetensors.index.json" not in texts


def test_reading_tells_how_far_it_is(model: Model) -> None:
    heard: list[float] = []
    manifest.make(model, lambda meter: heard.append(meter.share))
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_the_embedded_model_is_one_file_with_its_texts_in_the_header(embedded: Model) -> None:
    made = manifest.make(embedded, nothing)
    (file,) = made.weights
    assert (made.is_gguf, made.texts, file.size) == (True, (), Path(embedded.source).stat().st_size)
    with Path(embedded.source).open("rb") as source:
        for region in (file.header, *file.tensors[::40]):
            for piece in region.pieces():
                source.seek(piece.offset)
                assert digest(source.read(piece.size)) == piece.sha256


def test_what_was_made_is_made_again_only_when_a_file_has_changed(model: Model, tmp_path: Path) -> None:
    heard: list[Meter] = []
    first = manifest.made(model, tmp_path, heard.append)
    heard.clear()
    assert manifest.made(model, tmp_path, heard.append) == first
    assert not heard, "it was read again"
    path = model.file(model.weights[0])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert manifest.made(model, tmp_path, heard.append) != first


class TestGivenOnes:
    @pytest.fixture
    def file(self, model: Model, tmp_path: Path) -> Path:
        path = tmp_path / "model.json"
        path.write_bytes(manifest.make(model, nothing).text())
        return path

    def test_of_this_model_it_is_taken(self, file: Path, model: Model) -> None:
        assert digest(manifest.read(file, model).text()) == digest(file.read_bytes())

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
    def test_another_text_file_is_named(self, name: str, file: Path, model: Model) -> None:
        fields = json.loads((model.text_dir / name).read_text())
        (model.text_dir / name).write_text(json.dumps({**fields, "changed": True}))
        with pytest.raises(WrongManifest, match=f"{name} differ"):
            manifest.read(file, model)

    def test_weights_of_other_sizes_are_told(self, file: Path, model: Model) -> None:
        with model.file(model.weights[0]).open("ab") as out:
            out.write(b"more")
        with pytest.raises(WrongManifest, match="other names or sizes"):
            manifest.read(file, model)

    @pytest.mark.parametrize("text", ["", "{}", '{"version": 1}'])
    def test_no_manifest_is_told(self, text: str, file: Path, model: Model) -> None:
        file.write_text(text)
        with pytest.raises(WrongManifest, match=r"model\.json"):
            manifest.read(file, model)

    def test_a_file_that_is_not_there_is_told(self, model: Model, tmp_path: Path) -> None:
        with pytest.raises(WrongManifest, match="cannot read"):
            manifest.read(tmp_path / "nowhere.json", model)


def hostile(directory: Path, header: bytes) -> Path:
    save_checkpoint(directory)
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4096))
    return directory


def entry(**fields: Any) -> bytes:
    return json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **fields}}).encode()


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 1_000_000,
        b'{"w":' * 100_000,
        b'{"w": 5}',
        b"[]",
        b"\xff\xfe",
        b'{"w": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 16]}}',
        entry(shape=[2**63] * 100_000),
        entry(shape=[-1]),
        entry(shape=[1.5]),
        entry(shape="ab"),
        entry(data_offsets=[16, 0]),
        entry(data_offsets=[-16, 0]),
        entry(data_offsets=[0, 2**70]),
        entry(data_offsets=[0]),
        entry(data_offsets=[0, True]),
    ],
    ids=lambda header: str(header[:12]),
)
def test_hostile_headers_of_safetensors_are_refused_in_a_sentence(header: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        look(hostile(tmp_path / "model", header))
    assert "\n" not in str(refused.value)


def test_tensors_that_overlap_are_refused(model: Model) -> None:
    path = model.file(model.weights[0])
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    header[names[1]]["data_offsets"][0] -= 4
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(DamagedFile, match="overlap"):
        manifest.make(model, nothing)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_cannot_name_files_elsewhere(shard: str, model: Model) -> None:
    index = Path(model.source) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(UnusableWeights, match="no file beside it"):
        look(Path(model.source))


def test_a_manifest_says_what_it_is_of(model: Model) -> None:
    made = manifest.make(model, nothing)
    assert (made.model, made.repository, made.commit) == ("model", None, None)
    assert Manifest.parse(made.text()) == made
