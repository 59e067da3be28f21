"""What `pooled doctor` finds out about the way to a room: from a connection's first packet to how much it carries."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

import grpc

from cli.echo import ECHOES, SIZES, Echo
from protos import PROTOCOL, dial, room_pb2
from protos.invite import Invite
from protos.proxies import Proxy, ProxyRefused, open_connection, proxy_for
from protos.room_pb2_grpc import RoomStub
from protos.tunnel import TunnelFailed, reached

WITHIN = 10.0
"""Seconds that all checks of the way may take together."""

STEP = 4.0
"""Seconds for one of them."""

Figures = Mapping[str, float | str]


class Result(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    name: str
    result: Result
    text: str
    """One sentence: what was found, or what is wrong and what to do."""
    figures: Figures = field(default_factory=dict)
    """The same for programs: seconds, bytes, bytes a second, versions."""
    needed: bool = True
    """Whether this machine is of no use to the room while it fails."""


DIRECT, PROXY, WEBSOCKET = "direct", "proxy", "websocket"
CERTIFICATE, GRPC, VERSIONS, KEY = "certificate", "grpc", "versions", "key"
ROUND_TRIP, BANDWIDTH = "round trip", "bandwidth"

_ORDER = (DIRECT, PROXY, WEBSOCKET, CERTIFICATE, GRPC, VERSIONS, KEY, ROUND_TRIP, BANDWIDTH)
_BY_SOCKET = "ask the host for a wss:// invite (pooled host --ws-listen)"


class _Broken(Exception):
    """A check failed, so that those after it cannot be made."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(text)
        self.check = check


def installed(package: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def check_way(invite: Invite, side: str | None = None) -> list[Check]:
    """All checks of the way to the invite's room and of what its key opens, in WITHIN seconds at most.

    `side`: what the key is to be for, peer or client; None: either.
    """
    way = _Way(invite, side)
    try:
        await way.follow()
    except _Broken as broken:
        way.tell(broken.check, Result.FAILED, str(broken))
    return [way.found.get(name) or Check(name, Result.NOT_CHECKED, "an earlier check failed") for name in _ORDER]


class _Way:
    """Follows the way to a room as far as it leads, and keeps what was found."""

    def __init__(self, invite: Invite, side: str | None) -> None:
        self.found: dict[str, Check] = {}
        self._invite = invite
        self._side = side
        self._end = time.monotonic() + WITHIN

    def tell(
        self, name: str, result: Result, text: str, figures: Figures | None = None, *, needed: bool = True
    ) -> None:
        self.found[name] = Check(name, result, text, figures or {}, needed)

    async def follow(self) -> None:
        """Raises _Broken where it ends."""
        async with AsyncExitStack() as stack:
            near = await self._reach(stack)
            certificate = await self._check_certificate(near)
            channel = await stack.enter_async_context(dial.channel_to(near.address, certificate))
            await self._check_grpc(channel)
            echo = Echo(RoomStub(channel), dial.credentials(near, version("pooled")), self._end)
            if await self._enter(echo):
                round_trip = await self._measure_round_trip(echo)
                await self._measure_bandwidth(echo, round_trip)

    @asynccontextmanager
    async def _step(self, check: str, text: str) -> AsyncIterator[None]:
        """A step that takes STEP seconds at most, and no more than are left. `text` says what a longer one means."""
        try:
            async with asyncio.timeout(min(STEP, self._end - time.monotonic())):
                yield
        except TimeoutError as error:
            raise _Broken(check, text) from error

    # ------------------------------------------------------------ connections

    async def _reach(self, stack: AsyncExitStack) -> Invite:
        """The invite with an address that gRPC can dial."""
        if self._invite.path is None:
            self.tell(
                WEBSOCKET, Result.NOT_CHECKED, f"this invite names none; to go by one, {_BY_SOCKET}", needed=False
            )
            await self._reach_straight()
            return self._invite
        for name in (DIRECT, PROXY):
            self.tell(name, Result.NOT_CHECKED, "this invite goes by WebSocket", needed=False)
        late = f"no WebSocket opened at {self._invite.url} in {STEP:.0f} s; does the host's proxy run?"
        async with self._step(WEBSOCKET, late):
            try:
                near = await stack.enter_async_context(reached(self._invite))
            except TunnelFailed as error:
                raise _Broken(WEBSOCKET, str(error)) from error
        self.tell(WEBSOCKET, Result.OK, f"through {self._invite.url}")
        return near

    async def _reach_straight(self) -> None:
        """By TCP, and through the proxy that the environment names: then that is the way gRPC goes."""
        proxy = proxy_for(self._invite.host)
        if proxy is None:
            self.tell(PROXY, Result.NOT_CHECKED, "the environment names none (https_proxy)", needed=False)
        why = await _why_unreachable(self._invite, None, self._end)
        if why is None:
            self.tell(DIRECT, Result.OK, f"{self._invite.address} takes connections", needed=proxy is None)
        elif proxy is None:
            raise _Broken(DIRECT, why)
        else:
            self.tell(DIRECT, Result.FAILED, f"{why}; no harm where the proxy leads there", needed=False)
        if proxy is None:
            return
        why = await _why_unreachable(self._invite, proxy, self._end)
        if why is not None:
            raise _Broken(PROXY, why)
        self.tell(PROXY, Result.OK, f"the proxy at {proxy.host}:{proxy.port} leads there")

    async def _check_certificate(self, near: Invite) -> bytes | None:
        silent = f"{self._invite.place} takes connections but does not speak TLS; is it the room's port?"
        async with self._step(CERTIFICATE, silent):
            try:
                certificate = await dial.pinned(near)
            except dial.Unreachable as error:
                raise _Broken(CERTIFICATE, silent) from error
            except dial.WrongCertificate as error:
                raise _Broken(CERTIFICATE, str(error)) from error
        if certificate is None:
            self.tell(
                CERTIFICATE, Result.NOT_CHECKED, "this invite is for plain text, within one machine", needed=False
            )
        else:
            self.tell(CERTIFICATE, Result.OK, "it is the one of the invite")
        return certificate

    async def _check_grpc(self, channel: grpc.aio.Channel) -> None:
        silent = f"the room's gRPC does not answer; something on the way stops HTTP/2: {_BY_SOCKET}"
        async with self._step(GRPC, silent):
            await channel.channel_ready()
        self.tell(GRPC, Result.OK, "the room's gRPC answers")

    # ------------------------------------------------------------ the door

    async def _enter(self, echo: Echo) -> bool:
        """Whether the key opens the door. It is tried once: wrong keys make an address wait."""
        try:
            reply = await echo.send()
        except grpc.aio.AioRpcError as error:
            self._judge_refusal(error)
            return False
        self._compare_versions(reply)
        right = self._side in (None, reply.side)
        text = f"it opens the door as a {reply.side}'s"
        if not right:
            text += f", not as a {self._side}'s; ask the host for: pooled invite {self._side}"
        self.tell(KEY, Result.OK if right else Result.FAILED, text, {"side": reply.side})
        return True

    def _judge_refusal(self, error: grpc.aio.AioRpcError) -> None:
        said = dial.refusal(error)
        if not said.code:
            raise _Broken(
                GRPC, f"the room does not answer as it should ({said.message}); is its pooled older?"
            ) from error
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise _Broken(VERSIONS, said.message) from error
        # The room looks at the protocol first.
        self.tell(VERSIONS, Result.OK, f"pooled {version('pooled')} here speaks the room's protocol {PROTOCOL}")
        if not self._invite.key and error.code() is grpc.StatusCode.UNAUTHENTICATED:
            self.tell(KEY, Result.NOT_CHECKED, "this invite has none: the host is asked when you come", needed=False)
        else:
            raise _Broken(KEY, said.message) from error

    def _compare_versions(self, room: room_pb2.EchoReply) -> None:
        here, torch, transformers = version("pooled"), installed("torch"), installed("transformers")
        parts = [f"pooled {here} here and {room.version} in the room, both of protocol {PROTOCOL}"]
        parts.append(f"transformers {transformers or 'not installed'} here and {room.transformers or 'none'} there")
        parts.append(f"torch {torch or 'not installed'} here")
        figures = {"pooled": here, "torch": torch, "transformers": transformers, "protocol": PROTOCOL}
        figures |= {"room_pooled": room.version, "room_transformers": room.transformers}
        known = {name: value for name, value in figures.items() if value}
        self.tell(VERSIONS, Result.OK, "; ".join(parts), known)

    # ------------------------------------------------------------ how good it is

    async def _measure_round_trip(self, echo: Echo) -> float:
        try:
            quickest = min([await echo.seconds() for _ in range(ECHOES)])
        except grpc.aio.AioRpcError as error:
            raise _Broken(ROUND_TRIP, f"the connection broke ({dial.refusal(error).message}); try again") from error
        self.tell(ROUND_TRIP, Result.OK, f"{quickest * 1000:.1f} ms to the room and back", {"seconds": quickest})
        return quickest

    async def _measure_bandwidth(self, echo: Echo, round_trip: float) -> None:
        rates = {}
        half_time = (time.monotonic() + self._end) / 2
        for name, until in (("up", half_time), ("down", self._end)):
            rate = await echo.rate(name == "up", round_trip, until)
            if rate is None:
                raise _Broken(
                    BANDWIDTH,
                    f"not even {SIZES[0] >> 10} KiB went {name} in time; the line is too slow, or too busy now",
                )
            rates[name] = rate
        text = " and ".join(f"{_speed(rate)} {name}" for name, rate in rates.items())
        figures = {f"{name}_bytes_per_second": round(rate) for name, rate in rates.items()}
        self.tell(BANDWIDTH, Result.OK, f"at least {text}", figures)


def _speed(rate: float) -> str:
    return f"{rate / 1e6:.1f} MB/s" if rate >= 1e6 else f"{rate / 1e3:.0f} kB/s"


async def _why_unreachable(invite: Invite, proxy: Proxy | None, end: float) -> str | None:
    """Why no TCP connection comes about, straight or through `proxy`; None where one does."""
    place = f"{proxy.host}:{proxy.port}" if proxy else invite.address
    try:
        async with asyncio.timeout(min(STEP, end - time.monotonic())):
            _, writer = await (open_connection if proxy else asyncio.open_connection)(invite.host, invite.port)
    except ProxyRefused as error:
        return f"{error}; have it allow that, add the host to no_proxy, or {_BY_SOCKET}"
    except socket.gaierror:
        return f"the name in {place} is not known here; check it, and this machine's network"
    except ConnectionRefusedError:
        advice = "check https_proxy" if proxy else "does the room run, and is the invite the newest?"
        return f"nobody listens at {place}; {advice}"
    except OSError:  # and TimeoutError
        return f"nothing comes back from {place}; have the host open the port in router and firewall, or {_BY_SOCKET}"
    writer.transport.abort()
    return None
