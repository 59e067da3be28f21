"""What a volunteer lends and how the peer computes. Frozen."""

from dataclasses import dataclass
from pathlib import Path

from peer.errors import InvalidOption

DTYPES = {
    "float32": "float32",
    "f32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "f16": "float16",
}
"""What a peer computes in, by what people call it."""

LEAST_UPLOAD = 10_000


@dataclass(frozen=True)
class PeerConfig:
    name: str | None = None
    """Shown to people; None: the machine's host name."""
    memory: int | None = None
    """Bytes lent for weights and KV; None: by the rule of the device."""
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    """Of torch; None: as many as can run at once."""
    listen: str | None = None
    """HOST:PORT where the peer before this one dials in; None: a free port at this machine's address."""
    advertise: str | None = None
    """HOST:PORT that peer is told, where it differs from `listen`."""
    models: tuple[Path, ...] = ()
    """Where this machine may have the model already."""
    cache: Path | None = None
    """Where fetched weights are kept; None: in the user's cache."""
    cache_size: int | None = None
    """Bytes that they may take; None: the usual."""
    max_upload: int | None = None
    """Bytes a second that it sends at most; None: no limit."""

    def __post_init__(self) -> None:
        missing = next((place for place in self.models if not place.expanduser().exists()), None)
        if missing is not None:
            raise InvalidOption(f"--models names {missing}, which is not on this machine")
        if self.max_upload is not None and self.max_upload < LEAST_UPLOAD:
            raise InvalidOption(
                f"--max-upload is {LEAST_UPLOAD / 1000:.0f}KB a second or more, else no frame gets through"
            )
        if self.advertise is not None and self.listen is None:
            raise InvalidOption("--advertise names what leads to this peer's own address; give that with --listen")
