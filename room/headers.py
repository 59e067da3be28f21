"""What weight files hold, read from their headers alone: no torch, and no byte of a tensor is touched."""

import json
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from room.model_errors import DamagedFile

Tensors = dict[str, "TensorInfo"]


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]
    dtype: str
    """As the format names it: "F32", "BF16", "U8", ... or a GGUF quantization such as "Q4_1"."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, Any]
    """Numbers and strings by key; arrays are left out."""
    tensors: Tensors


# ---------------------------------------------------------------- safetensors

_LARGEST_HEADER = 100_000_000  # the limit of the format's own library


def read_safetensors(path: Path) -> Tensors:
    """The tensors of a safetensors file. Raises DamagedFile."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise DamagedFile(path, "is cut off or not a safetensors file")
        try:
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            tensors = {name: TensorInfo(tuple(entry["shape"]), entry["dtype"]) for name, entry in entries.items()}
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DamagedFile(path, "has no header that can be read") from error
    if 8 + length + end > size:
        raise DamagedFile(path, f"is cut off: {size} of {8 + length + end} bytes are there")
    return tensors


# ---------------------------------------------------------------- GGUF

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def read_gguf(path: Path) -> GgufHeader:
    """The metadata and tensors of a GGUF file. Raises DamagedFile.

    The gguf library reads a header too, but takes seconds over a vocabulary and misses that a file is cut off.
    """
    if path.stat().st_size < 24:
        raise DamagedFile(path, "is cut off or not a GGUF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise DamagedFile(path, "is not a GGUF file")
        cursor = _Cursor(data)
        try:
            header, end = _read_gguf(cursor)
        except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
            raise DamagedFile(path, "is cut off or damaged: its header cannot be read") from error
        if end > len(data):
            raise DamagedFile(path, f"is cut off: {len(data)} of {end} bytes are there")
    return header


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 4

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self._data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        length = self.number("<Q")
        start, self.at = self.at, self.at + length
        if self.at > len(self._data):
            raise IndexError("a string reaches beyond the file")
        return self._data[start : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._skip_array()
        return self.number(_SCALARS[kind])

    def _skip_array(self) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if kind in _SCALARS:
            self.at += count * struct.calcsize(_SCALARS[kind])
            return
        for _ in range(count):
            if kind == _STRING:
                length = self.number("<Q")
                self.at += length
            else:
                self.value(kind)


def _read_gguf(cursor: _Cursor) -> tuple[GgufHeader, int]:
    """The header, and the size in bytes that the whole file must have."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    cursor.number("<I")  # version
    tensor_count, key_count = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key, value = cursor.string(), cursor.value(cursor.number("<I"))
        if value is not None:
            metadata[key] = value
    tensors: Tensors = {}
    end = 0
    for _ in range(tensor_count):
        name = cursor.string()
        shape = tuple(cursor.number("<Q") for _ in range(cursor.number("<I")))
        try:
            kind = GGMLQuantizationType(cursor.number("<I"))
        except ValueError as error:
            raise KeyError("an unknown quantization") from error
        block, block_bytes = GGML_QUANT_SIZES[kind]
        tensors[name] = TensorInfo(shape, kind.name)
        end = max(end, cursor.number("<Q") + tensors[name].elements // block * block_bytes)
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(metadata, tensors), start + end
