"""Reading a GGUF file's header, and writing smaller files from it.

The library loads a GGUF as a whole: it unpacks every tensor before it looks at its name. So a peer first copies its
slice's tensors, still packed, into a file of their own. The header is read here rather than by the gguf package, which
takes seconds over a vocabulary; vocabularies are left out of what is written, since ids never become text in a peer.
"""

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from peer.errors import CorruptModel, ModelNotFound

_MAGIC = b"GGUF"
_WIDTH = {
    GGUFValueType.UINT8: 1,
    GGUFValueType.INT8: 1,
    GGUFValueType.BOOL: 1,
    GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2,
    GGUFValueType.UINT32: 4,
    GGUFValueType.INT32: 4,
    GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8,
    GGUFValueType.INT64: 8,
    GGUFValueType.FLOAT64: 8,
}
_MOST_DIMS, _DEEPEST, _LARGEST_ALIGNMENT = 8, 4, 1 << 20
"""No real header has more. Thousands of huge dimensions would take hours to multiply."""

_COPY = 1 << 20
"""Bytes copied at a time."""


@dataclass(frozen=True)
class GgufTensor:
    name: str
    dims: tuple[int, ...]
    """Fastest first, as in the file."""
    kind: int
    offset: int
    """From the start of the data."""
    size: int
    """Bytes in the file."""


@dataclass(frozen=True)
class GgufHeader:
    path: Path
    architecture: str
    fields: dict[str, bytes]
    """By key: the field as it stands in the file. Arrays of the tokenizer are left out."""
    tensors: tuple[GgufTensor, ...]
    alignment: int
    data: int
    """Where the data starts."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.tensors)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, slowest dimension first; None if the file lacks it."""
        return next((tensor.dims[::-1] for tensor in self.tensors if tensor.name == name), None)


def read_header(path: Path) -> GgufHeader:
    """Read and check a file's header. Raises ModelNotFound (not a GGUF file, or a part of one) or CorruptModel."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ModelNotFound(f"{path} is not a GGUF file; name a .gguf file or a directory with safetensors")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
                header = _Parser(path, blob).header()
        except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
            raise CorruptModel(f"the header of {path} is cut off or damaged; download the file again") from error
    ends = max((header.data + tensor.offset + tensor.size for tensor in header.tensors), default=header.data)
    if ends > size:
        raise CorruptModel(f"{path} is cut off: it has {size} of {ends} bytes; download it again")
    if "split.count" in header.fields and struct.unpack("<H", header.fields["split.count"][-2:])[0] > 1:
        raise ModelNotFound(f"{path} is one part of several; join them with llama-gguf-split --merge first")
    return header


def write_outline(header: GgufHeader, path: Path) -> None:
    """Write a file that tells what `header` tells and has a hole where the data would be."""
    with path.open("wb") as out:
        out.write(_preamble(header, header.tensors))
        end = max((tensor.offset + tensor.size for tensor in header.tensors), default=0)
        out.truncate(_aligned(out.tell(), header.alignment) + _aligned(end, header.alignment))


def write_part(
    header: GgufHeader, path: Path, wanted: Callable[[str], bool], progress: Callable[[float], None] | None = None
) -> None:
    """Write a file with only the tensors whose names are `wanted`, still packed. Reports 0 to 1 of its bytes."""
    kept = [tensor for tensor in header.tensors if wanted(tensor.name)]
    moved, offset = [], 0
    for tensor in kept:
        moved.append(GgufTensor(tensor.name, tensor.dims, tensor.kind, offset, tensor.size))
        offset = _aligned(offset + tensor.size, header.alignment)
    with header.path.open("rb") as source, path.open("wb") as out:
        out.write(_preamble(header, moved))
        start = _aligned(out.tell(), header.alignment)
        for old, new in zip(kept, moved, strict=True):
            source.seek(header.data + old.offset)
            out.seek(start + new.offset)
            left = old.size
            while left:
                piece = source.read(min(left, _COPY))
                if not piece:
                    raise CorruptModel(f"{header.path} became shorter while it was read; download it again")
                out.write(piece)
                left -= len(piece)
            if progress is not None:
                progress((new.offset + new.size) / offset)
        out.truncate(start + offset)


def _preamble(header: GgufHeader, tensors: Sequence[GgufTensor]) -> bytes:
    parts = [_MAGIC, struct.pack("<IQQ", 3, len(tensors), len(header.fields)), *header.fields.values()]
    for tensor in tensors:
        name = tensor.name.encode()
        parts.append(struct.pack("<Q", len(name)) + name)
        parts.append(struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims))
        parts.append(struct.pack("<IQ", tensor.kind, tensor.offset))
    return b"".join(parts)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


class _Parser:
    """Walks a header. What it meets at a cut surfaces as struct.error or IndexError."""

    def __init__(self, path: Path, blob: mmap.mmap) -> None:
        self._path, self._blob, self._at = path, blob, 4

    def header(self) -> GgufHeader:
        version = self._number("<I")
        if version not in (2, 3):
            raise CorruptModel(f"{self._path} is GGUF of version {version}; convert it to version 3")
        tensors, fields = self._number("<Q"), self._number("<Q")
        kept: dict[str, bytes] = {}
        for _ in range(fields):
            start, key = self._at, self._string().decode()
            kind = GGUFValueType(self._number("<I"))
            self._skip(kind)
            if not (key.startswith("tokenizer.") and kind is GGUFValueType.ARRAY):
                kept[key] = self._blob[start : self._at]
        alignment = struct.unpack("<I", kept["general.alignment"][-4:])[0] if "general.alignment" in kept else 32
        # The value is a string: 8 bytes of length and the text, after the key and the type.
        architecture = kept["general.architecture"][8 + len("general.architecture") + 4 + 8 :].decode()
        if not 0 < alignment <= _LARGEST_ALIGNMENT:
            raise ValueError("an alignment that cannot be")
        table = tuple(self._tensor() for _ in range(tensors))
        if len({tensor.name for tensor in table}) < len(table):
            raise ValueError("two tensors of one name")
        return GgufHeader(self._path, architecture, kept, table, alignment, _aligned(self._at, alignment))

    def _tensor(self) -> GgufTensor:
        name = self._string().decode()
        count = self._number("<I")
        if count > _MOST_DIMS:
            raise ValueError("a tensor that cannot be")
        dims = tuple(self._number("<Q") for _ in range(count))
        kind, offset = self._number("<I"), self._number("<Q")
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return GgufTensor(name, dims, kind, offset, prod(dims) // block * block_bytes)

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._blob, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def _string(self) -> bytes:
        length = self._number("<Q")
        self._at += length
        if self._at > len(self._blob):
            raise IndexError(self._at)
        return self._blob[self._at - length : self._at]

    def _skip(self, kind: GGUFValueType, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ValueError("arrays of arrays of arrays")
        if kind is GGUFValueType.STRING:
            self._string()
        elif kind is GGUFValueType.ARRAY:
            element, count = GGUFValueType(self._number("<I")), self._number("<Q")
            if element in _WIDTH:
                self._at += _WIDTH[element] * count
            else:
                for _ in range(count):
                    self._skip(element, depth + 1)
        else:
            self._at += _WIDTH[kind]
