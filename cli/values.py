"""Values on the command line, from text. A bad one is a BadParameter: exit 2 and a sentence that names the option."""

import re
from dataclasses import dataclass

import typer

from protos.invite import InvalidInvite, Invite

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?|)B?", re.IGNORECASE)
_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Memory:
    """A size, or a share of what a device has to lend."""

    size: int = 0
    """Bytes; 0: not given as a size."""
    share: float = 0.0
    """Above 0, at most 1; 0: not given as a share."""

    def __str__(self) -> str:
        return f"{self.share:.2%}" if self.share else str(self.size)


def memory(text: str) -> Memory:
    """From "12GB", "1.5GiB", "800M", "800000000" or "50%"."""
    if match := _SHARE.fullmatch(text.strip()):
        given = Memory(share=float(match[1]) / 100)
    elif match := _SIZE.fullmatch(text.strip()):
        given = Memory(size=int(float(match[1]) * _UNITS[match[2].upper()]))
    else:
        given = Memory()
    if given == Memory() or given.share > 1:
        raise typer.BadParameter(f"{text!r} is not a size such as 12GB, 1.5GiB or 800MB, nor a share such as 50%")
    return given


def size(text: str) -> Memory:
    """As `memory`, and no share."""
    given = memory(text)
    if given.share:
        raise typer.BadParameter(f"{text!r} is not a size such as 12GB")
    return given


def rate(text: str) -> int:
    """Bytes a second, from "10MB", "500KB/s" or "2000000"."""
    match = _SIZE.fullmatch(text.strip().removesuffix("/s"))
    if match is None:
        raise typer.BadParameter(f"{text!r} is not so much a second, such as 10MB or 500KB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def dtype(text: str) -> str:
    """The name of a dtype that a peer computes in, unchanged."""
    from peer.config import DTYPES

    if text.lower() not in DTYPES:
        raise typer.BadParameter(f"{text!r} is not a dtype; use float32, bfloat16 or float16")
    return text


def device(text: str) -> str:
    """The name of a device, unchanged. Whether this machine has it shows later."""
    if not _DEVICE.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not a device; use cpu, cuda:0 or mps")
    return text


def layers(text: str) -> tuple[int, ...]:
    """Layers per peer from "3,26,1"."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of layers per peer such as 3,26,1", param_hint="--layers")
    return tuple(int(part) for part in parts)


def address(text: str) -> str:
    """HOST:PORT or [HOST]:PORT, unchanged."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT, such as 192.0.2.7:7071")
    return text


def chains(text: str) -> int | None:
    """Most chains of a room, from "auto" (None) or a number."""
    if text == "auto":
        return None
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text!r} is not auto, nor a number of chains such as 2", param_hint="--chains")


def speculate(text: str) -> int:
    """Tokens to guess ahead, from "auto", "off" or a number."""
    from room.drafts import AUTO, OFF

    named = {"auto": AUTO, "off": OFF}
    if text not in named and not text.isdigit():
        raise typer.BadParameter(f"{text!r} is not auto, off or a number of tokens", param_hint="--speculate")
    return named[text] if text in named else int(text)


def invite(text: str) -> Invite:
    """An invite as it was pasted. The text itself is not repeated: it may hold the key."""
    try:
        return Invite.parse(text)
    except InvalidInvite as error:
        raise typer.BadParameter(str(error)) from error
