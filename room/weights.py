"""What the room gives to peers that load: the manifest, the model's texts, and its weights where they are here."""

from protos.contents import Place
from protos.manifest import Manifest, digest
from room.model import Model


class Contents:
    """Contents of one model by their SHA-256."""

    def __init__(self, model: Model, manifest: Manifest) -> None:
        text = manifest.text()
        self._places: dict[str, Place | bytes] = {digest(text): text}
        for each in manifest.texts:
            self._places[each.sha256] = Place(model.text_dir / each.name, 0, each.size)
        for file in manifest.weights:
            path = model.file(file.name)
            if path.is_file():  # else it is on the hub, where peers get it themselves
                for region in (file.header, *file.tensors):
                    for piece in region.pieces():
                        self._places[piece.sha256] = Place(path, piece.offset, piece.size)

    def locate(self, sha256: str) -> Place | bytes | None:
        return self._places.get(sha256)
