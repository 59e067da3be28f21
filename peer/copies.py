"""Copies of a model that are on this machine: in folders that the volunteer names, and in the hub's own cache."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from protos.manifest import Manifest

_DEEPEST = 4
"""Folders within folders, as in the hub's own cache."""

_KINDS = (".safetensors", ".gguf")


class Copies:
    """Finds files that may be one of a manifest's; whether they are is for their SHA-256 to say."""

    def __init__(self, places: Iterable[Path] = ()) -> None:
        self._places = [place.expanduser() for place in places]

    def of(self, manifest: Manifest) -> dict[str, list[Path]]:
        """By name of a file of weights: files of its size here. What people call them does not matter."""
        by_size: dict[int, list[Path]] = {}
        for path in self._files():
            by_size.setdefault(path.stat().st_size, []).append(path)
        found = {file.name: by_size.get(file.size, []) for file in manifest.weights}
        if manifest.repository is not None:
            for name, paths in found.items():
                cached = try_to_load_from_cache(manifest.repository, name, revision=manifest.commit)
                if isinstance(cached, str):
                    paths.append(Path(cached))
        return found

    def _files(self) -> Iterator[Path]:
        for place in self._places:
            if place.is_file():
                yield place
            for depth in range(_DEEPEST + 1):
                for path in place.glob("*/" * depth + "*"):
                    if path.suffix in _KINDS and path.is_file():
                        yield path
