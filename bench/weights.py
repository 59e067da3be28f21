"""One model's weights as float32, in the forms that ours and its rivals read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from room.gguf_extract import extract

_SAFETENSORS = "model.safetensors"


@dataclass(frozen=True)
class Weights:
    directory: Path
    """Config, tokenizer and safetensors."""
    gguf: Path


def prepare(source: Path, folder: Path) -> Weights:
    """Write the GGUF file `source` into `folder` with all its tensors as float32, as GGUF and as safetensors.

    What is there already from an earlier run is taken as it is.
    """
    weights = Weights(folder / source.stem, folder / f"{source.stem}.f32.gguf")
    folder.mkdir(parents=True, exist_ok=True)
    if not (weights.directory / _SAFETENSORS).exists():
        _write_gguf(source, weights.gguf)
        _write_safetensors(weights.gguf, weights.directory)
    return weights


def _write_gguf(source: Path, target: Path) -> None:
    import numpy
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    architecture = reader.fields[Keys.General.ARCHITECTURE].contents()
    writer = GGUFWriter(target, architecture)
    written_by_the_writer = {Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in written_by_the_writer:
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, of)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values: Any = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        writer.add_tensor(tensor.name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_safetensors(gguf: Path, directory: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    extract(gguf, directory)  # config, tokenizer and template
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(directory)
    config.architectures = [type(model).__name__]  # a GGUF file does not say, and `transformers serve` asks
    config.save_pretrained(directory)
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(tensors, directory / _SAFETENSORS, metadata={"format": "pt"})
