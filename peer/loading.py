"""Loading a slice's weights with the library's own loader.

The loader is pointed at a temporary directory that shows it no more than the slice: links to the files that hold it
and an index of its tensors, or a GGUF file with its tensors only.
"""

import copy
import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import GenerationConfig, GgufConfig

from peer import experts
from peer.checkpoint import INDEX, SINGLE, Checkpoint, link, open_checkpoint
from peer.errors import CorruptModel, ModelNotFound, NotEnoughMemory, UnsupportedArchitecture
from peer.gguf_file import write_part
from peer.library import Progress, Rising, reporting
from peer.linear import NONE, Quant, quantise
from peer.memory import out_of_memory
from peer.model import Anatomy, architecture, forget_embedding, graft, sliced

_GGUF = "slice.gguf"

PARTS = 8


def load_model(
    source: str,
    start: int,
    end: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    quant: Quant = NONE,
    progress: Progress | None = None,
) -> Any:
    """The model at `source`, cut to layers [start, end), with its weights. See `Slice.load`.

    What is kept in fewer bits than the checkpoint has is loaded in PARTS, so that no more than one of them is ever in
    memory twice.
    """
    report = Rising(progress)
    report(0.0)
    checkpoint = open_checkpoint(source)
    count = checkpoint.config.num_hidden_layers
    if not 0 <= start < end <= count:
        raise ModelNotFound(f"{source} has layers 0 to {count - 1}, so it has no slice of {start} to {end - 1}")
    narrows = quant != NONE or dtype.itemsize < _stored(checkpoint).itemsize
    cuts = _cuts(start, end, PARTS if narrows else 1)
    model: Any = None
    for at, (low, high) in enumerate(pairwise(cuts)):
        done = report.part(at / (len(cuts) - 1), (at + 1) / (len(cuts) - 1))
        part = _load_part(checkpoint, low, high, dtype, device, done)
        if quant != NONE:
            parts = Anatomy.of(part)
            quantise(part, quant, parts.heads)
            if low:
                forget_embedding(part, parts)  # a packed head does without
        if model is None:
            model = part
        else:
            graft(model, part, low, high)
    report(1.0)
    return model


def needed(source: str, start: int, end: int, tensors: Iterable[str]) -> set[str]:
    """Which of a checkpoint's `tensors` layers [start, end) need. Raises what `open_checkpoint` raises."""
    checkpoint, names = open_checkpoint(source), set(tensors)
    is_gguf = checkpoint.gguf is not None
    wanted = _gguf_wanted(checkpoint, start, end, names) if is_gguf else _names(checkpoint, start, end, names).wanted
    return {name for name in names if wanted(name)}


def _cuts(start: int, end: int, parts: int) -> list[int]:
    parts = min(parts, end - start)
    return [start + (end - start) * part // parts for part in range(parts + 1)]


def _stored(checkpoint: Checkpoint) -> torch.dtype:
    """The dtype a checkpoint is kept in, or unpacked to."""
    stored = checkpoint.config.dtype if checkpoint.gguf is None else None
    return stored if isinstance(stored, torch.dtype) else torch.float32


def _load_part(
    checkpoint: Checkpoint, start: int, end: int, dtype: torch.dtype, device: torch.device, report: Rising
) -> Any:
    with tempfile.TemporaryDirectory(prefix="pooled-") as directory:
        place = Path(directory)
        show = _show_safetensors if checkpoint.gguf is None else _show_gguf
        options = show(checkpoint, start, end, place, report.part(0.0, 0.3))
        return _from_pretrained(checkpoint, start, end, place, options, dtype, device, report.part(0.3, 1.0))


@dataclass(frozen=True)
class _Names:
    """Where a slice's tensors are in a checkpoint, by their names."""

    parts: Anatomy
    prefix: str
    """Of the decoder's tensors in the checkpoint."""
    heads: dict[str, str]
    """By head: its path in the checkpoint."""
    tied: bool
    start: int
    end: int

    def wanted(self, name: str) -> bool:
        """Whether the slice needs the tensor. What fits no pattern inside the decoder is kept: it is not large."""
        first, last = self.start == 0, self.end == self.parts.count
        if any(name.startswith(f"{path}.") for path in self.heads.values()):
            return last
        if not name.startswith(self.prefix):
            return False
        part, _, rest = name.removeprefix(self.prefix).partition(".")
        number = rest.partition(".")[0]
        if part == self.parts.layers and number.isdigit():
            return self.start <= int(number) < self.end
        if part == self.parts.embedding:
            return first or (last and self.tied)
        return first if part in self.parts.front else last if part in self.parts.tail else True

    def key_mapping(self) -> dict[str, str]:
        """For the loader: from the checkpoint's prefixes to those of the text model alone."""
        mapping = {f"^{re.escape(self.prefix)}": f"{self.parts.decoder}."}
        mapping.update({f"^{re.escape(path)}\\.": f"{head}." for head, path in self.heads.items()})
        return mapping


def _names(checkpoint: Checkpoint, start: int, end: int, tensors: Iterable[str]) -> _Names:
    """Find the decoder and the head among a checkpoint's tensors, wherever its layout keeps them."""
    with torch.device("meta"):
        parts = Anatomy.of(checkpoint.model_class(copy.deepcopy(checkpoint.config)))
    names = set(tensors)
    at_end = re.compile(rf"^(.*\.)?{parts.embedding}\.weight$")
    prefixes = [match[1] or "" for name in names if (match := at_end.match(name))]
    prefix = next((p for p in prefixes if any(name.startswith(f"{p}{parts.layers}.") for name in names)), None)
    if prefix is None:
        raise CorruptModel(
            f"the weights of {checkpoint.source} lack {parts.embedding}.weight or any layer; download the model again"
        )
    found = (re.match(rf"((?:.*\.)?({'|'.join(parts.heads)}))\.", name) for name in names if parts.heads)
    heads = {match[2]: match[1] for match in found if match}
    # A checkpoint in multimodal layout says at its top, where the text part's config does not look, that it is tied.
    tied = checkpoint.config.tie_word_embeddings or (checkpoint.composite and not heads)
    return _Names(parts, prefix, heads, tied, start, end)


def _show_safetensors(checkpoint: Checkpoint, start: int, end: int, place: Path, report: Rising) -> dict[str, Any]:
    """Link the files that hold the slice into `place`; the loader's options for them."""
    files = checkpoint.weight_map()
    if files is None:
        single = checkpoint.fetch(SINGLE)
        link(single, place / SINGLE)
        names = _names(checkpoint, start, end, _tensor_names(checkpoint, single))
    else:
        names = _names(checkpoint, start, end, files)
        kept = {name: file for name, file in files.items() if names.wanted(name)}
        shards = sorted(set(kept.values()))
        for number, shard in enumerate(shards):
            if Path(shard).name != shard:
                raise CorruptModel(f"{INDEX} of {checkpoint.source} names a file outside the model: {shard}")
            link(checkpoint.fetch(shard), place / shard)
            report((number + 1) / len(shards))
        (place / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": kept}))
    return {
        "config": _with_tie(checkpoint.config, names.tied),
        "use_safetensors": True,
        "key_mapping": names.key_mapping() if checkpoint.composite else None,
    }


def _show_gguf(checkpoint: Checkpoint, start: int, end: int, place: Path, report: Rising) -> dict[str, Any]:
    """Copy the slice's tensors into a GGUF of their own; the loader's options for it."""
    header = checkpoint.gguf
    assert header is not None
    write_part(header, place / _GGUF, _gguf_wanted(checkpoint, start, end, header.names), report)
    return {
        "config": _with_tie(checkpoint.config, _gguf_tied(header.names)),
        "gguf_file": _GGUF,
        "quantization_config": GgufConfig(dequantize=True),
    }


def _gguf_wanted(checkpoint: Checkpoint, start: int, end: int, tensors: Collection[str]) -> Callable[[str], bool]:
    """Whether the slice needs a tensor, by its name in a GGUF."""
    first, last = start == 0, end == checkpoint.config.num_hidden_layers
    tied = _gguf_tied(tensors)

    def wanted(name: str) -> bool:
        part, _, rest = name.partition(".")
        number = rest.partition(".")[0]
        if part == "blk" and number.isdigit():
            return start <= int(number) < end
        if name == "token_embd.weight":
            return first or (last and tied)
        return last if part in ("output", "output_norm") else True

    return wanted


def _gguf_tied(tensors: Collection[str]) -> bool:
    return "output.weight" not in tensors


def _with_tie(config: Any, tied: bool) -> Any:
    """A copy of the config that says whether the head's weights are the embedding's."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = tied
    return config


def _from_pretrained(
    checkpoint: Checkpoint,
    start: int,
    end: int,
    place: Path,
    options: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    report: Rising,
) -> Any:
    source = checkpoint.source
    try:
        with reporting(report):
            model_class: Any = sliced(checkpoint.model_class, start, end)
            model, found = model_class.from_pretrained(
                place,
                dtype=dtype,
                device_map=None if device.type == "cpu" else {"": device},
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                generation_config=GenerationConfig(),  # a slice does not generate, so none is looked for
                **experts.loader_options(checkpoint.config, device),
                **options,
            )
    except SafetensorError as error:
        raise CorruptModel(f"the weights of {source} are cut off or damaged ({error}); download them again") from error
    except (ImportError, NotImplementedError, ValueError) as error:
        raise UnsupportedArchitecture(
            f"the weights of {source} ({architecture(checkpoint.config)}) are packed in a way this peer cannot unpack: "
            f"{_first_line(error)}"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error):
            raise NotEnoughMemory(
                f"layers {start} to {end - 1} of {source} do not fit into the memory of {device}; lend more, or let "
                "others hold more layers"
            ) from error
        raise CorruptModel(f"the weights of {source} do not fit its config: {_first_line(error)}") from error
    lacking = sorted(found["missing_keys"]) or [name for name, tensor in model.named_parameters() if tensor.is_meta]
    if lacking:
        more = f" and {len(lacking) - 1} more tensors" if len(lacking) > 1 else ""
        raise CorruptModel(f"the weights of {source} lack {lacking[0]}{more}; download the model again")
    return model


def _tensor_names(checkpoint: Checkpoint, path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise CorruptModel(f"{path} is cut off or damaged ({error}); download it again") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
