"""Which machine this process runs on: peers with equal ids share a processor."""

import hashlib
import os
import platform
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Equal for all processes of one machine since its start; tells nothing else about it."""
    boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else str(uuid.getnode())
    return hashlib.sha256(f"{platform.node()}/{boot}".encode()).hexdigest()[:16]


def user_id() -> str:
    """Equal for all that one user runs on one machine; tells nothing else about either."""
    return hashlib.sha256(f"{platform.node()}/{uuid.getnode()}/{os.getuid()}".encode()).hexdigest()[:32]
