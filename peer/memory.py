"""Which devices to compute on, in which dtype, and how much of their memory may be lent."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from peer.config import DTYPES
from peer.errors import DeviceUnavailable, InvalidOption, NotEnoughMemory

GB = 10**9
USABLE = 0.9
"""Share of free memory that KV may take; the rest is for activations."""

_SPARE_ON_GPU = 3 * GB // 2
_SPARE_AVAILABLE = 2 * GB
_TRY_LESS = 0.9
_LEAST_TRIED = 10**6


class Lendable(NamedTuple):
    bytes: int
    reason: str
    """Why that much; for people."""


class Share(NamedTuple):
    """What is lent of one device."""

    device: torch.device
    bytes: int


class Offer(NamedTuple):
    """What this machine lends."""

    shares: tuple[Share, ...]
    dtype: torch.dtype
    reason: str
    """Why that much; for people."""

    @property
    def bytes(self) -> int:
        return sum(share.bytes for share in self.shares)

    @property
    def devices(self) -> str:
        """For people."""
        return named([share.device for share in self.shares])

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.bytes / GB:.1f} GB of {self.devices} ({self.reason})"


def offered(device: str | None = None, dtype: str | None = None, memory: int | None = None) -> Offer:
    """What to lend where these were asked for; None: by the rule of the device.

    The memory is tried out. Raises InvalidOption or DeviceUnavailable.
    """
    picked = pick_devices(device)
    computed = pick_dtype(dtype, picked[0])
    wanted = [lendable(each) for each in picked]
    if memory is not None:
        check_size(memory, picked)
        wanted = [Lendable(part, "as --memory asks") for part in _divided(memory, [each.bytes for each in wanted])]
    lent = [tried(most, each) for most, each in zip(wanted, picked, strict=True)]
    shares = tuple(Share(each, most.bytes) for each, most in zip(picked, lent, strict=True))
    return Offer(shares, computed, "; ".join(dict.fromkeys(most.reason for most in lent)))


def _divided(total: int, by: list[int]) -> list[int]:
    """`total` in parts as large beside each other as those of `by`."""
    weights = by if any(by) else [1] * len(by)
    return [total * weight // sum(weights) for weight in weights]


def named(devices: Sequence[torch.device]) -> str:
    """Devices, for people."""
    return str(devices[0]) if len(devices) == 1 else f"{devices[0]} to {devices[-1]}"


def pick_devices(option: str | None) -> tuple[torch.device, ...]:
    """All GPUs where `option` is "cuda", else the one device that `pick_device` gives. Raises what that raises."""
    first = pick_device(option)
    if option == "cuda":
        return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return (first,)


def pick_device(option: str | None) -> torch.device:
    """The device that was asked for, or else the best one here: a CUDA GPU, Apple's GPU, the CPU.

    Raises InvalidOption (not the name of a device) or DeviceUnavailable.
    """
    if option is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    try:
        device = torch.device(option)
    except RuntimeError as error:
        raise InvalidOption(f"{option!r} is not a device; use cpu, cuda:0 or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            found = f"{count} CUDA GPUs" if count else "no CUDA GPU"
            raise DeviceUnavailable(f"there is no {option}: this machine shows {found} to torch; use another --device")
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not _has_mps():
        raise DeviceUnavailable("there is no Apple GPU that torch can use here; leave --device away, or use cpu")
    if device.type not in ("cpu", "mps"):
        raise InvalidOption(f"{option!r} is not a device a peer computes on; use cpu, cuda:0 or mps")
    return torch.device(device.type)


def pick_dtype(option: str | None, device: torch.device) -> torch.dtype:
    """The dtype that was asked for, or else what suits the device. Raises InvalidOption or DeviceUnavailable."""
    if option is None:
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return torch.float16 if device.type == "mps" else torch.float32
    name = DTYPES.get(option.lower())
    if name is None:
        raise InvalidOption(f"{option!r} is not a dtype; use float32, bfloat16 or float16")
    dtype: torch.dtype = getattr(torch, name)
    if device.type == "cuda" and dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise DeviceUnavailable(f"{device} does not compute in bfloat16; use --dtype float16")
    return dtype


def check_size(asked: int, devices: Sequence[torch.device]) -> None:
    """Raise InvalidOption if `asked` bytes are more than the devices have at all."""
    total = sum(
        torch.cuda.mem_get_info(device)[1] if _has_own_memory(device) else _system_memory()[0] for device in devices
    )
    if asked > total:
        raise InvalidOption(
            f"--memory {asked / GB:.1f} GB is more than the {total / GB:.1f} GB of {named(devices)} here; lend less"
        )


def _has_own_memory(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.get_device_properties(device).is_integrated


def free_now(device: torch.device) -> int:
    """Bytes that this process could still allocate on the device."""
    if _has_own_memory(device):
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _system_memory()[1]


def fitting_pages(wanted: int, least: int, page_bytes: int, lent: int, fixed: int, device: torch.device) -> int:
    """Of `wanted` pages, how many fit into what is left of `lent` bytes beside `fixed` ones, and into what is free.

    A part is left for activations. Raises NotEnoughMemory when fewer than `least` fit.
    """
    left = int(min(lent - fixed, free_now(device)) * USABLE)
    pages = min(wanted, max(0, left) // page_bytes) if page_bytes else wanted
    if pages < least:
        raise NotEnoughMemory(
            f"{max(0, left) / GB:.2f} GB are left on {device} for KV beside the weights, but {least} pages take "
            f"{least * page_bytes / GB:.2f} GB; lend more (--memory), close what else uses it, or use --kv int8"
        )
    return pages


def out_of_memory(error: BaseException) -> bool:
    """Whether torch, or Python, could not allocate."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def lendable(device: torch.device) -> Lendable:
    """How many bytes of the device's memory may be lent without anybody feeling it, and the rule in words."""
    if _has_own_memory(device):
        free, _ = torch.cuda.mem_get_info(device)
        return Lendable(max(0, free - _SPARE_ON_GPU), f"{free / GB:.1f} GB are free on {device}, less 1.5 GB")
    return shared_share(*_system_memory())


def tried(wanted: Lendable, device: torch.device) -> Lendable:
    """As much of `wanted` as the device really gives, found by taking it; it is given back at once.

    A CPU's memory is only reserved and not written: the system would take it from others first, and ask nobody. There
    it shows what limits of the process forbid.
    """
    size = wanted.bytes
    while size >= _LEAST_TRIED:
        try:
            torch.empty(size, dtype=torch.uint8, device=device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            size = int(size * _TRY_LESS)
        else:
            break
        finally:
            give_back(device)
    return wanted if size == wanted.bytes else Lendable(size, f"{device} really gave no more; {wanted.reason}")


def give_back(device: torch.device) -> None:
    """Let the system have what torch keeps of the device's memory without using it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def shared_share(total: int, available: int) -> Lendable:
    """The share of memory that programs and the operating system use too (a CPU, a unified GPU)."""
    kept = max(total * 35 // 100, min(8 * GB, total // 2))
    by_total, by_available = total - kept, max(0, available - _SPARE_AVAILABLE)
    if by_total <= by_available:
        return Lendable(by_total, f"{total / GB:.1f} GB of memory, less {kept / GB:.1f} GB for everything else")
    return Lendable(by_available, f"{available / GB:.1f} GB of memory are available, less 2 GB")


def _system_memory() -> tuple[int, int]:
    """(total, available) bytes, as limited by the container this process may be in."""
    memory = psutil.virtual_memory()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is None or used is None or limit >= memory.total:
        return memory.total, memory.available
    return limit, min(memory.available, max(0, limit - used))


def _cgroup(name: str) -> int | None:
    """A number of the cgroup this process sees as its root; None if there is no limit or no cgroup (v2)."""
    try:
        return int(Path("/sys/fs/cgroup", name).read_text())
    except (OSError, ValueError):
        return None


def _has_mps() -> bool:
    return torch.backends.mps.is_available()
