"""What a volunteer lends and how the peer computes. Frozen."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerConfig:
    name: str | None = None
    """Shown to people; None: the machine's host name."""
    memory: int | None = None
    """Bytes lent for weights and KV; None: by the rule of the device."""
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    """Of torch; None: torch's own choice."""
