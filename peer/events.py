"""What a volunteer is told while their peer runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PeerEvent:
    kind: Literal["joined", "loading", "ready", "waiting", "released", "reconnecting", "refused", "leaving"]
    text: str
    done: float = 0.0
    """Of loading, 0 to 1."""


Watch = Callable[[PeerEvent], None]
