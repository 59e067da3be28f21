"""What weight files hold, read from their headers alone: no torch, and no byte of a tensor is touched."""

import json
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

from room.model_errors import DamagedFile, UnusableWeights

Tensors = dict[str, "TensorInfo"]


class SupportsRead(Protocol):
    def read(self, size: int, /) -> bytes:
        """As many bytes as asked for; fewer only at the end."""


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]
    dtype: str
    """As the format names it: "F32", "BF16", "U8", ... or a GGUF quantization such as "Q4_1"."""
    offset: int
    """From where the file's tensors begin."""
    size: int
    """Bytes in the file."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, Any]
    """Numbers and strings by key; arrays are left out."""
    tensors: Tensors
    data: int
    """Where the tensors begin."""


_MOST_DIMS = 8
"""No format has tensors of more. Thousands of huge dimensions would take hours to multiply."""


# ---------------------------------------------------------------- safetensors

_LARGEST_HEADER = 100_000_000  # the limit of the format's own library


def read_safetensors(path: Path) -> Tensors:
    """The tensors of a safetensors file. Raises DamagedFile."""
    with path.open("rb") as file:
        return parse_safetensors(file, path.stat().st_size, path)[0]


def parse_safetensors(file: SupportsRead, size: int, name: Path | str) -> tuple[Tensors, int]:
    """The tensors of a safetensors file of `size` bytes, read from its start, and where they begin.

    Raises DamagedFile, which says `name`.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise DamagedFile(name, "is cut off or not a safetensors file")
    try:
        entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        tensors = {key: _tensor_info(entry) for key, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(name, "has no header that can be read") from error
    end = 8 + length + max((info.offset + info.size for info in tensors.values()), default=0)
    if end > size:
        raise DamagedFile(name, f"is cut off: {size} of {end} bytes are there")
    return tensors, 8 + length


def _tensor_info(entry: dict[str, Any]) -> TensorInfo:
    (start, end), shape = entry["data_offsets"], entry["shape"]
    numbers = [*shape, start, end]
    if not all(type(number) is int and number >= 0 for number in numbers) or start > end or len(shape) > _MOST_DIMS:
        raise ValueError("a tensor that cannot be")
    return TensorInfo(tuple(shape), str(entry["dtype"]), start, end - start)


# ---------------------------------------------------------------- GGUF

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEEPEST = 4
_LARGEST_ALIGNMENT = 1 << 20


def read_gguf(path: Path) -> GgufHeader:
    """The metadata and tensors of a GGUF file. Raises DamagedFile, or UnusableWeights for a file of another kind.

    The gguf library reads a header too, but takes seconds over a vocabulary and misses that a file is cut off.
    """
    if path.stat().st_size < 24:
        raise _no_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise _no_gguf(path)
        cursor = _Cursor(data)
        try:
            header, end = _read_gguf(cursor)
        except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
            raise DamagedFile(path, "is cut off or damaged: its header cannot be read") from error
        if end > len(data):
            raise DamagedFile(path, f"is cut off: {len(data)} of {end} bytes are there")
    return header


def _no_gguf(path: Path) -> UnusableWeights:
    """Only what is named like one was meant to be one."""
    if path.suffix == ".gguf":
        return DamagedFile(path, "is cut off or not a GGUF file")
    return UnusableWeights(f"{path} is not a GGUF file; give one, a directory that holds a model, or a hub id")


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

    def _skip_array(self, depth: int = 0) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if depth > _DEEPEST:
            raise IndexError("arrays of arrays of arrays")
        if kind in _SCALARS:
            self.at += count * struct.calcsize(_SCALARS[kind])
            return
        for _ in range(count):
            if kind == _STRING:
                length = self.number("<Q")
                self.at += length
            elif kind == _ARRAY:
                self._skip_array(depth + 1)
            else:
                raise KeyError(kind)


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
    for _ in range(tensor_count):
        name = cursor.string()
        dims = cursor.number("<I")
        if dims > _MOST_DIMS or name in tensors:
            raise ValueError("a tensor that cannot be")
        shape = tuple(cursor.number("<Q") for _ in range(dims))
        kind = GGMLQuantizationType(cursor.number("<I"))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        tensors[name] = TensorInfo(shape, kind.name, cursor.number("<Q"), prod(shape) // block * block_bytes)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= _LARGEST_ALIGNMENT:
        raise ValueError("an alignment that cannot be")
    start = -(-cursor.at // alignment) * alignment
    end = max((info.offset + info.size for info in tensors.values()), default=0)
    return GgufHeader(metadata, tensors, start), start + end
