"""What a model's name leads to: its config, its class in the library, and where its weights are.

A checkpoint is opened without reading weights.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from peer.errors import CorruptModel, ModelNotFound, NotACausalLM, UnsupportedArchitecture
from peer.gguf_file import GgufHeader, read_header, write_outline
from peer.model import architecture

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_WRITERS = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}
"""Classes of the library that write text token by token."""


@dataclass(frozen=True)
class Checkpoint:
    """A causal language model that was found, its weights not read yet."""

    source: str
    """As it was named; for messages."""
    config: Any
    """Of the text part alone, also when the checkpoint holds a vision tower."""
    model_class: Any
    composite: bool
    """The checkpoint is in multimodal layout: the text part's weights carry another prefix."""
    fetch: Callable[[str], Path]
    """Give the local path of one of its files. Raises ModelNotFound or CorruptModel."""
    gguf: GgufHeader | None = None

    def weight_map(self) -> dict[str, str] | None:
        """Which file holds which tensor, if the weights are in several files; None if they are in one."""
        try:
            index = json.loads(self.fetch(INDEX).read_text())
            return dict(index["weight_map"])
        except ModelNotFound:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptModel(f"{INDEX} of {self.source} is damaged; download the model again") from error


def open_checkpoint(source: str) -> Checkpoint:
    """Find the model that `source` names: a directory or a GGUF file.

    Raises ModelNotFound, NotACausalLM, UnsupportedArchitecture or CorruptModel.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _open_directory(source, path)
    if path.is_file():
        return _open_gguf(source, path)
    raise ModelNotFound(f"there is no file or directory {source}; check the path")


def _open_directory(source: str, directory: Path) -> Checkpoint:
    ggufs = sorted(directory.glob("*.gguf"))
    if not (directory / "config.json").exists() and ggufs:
        if len(ggufs) > 1:
            raise ModelNotFound(f"{source} holds {len(ggufs)} GGUF files; name one of them")
        return _open_gguf(source, ggufs[0])

    def fetch(name: str) -> Path:
        if not (directory / name).is_file():
            raise ModelNotFound(f"{source} has no {name}; is it the directory of a model?")
        return directory / name

    return _open(source, fetch)


def _open(source: str, fetch: Callable[[str], Path]) -> Checkpoint:
    path = fetch("config.json")
    try:
        fields = json.loads(path.read_text())
        model_type = fields["model_type"]
        known = model_type in CONFIG_MAPPING
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptModel(f"config.json of {source} is damaged or names no model_type; download it again") from error
    if not known:
        named = (fields.get("architectures") or [model_type])[0]
        raise UnsupportedArchitecture(
            f"{source} is a {named}, which this version of transformers does not know (code that comes with a model is "
            "never run); use another model"
        )
    try:
        config = AutoConfig.from_pretrained(path.parent, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise CorruptModel(f"config.json of {source} cannot be read: {_first_line(error)}") from error
    return _checkpoint(source, config, fetch)


def _open_gguf(source: str, path: Path) -> Checkpoint:
    header = read_header(path)
    with tempfile.TemporaryDirectory(prefix="pooled-") as directory:
        write_outline(header, Path(directory, path.name))
        try:
            config = AutoConfig.from_pretrained(directory, gguf_file=path.name)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise UnsupportedArchitecture(
                f"{source} is a GGUF of architecture {header.architecture}, which the transformers library cannot "
                "read; use the model's safetensors"
            ) from error
    # The outline has no vocabulary to count.
    embedding = header.shape("token_embd.weight")
    if embedding is not None:
        config.vocab_size = embedding[0]
    return _checkpoint(source, config, lambda name: path.parent / name, header)


def _checkpoint(source: str, config: Any, fetch: Callable[[str], Path], gguf: GgufHeader | None = None) -> Checkpoint:
    text = config.get_text_config(decoder=True)
    named = getattr(config, "architectures", None) or []
    writes = not named or any(name in _WRITERS for name in named)
    if config.is_encoder_decoder or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING or not writes:
        raise NotACausalLM(
            f"{source} is a {architecture(config)}, which does not write text; use a causal language model"
        )
    if text is not config:
        text.architectures = named or None
        # The checkpoint as a whole says how it is quantized.
        if getattr(config, "quantization_config", None) is not None:
            text.quantization_config = config.quantization_config
    return Checkpoint(source, text, MODEL_FOR_CAUSAL_LM_MAPPING[type(text)], text is not config, fetch, gguf)


def tensors_in(path: Path) -> dict[str, tuple[int, int]]:
    """By the header of a file of weights: where each tensor begins in the file, and its bytes.

    Raises CorruptModel.
    """
    if path.suffix == ".gguf":
        header = read_header(path)
        return {each.name: (header.data + each.offset, each.size) for each in header.tensors}
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            entries = json.loads(file.read(min(length, path.stat().st_size)))
            entries.pop("__metadata__", None)
            places = {name: entry["data_offsets"] for name, entry in entries.items()}
            return {name: (8 + length + int(start), int(end) - int(start)) for name, (start, end) in places.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptModel(f"the header of {path} is damaged; download the file again") from error


def link(file: Path, place: Path) -> None:
    """Have `place` be another name of `file`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.symlink_to(file.resolve())
    except OSError:
        # Windows lets only administrators make symbolic links.
        os.link(file.resolve(), place)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
