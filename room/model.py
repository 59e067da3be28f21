"""What the room knows of the model it serves, found out without torch.

model = inspect("HuggingFaceTB/SmolLM2-135M-Instruct", None, cache)
model.shape.layers, model.slug, TextModel.load(model.text_dir)
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from room import hub
from room.headers import Tensors, read_gguf, read_safetensors
from room.model_errors import ModelError as ModelError
from room.model_errors import ModelNotFound, NotACausalLM, NoTokenizer, UnsupportedModel, UnusableWeights
from room.shape import ModelShape as ModelShape
from room.shape import shape_of

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json", "*.tiktoken")
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_EXTRACT_SECONDS = 600


@dataclass(frozen=True)
class Model:
    source: str
    """An absolute directory, an absolute GGUF path, or a hub id."""
    revision: str | None
    """The commit, of a hub id."""
    shape: ModelShape
    text_dir: Path
    """Holds config.json, the tokenizer, its chat template and generation_config.json, where there are any."""
    name: str
    """What people call it."""
    weights: tuple[str, ...]
    """Names of its files of weights."""
    manifest: str = ""
    """SHA-256 of the manifest that peers load by; empty before it is made (room/manifest.py)."""

    @property
    def slug(self) -> str:
        """Its name in an id such as "pooled/<slug>"."""
        return re.sub(r"[^a-z0-9._-]+", "-", self.name.rpartition("/")[2].lower()).strip("-._") or "model"

    @property
    def is_gguf(self) -> bool:
        return self.weights[0].endswith(".gguf")

    def file(self, name: str) -> Path:
        """Where one of its files of weights is on this machine; of a hub id it may be only on the hub."""
        if self.is_gguf:
            return Path(self.source)
        return (self.text_dir if self.revision else Path(self.source)) / name

    @property
    def architecture(self) -> str:
        return self.shape.architecture


def inspect(source: str, revision: str | None, cache: Path) -> Model:
    """Find out what `source` is: a directory, a GGUF file or a hub id (of `revision`, else of its main branch).

    Only text files are downloaded; what is extracted from a GGUF is kept in `cache`. May take seconds, and blocks.
    Raises ModelError.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_directory(path.resolve())
    if path.is_file():
        return _from_gguf(path.resolve(), cache)
    if source.endswith(".gguf") or not _HUB_ID.fullmatch(source):
        raise ModelNotFound(f"there is no model at {source}; give a directory, a GGUF file or a hub id like ORG/NAME")
    return _from_hub(source, revision)


def _from_directory(directory: Path) -> Model:
    if not (directory / "config.json").is_file():
        raise ModelNotFound(f"{directory} has no config.json; give the directory that holds the model's files")
    tensors = _local_tensors(directory)
    shape = shape_of(_config(directory, str(directory)), _joined(tensors))
    return Model(str(directory), None, shape, directory, _name(directory), tuple(tensors))


def _from_gguf(path: Path, cache: Path) -> Model:
    header = read_gguf(path)
    if header.metadata.get("split.count", 1) > 1:
        raise UnsupportedModel(f"{path} is one part of several; join them with llama-gguf-split --merge")
    directory = _extracted(path, header.metadata.get("general.architecture", "unknown"), cache)
    shape = shape_of(_config(directory, str(path)), header.tensors)
    return Model(str(path), None, shape, directory, path.stem, (path.name,))


def _from_hub(repository: str, revision: str | None) -> Model:
    directory = hub.fetch_text(repository, revision)
    commit = directory.name
    if not (directory / "config.json").is_file():
        raise ModelNotFound(
            f"{repository} has no config.json; of a GGUF repository, download the file and give its path"
        )
    config = _config(directory, repository)
    try:
        tensors = _local_tensors(directory)
    except UnusableWeights:
        tensors = hub.read_tensors(repository, commit)
    return Model(repository, commit, shape_of(config, _joined(tensors)), directory, repository, tuple(tensors))


# ---------------------------------------------------------------- config


def _config(directory: Path, source: str) -> Any:
    """The transformers config in `directory`, known to be of a causal language model with a tokenizer."""
    from transformers import CONFIG_MAPPING, AutoConfig

    try:
        kind = json.loads((directory / "config.json").read_text())["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnsupportedModel(
            f"the config.json of {source} names no model_type; is it one of transformers?"
        ) from error
    if kind not in CONFIG_MAPPING:
        raise UnsupportedModel(f"{source} is a {kind} model, which transformers does not know; choose another")
    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        text = config.get_text_config(decoder=True)
    except Exception as error:
        # Configs check themselves when they are made, each in its own way.
        why = str(error).strip().partition("\n")[0]
        raise UnsupportedModel(f"the config.json of {source} cannot be used: {why}") from error
    _check_causal(config, text, source)
    if not any(next(directory.glob(pattern), None) for pattern in _TOKENIZERS):
        raise NoTokenizer(f"{source} has no tokenizer; its files, such as tokenizer.json, belong beside config.json")
    return config


def _check_causal(config: Any, text: Any, source: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGES
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES as MULTIMODAL

    classes = {name for mapping in (CAUSAL, IMAGES, MULTIMODAL) for name in mapping.values()}
    made_as = config.architectures or []
    if (
        getattr(config, "is_encoder_decoder", False)
        or not {config.model_type, text.model_type} & CAUSAL.keys()
        or (text.model_type in MASKED and not getattr(text, "is_decoder", False))
        or (made_as and not classes & set(made_as))
    ):
        raise NotACausalLM(f"{source} ({made_as[0] if made_as else config.model_type})")


# ---------------------------------------------------------------- weights


def _local_tensors(directory: Path) -> dict[str, Tensors]:
    """What the safetensors files in `directory` hold, by their names."""
    index = directory / _INDEX
    if not index.is_file():
        if not (directory / _SINGLE).is_file():
            raise _no_safetensors(directory)
        return {_SINGLE: read_safetensors(directory / _SINGLE)}
    tensors = {}
    for shard in _shards(index):
        if not (directory / shard).is_file():
            raise UnusableWeights(f"{directory} lacks {shard}, which its index names; finish the download")
        tensors[shard] = read_safetensors(directory / shard)
    return tensors


def _joined(tensors: dict[str, Tensors]) -> Tensors:
    return {name: info for part in tensors.values() for name, info in part.items()}


def _shards(index: Path) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableWeights(f"{index} is not an index of safetensors; download it again") from error
    outside = next((shard for shard in shards if Path(shard).name != shard), None)
    if outside is not None or not shards:
        raise UnusableWeights(f"{index} names {outside or 'no file'}, which is no file beside it; download it again")
    return shards


def _no_safetensors(directory: Path) -> UnusableWeights:
    if any(next(directory.glob(pattern), None) for pattern in ("*.bin", "*.pt", "*.pth")):
        return UnusableWeights(
            f"{directory} holds only pickled weights, which can run code as they load; convert them to safetensors"
        )
    return UnusableWeights(f"{directory} holds no weights ({_SINGLE}); finish the download")


# ---------------------------------------------------------------- GGUF


def _extracted(path: Path, architecture: str, cache: Path) -> Path:
    """Config and tokenizer of the GGUF file at `path` as plain files, made once for each state of the file."""
    state = path.stat()
    key = hashlib.sha256(f"{path}|{state.st_size}|{state.st_mtime_ns}".encode()).hexdigest()[:16]
    directory = cache / "gguf" / key
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Made aside and moved into place whole: a second room that starts at the same time finds all of it or nothing.
    making = Path(tempfile.mkdtemp(dir=directory.parent))
    try:
        _run_extraction(path, making, architecture)
        _move(making, directory)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return directory


def _move(made: Path, directory: Path) -> None:
    try:
        made.rename(directory)
    except OSError:
        if not directory.is_dir():  # else another process was first
            raise


def _run_extraction(path: Path, directory: Path, architecture: str) -> None:
    # From a checkout that is not installed, the child finds our packages where this process found them.
    search = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "room.gguf_extract", str(path), str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": search},
            timeout=_EXTRACT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedModel(f"{path} took too long to read; is the disk very slow?") from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"its reader ended with {done.returncode}"])[-1]
        raise UnsupportedModel(f"{path} (architecture {architecture}) cannot be used: {why}")


# ---------------------------------------------------------------- names


def _name(directory: Path) -> str:
    """What people call the model in `directory`; in the hub's cache the directory itself is named by a commit."""
    if directory.parent.name == "snapshots":
        return directory.parents[1].name.rpartition("--")[2]
    return directory.name
