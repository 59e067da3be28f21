"""Everything that can go wrong in a peer. Each message is one sentence: what is wrong and what to do next."""


class PeerError(Exception):
    """The base of every error a peer raises on purpose; its text is meant for people."""


class ModelNotFound(PeerError):
    """Nothing that can be loaded is at the place that was named."""


class NotACausalLM(PeerError):
    """The model is of a kind that does not write text token by token."""


class UnsupportedArchitecture(PeerError):
    """The model's architecture (the message names it) cannot be cut into slices, or not by this version."""


class CorruptModel(PeerError):
    """A file of the model is cut off, damaged, or lacks tensors."""


class WeightsMissing(PeerError):
    """No place that could be asked has bytes of the model that are needed, or none has the right ones."""


class SourceFailed(PeerError):
    """A place that weights come from does not answer, or broke off; others are asked instead."""


class WrongBytes(SourceFailed):
    """What came from such a place is not what was asked for."""


class CacheFull(PeerError):
    """The slice does not fit into what the cache may take."""


class DiskFailed(PeerError):
    """A file of the model cannot be read or written: the disk is full, say."""


class NotEnoughMemory(PeerError):
    """The slice, its KV pages or a frame do not fit into the device's memory."""


class DeviceUnavailable(PeerError):
    """The device or dtype that was asked for does not exist on this machine."""


class UnusableKey(PeerError):
    """The file with this peer's private key holds something else."""


class InvalidOption(PeerError):
    """An option's value cannot be read, such as a size of "lots"."""


class PortTaken(PeerError):
    """The address to listen on is in use, or none of this machine's."""


class FrameError(PeerError):
    """A frame that cannot be computed. It ends here; other frames are not touched by it."""


class BadFrame(FrameError):
    """The frame contradicts itself or this peer's slice; nothing was computed and no page was written."""


class BadInput(BadFrame):
    """What the peer before this one sent is wrong."""


class NumericFault(FrameError):
    """NaN or infinity came out of the layers that the message names."""


class NoLink(PeerError):
    """The next peer cannot be reached straight at one of its addresses."""


class RoomLost(PeerError):
    """The room, or the way to it, is gone; a peer tries again for a while."""


class RoomUnreachable(PeerError):
    """The room did not answer, or did not come back in time."""


class RoomRefused(PeerError):
    """The room said no: a wrong key, an unknown code, another version of the protocol."""
