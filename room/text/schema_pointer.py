"""References inside a JSON schema."""

from typing import Any
from urllib.parse import unquote

from room.text.schema_shape import Place


class LostReference(ValueError):
    """The message goes on after "the reference": "leads nowhere"."""


def below(path: str, *steps: str | int) -> str:
    """The JSON pointer of what stands below `path`."""
    return path + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


class Document:
    """One schema with all that it refers to."""

    def __init__(self, raw: object) -> None:
        self._raw = raw
        self._base = str(raw.get("$id") or raw.get("id") or "") if isinstance(raw, dict) else ""
        self._anchors: dict[str, Place] | None = None
        self.root = Place("#", raw=raw)

    def find(self, reference: Any) -> Place:
        """What `reference` stands for. Raises LostReference."""
        if not isinstance(reference, str):
            raise LostReference("must be a string")
        base, _, fragment = reference.partition("#")
        if base and base != self._base.partition("#")[0]:
            raise LostReference("refers to another document; put what it refers to into $defs")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchored(fragment)
        place = self.root
        for step in fragment.split("/")[1:]:
            place = _child(place, step.replace("~1", "/").replace("~0", "~"))
        return place

    def _anchored(self, name: str) -> Place:
        if self._anchors is None:
            self._anchors = dict(_anchors(self._raw))
        if name not in self._anchors:
            raise LostReference("leads nowhere")
        return self._anchors[name]


def _child(place: Place, step: str) -> Place:
    raw = place.raw
    if isinstance(raw, dict) and step in raw:
        return Place(below(place.path, step), raw=raw[step])
    if isinstance(raw, list) and step.isascii() and step.isdigit() and int(step) < len(raw):
        return Place(below(place.path, int(step)), raw=raw[int(step)])
    raise LostReference("leads nowhere")


def _anchors(raw: object) -> list[tuple[str, Place]]:
    found, waiting = [], [("#", raw)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            name = value.get("$anchor")
            if isinstance(name, str):
                found.append((name, Place(path, raw=value)))
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += [(below(path, step), item) for step, item in items]
    return found
