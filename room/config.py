"""How a room is run. Frozen; a value that makes no sense stops the start."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from protos.invite import InvalidInvite, Invite, is_loopback
from protos.tunnel import Network
from room import wire
from room.drafts import AUTO, MOST, OFF
from room.errors import StartError
from room.forms import KVS, QUANTS, Forms


@dataclass(frozen=True)
class RoomConfig:
    model: str
    """Local directory, GGUF file, or hub id."""
    revision: str | None = None
    manifest: Path | None = None
    """A file with the model's manifest; None: it is made."""
    listen: str = "127.0.0.1:7070"
    insecure: bool = False
    """Plain text in place of TLS, on a loopback address."""
    allow_all: bool = False
    """Let in who comes without a key, without asking the host."""
    public: str | None = None
    """HOST:PORT the invite names, where it differs from `listen`."""
    ws_listen: str | None = None
    """HOST:PORT where WebSockets come in; None: nowhere."""
    ws_public: str | None = None
    """URL of those WebSockets, where it differs from `ws_listen`: a proxy's, say."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies that are believed in who they say comes by WebSocket."""
    name: str | None = None
    model_name: str | None = None
    devices: int | None = None
    """Deal once this many peers are there, and so many for each further chain; None: as few as the model fits into."""
    layers: tuple[int, ...] | None = None
    """Layers per peer, dealt by hand."""
    deal: str = "memory"
    """What deals aim at: "memory", the split whose fullest peer is least full, or "speed"."""
    chains: int | None = None
    """Most chains at work; None: as many as the peers can hold."""
    ctx: int | None = None
    """Tokens of context; None: the model's own, as far as the peers' memory goes."""
    max_running: int = 32
    """Requests that a chain answers at once."""
    max_waiting: int = 64
    quant: str = "none"
    """In how many bits peers keep weights."""
    kv: str = "auto"
    """In what form peers keep keys and values."""
    wire: str = "auto"
    """In which form hidden states travel between peers."""
    audit: float = 0.0
    """Share of prompts whose beginning another holder of a stage's layers computes too, to compare."""
    speculate: int = AUTO
    """Guesses of one session in a frame: OFF, a number, or AUTO: as many as pay."""
    draft: str | None = None
    """Directory or GGUF file of a model that guesses where the text repeats nothing."""
    temperature: float | None = None
    top_k: int | None = None
    state: Path | None = None
    """Directory where code, certificate, invites, peers and deal are kept for another run of this room."""
    scripted: Path | None = None
    """A script to play in place of a model (room/scripted.py)."""
    record: Path | None = None
    """Where to write what was asked of the script."""

    def __post_init__(self) -> None:
        checks = (
            (bool(self.model.strip()), "MODEL is empty; give a directory, a GGUF file or a model id of the hub"),
            (self.devices is None or self.devices >= 1, "--devices is the number of peers to wait for, 1 or more"),
            (self.chains is None or self.chains >= 1, "--chains is auto or a number of chains, 1 or more"),
            (0 <= self.audit <= 1, "--audit is a share of prompts, 0 to 1"),
            (self.ctx is None or self.ctx >= 64, "--ctx is a number of tokens, 64 or more"),
            (self.max_running >= 1, "--max-running is 1 or more"),
            (self.max_waiting >= 0, "--max-waiting is 0 or more"),
            (self.deal in ("memory", "speed"), f"--deal is memory or speed; got {self.deal}"),
            (self.quant in QUANTS, f"--quant is one of {', '.join(QUANTS)}; got {self.quant}"),
            (self.kv in KVS, f"--kv is one of {', '.join(KVS)}; got {self.kv}"),
            (self.wire in wire.NAMES, f"--wire is one of {', '.join(wire.NAMES)}; got {self.wire}"),
            (AUTO <= self.speculate <= MOST, f"--speculate is auto, off or a number of tokens, 1 to {MOST}"),
            (self.temperature is None or 0 <= self.temperature <= 2, "--temperature is between 0 and 2"),
            (self.top_k is None or self.top_k >= 1, "--top-k is 1 or more"),
            (self.layers is None or all(n >= 1 for n in self.layers), "--layers is a list like 3,26,1, each 1 or more"),
            (
                self.layers is None or self.devices in (None, len(self.layers)),
                "--layers and --devices disagree about the number of peers",
            ),
            (
                self.scripted is None or self.first_deal_peers is None,
                "a scripted room needs no peers: leave out --devices and --layers",
            ),
            (
                self.draft is None or (self.speculate != OFF and self.scripted is None),
                "--draft names a model that guesses: leave out --speculate off and --scripted",
            ),
            (self.record is None or self.scripted is not None, "--record goes with --scripted"),
        )
        for fine, message in checks:
            if not fine:
                raise StartError(message)
        host, _ = split_address(self.listen, "--listen")
        if self.insecure and not (is_loopback(host) and self.public is None):
            raise StartError(f"--insecure is for loopback alone, such as 127.0.0.1; leave it out to listen on {host}")
        if self.public is not None:
            split_address(self.public, "--public")
        self._check_websocket()

    def _check_websocket(self) -> None:
        if self.ws_listen is None:
            if self.trusted_proxies:
                raise StartError("--trusted-proxy goes with --ws-listen: it is about who comes by WebSocket")
            if self.ws_public is not None:
                raise StartError(
                    "--ws-public names what leads to a room's WebSockets; give their address by --ws-listen"
                )
            return
        _, port = split_address(self.ws_listen, "--ws-listen")
        if self.insecure or not port:
            raise StartError("--ws-listen goes with TLS and a port that is not 0; leave out --insecure, name a port")
        try:
            Invite("", 0, "", "").by_websocket(self.ws_url or "")
        except InvalidInvite as error:
            raise StartError(f"--ws-public: {error}") from error
        try:
            _ = self.proxies
        except ValueError as error:
            raise StartError(f"--trusted-proxy is an address or a network, such as 127.0.0.1: {error}") from error

    @property
    def proxies(self) -> list[Network]:
        return [ipaddress.ip_network(each) for each in self.trusted_proxies]

    @property
    def ws_url(self) -> str | None:
        """Where WebSockets lead to the room, for its invites."""
        return self.ws_public or (f"ws://{self.ws_listen}/" if self.ws_listen else None)

    @property
    def forms(self) -> Forms:
        return Forms(QUANTS[self.quant], KVS[self.kv])

    @property
    def first_deal_peers(self) -> int | None:
        """How many peers the first deal waits for."""
        return len(self.layers) if self.layers else self.devices


def split_address(address: str, option: str) -> tuple[str, int]:
    """HOST:PORT or [HOST]:PORT into its parts. Raises StartError naming `option`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{option} is HOST:PORT, such as 127.0.0.1:7070; got {address!r}")
    return host.strip("[]"), int(port)
