"""Manifests come from others: what is wrong with one is said, and nothing is done with it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.manifest import BLOCK, InvalidManifest, Manifest, digest

SHA = "a" * 64


def good() -> dict[str, Any]:
    tensor = {"name": "w", "dtype": "F32", "shape": [2, 5], "offset": 100, "size": 40, "blocks": [SHA]}
    header = {"offset": 0, "size": 100, "blocks": [SHA]}
    weights = [{"name": "model.safetensors", "size": 200, "header": header, "tensors": [tensor]}]
    texts = [{"name": "config.json", "size": 5, "sha256": SHA}]
    return {"version": 1, "model": "m", "repository": None, "commit": None, "texts": texts, "weights": weights}


def parse(fields: Any) -> Manifest:
    return Manifest.parse(json.dumps(fields).encode())


def test_what_is_written_is_read_again() -> None:
    manifest = parse(good())
    assert Manifest.parse(manifest.text()) == manifest
    assert manifest.weights[0].tensors[0].shape == (2, 5)
    assert manifest.size == 200
    assert not manifest.is_gguf
    assert digest(manifest.text()) == digest(Manifest.parse(manifest.text()).text())


def test_a_region_is_read_in_pieces() -> None:
    fields = good()
    fields["weights"][0].update(size=100 + BLOCK + 7)
    fields["weights"][0]["tensors"][0].update(size=BLOCK + 7, blocks=[SHA, "b" * 64])
    pieces = list(parse(fields).weights[0].tensors[0].pieces())
    assert [(piece.offset, piece.size) for piece in pieces] == [(100, BLOCK), (100 + BLOCK, 7)]


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "~/x.safetensors",
        "a\\b.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x\0.safetensors",
        "a\n.safetensors",
        "x" * 300 + ".safetensors",
        "..",
        "",
    ],
)
@pytest.mark.parametrize("kind", ["texts", "weights"])
def test_no_file_is_outside_the_model(kind: str, name: str) -> None:
    fields = good()
    fields[kind][0]["name"] = name
    with pytest.raises(InvalidManifest, match=r"outside the model|neither safetensors nor GGUF"):
        parse(fields)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["weights"][0].update(name="pytorch_model.bin"), "nothing else is loaded"),
        (lambda m: m["weights"].append({**m["weights"][0], "name": "b.gguf"}), "neither safetensors nor GGUF"),
        (lambda m: m["weights"].append(m["weights"][0]), "twice"),
        (lambda m: m["texts"].append({**m["texts"][0], "name": "CONFIG.json"}), "twice"),
        (lambda m: m["weights"][0]["tensors"].append(m["weights"][0]["tensors"][0]), "overlap"),
        (lambda m: m["weights"][0]["tensors"][0].update(offset=99), "overlap"),
        (lambda m: m["weights"][0]["tensors"][0].update(offset=180), "beyond its end"),
        (lambda m: m["weights"][0]["tensors"][0].update(blocks=[]), "a block too few"),
        (lambda m: m["weights"][0]["tensors"][0].update(shape=[1] * 9), "9 dimensions"),
        (lambda m: m["weights"][0]["tensors"][0].update(size=-1), "damaged"),
        (lambda m: m["weights"][0]["tensors"][0].update(size=2**60), "damaged"),
        (lambda m: m["weights"][0]["tensors"][0].update(blocks=["A" * 64]), "damaged"),
        (lambda m: m["texts"][0].update(sha256=7), "damaged"),
        (lambda m: m.update(version=2), "version 2"),
        (lambda m: m.update(weights=[]), "neither safetensors nor GGUF"),
        (lambda m: m.update(repository="org/name"), "without the other"),
        (lambda m: m.update(repository="org/name", commit="main"), "no repository"),
        (lambda m: m.update(repository="../x/y", commit="a" * 40), "no repository"),
    ],
)
def test_what_is_wrong_is_said(change: Callable[[dict[str, Any]], object], says: str) -> None:
    fields = good()
    change(fields)
    with pytest.raises(InvalidManifest, match=says):
        parse(fields)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_manifest(text: bytes) -> None:
    with pytest.raises(InvalidManifest):
        Manifest.parse(text)


@given(st.data())
def test_a_manifest_with_a_part_replaced_is_refused_or_sound(data: st.DataObject) -> None:
    """Whatever stands anywhere, it is refused with a sentence or gives a manifest whose pieces lie in their files."""
    fields = good()
    place: Any = fields
    while isinstance(place, (dict, list)) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], (dict, list)) or data.draw(st.booleans()):
            junk = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}))
            place[key] = data.draw(junk)
            break
        place = place[key]
    try:
        manifest = parse(fields)
    except InvalidManifest:
        return
    for file in manifest.weights:
        for region in (file.header, *file.tensors):
            assert all(0 <= piece.offset <= piece.offset + piece.size <= file.size for piece in region.pieces())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InvalidManifest, match="damaged"):
        Manifest.parse(b'{"version":' + b"[" * 100_000)
