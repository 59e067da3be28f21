"""What a volunteer is told while their peer runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PeerEvent:
    kind: Literal[
        "asking",
        "lending",
        "joined",
        "loading",
        "ready",
        "waiting",
        "resting",
        "released",
        "reconnecting",
        "refused",
        "leaving",
        "drafting",
    ]
    text: str
    done: float = 0.0
    """Of loading, 0 to 1."""
    rate: float = 0.0
    """Of loading: bytes a second."""
    seconds_left: float | None = None
    fetched: Mapping[str, int] | None = None
    """Where a slice has been loaded: bytes that were fetched since the peer started, by source."""


Watch = Callable[[PeerEvent], None]
