"""One membership in a room: from Hello until a stream breaks."""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from secrets import compare_digest
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import grpc
import psutil

from peer.errors import PeerError, RoomLost, RoomRefused
from peer.events import PeerEvent, Watch
from peer.giving import give
from peer.holder import Holder
from peer.identity import Identity
from peer.inward import Inward, may_come
from peer.joiner import Follower, Joiner, Whole
from peer.link import LinkService, listen_anywhere, listen_at, own_addresses
from peer.onward import Onward
from peer.pacing import Pacer
from peer.progress import LoadReport, keep_telling
from peer.sources import Way
from peer.turns import Turns
from peer.worker import Outcome, Task
from protos import dial, peer_pb2, peer_pb2_grpc, room_pb2, room_pb2_grpc, weights_pb2_grpc
from protos.contents import ContentService, Context
from protos.invite import Invite
from protos.lanes import DECODE, LANES, Lane, lane_name
from protos.outbox import Outbox
from protos.serving import new_server

if TYPE_CHECKING:
    from peer.memory import Share
    from peer.supply import Supply

log = logging.getLogger("pooled.peer")

T = TypeVar("T")

HEARTBEAT = 1.0
ROOM_SILENT = 15
"""Heartbeats of this peer without a word from the room after which the room counts as lost."""

DIAL_PATIENCE = 10.0
"""Seconds to wait for somebody to answer at the room's address."""

_REFUSED = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}


@dataclass(frozen=True)
class Lent:
    """What this peer offers, and what it computes with."""

    hello: room_pb2.Hello
    shares: tuple["Share", ...]
    """Of each device, in the order that layers go through them."""
    dtype: Any  # torch.dtype
    offer: str
    """How much memory, and why no more; for people."""
    version: str
    identity: Identity
    listen: str | None = None
    advertise: str | None = None
    """Where the peer before this one dials in and what it is told, as PeerConfig has them."""
    pacer: Pacer = field(default_factory=Pacer)
    """Of all that goes out."""
    turns: Turns = field(default_factory=lambda: Turns(None))
    """Of computing."""


class Membership:
    """Runs once. `welcomed` tells whether the room took this peer in, `leaving` whether it asked to be let go."""

    def __init__(self, lent: Lent, holder: Holder, supply: "Supply", invite: Invite, watch: Watch) -> None:
        self.welcomed = self.leaving = self._resting = False
        self._lent = lent
        self._holder = holder
        self._supply = supply
        self._share_token = ""
        self._invite = invite
        self._watch = watch
        self._metadata = dial.credentials(invite, lent.version, lent.identity.id)
        self._said: Outbox[room_pb2.FromMember] = Outbox()
        self._heard: Outbox[room_pb2.ToMember] = Outbox()
        self._lanes: dict[Lane, Outbox[peer_pb2.FromPeer]] = {lane: Outbox() for lane in LANES}
        self._joiner, self._follower = Joiner(), Follower()
        self._unanswered = 0  # heartbeats since the room last spoke
        self._beat_heard = (0.0, 0.0)  # the room's latest heartbeat: its clock then, and ours
        self._first = self._last = False  # in the chain: the one that takes token ids, the one that samples
        self._inward = Inward()
        self._onward: Onward | None = None
        self._finding: asyncio.Task[None] | None = None  # the way to the next peer
        self._links = LinkService(self._take_linked)
        self._loading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: list[grpc.aio.Channel] = []
        self._room_certificate: bytes | None = None
        self._link_addresses: list[str] = []
        self._introduced = False

    async def run(self) -> None:
        """Serve until something breaks.

        Raises RoomLost (the room or the way to it is gone), RoomRefused or PortTaken.
        """
        loop = asyncio.get_running_loop()
        self._holder.deliver_to(lambda outcome: _post(loop, self._pass_on, outcome))
        server = new_server(lambda context, method: self._let_reader_in(context))
        peer_pb2_grpc.add_PeerServicer_to_server(self._links, server)
        contents = ContentService(self._supply.store.locate, self._let_reader_in, self._lent.pacer.paced_last)
        weights_pb2_grpc.add_WeightsServicer_to_server(contents, server)
        try:
            self._room_certificate = await _certificate_of(self._invite)
            self._link_addresses = await self._listen(server)
            await server.start()
            await self._join()
            async for message in self._heard:
                await self._handle(message)
        finally:
            await self._close()
            await server.stop(0)

    async def _listen(self, server: grpc.aio.Server) -> list[str]:
        """Listen for the peer before this one; the addresses it is to be told, none where there are none."""
        if self._lent.listen is not None:
            listening = listen_at(server, self._lent.listen, self._lent.identity.certificate)
            return [self._lent.advertise or listening]
        return listen_anywhere(server, await own_addresses(self._invite), self._lent.identity.certificate)

    def leave(self) -> None:
        """Ask to be let go: the room ends the membership once others have taken over."""
        self.leaving = True
        self._say(room_pb2.FromMember(leaving=room_pb2.Leaving()))

    def rest(self, resting: bool) -> None:
        """Be dealt nothing, or something again: said at once, or when the room has taken this peer in."""
        self._resting = resting
        if self.welcomed:
            self._say(room_pb2.FromMember(resting=room_pb2.Resting(resting=resting)))

    # ------------------------------------------------------------ the membership stream

    async def _join(self) -> None:
        channel = self._open_channel()
        await _answering(channel, self._invite)
        call = room_pb2_grpc.RoomStub(channel).Join(_messages(self._said), metadata=self._metadata)
        self._start(self._pump(call, self._hear))
        self._start(self._beat())

    def _introduce(self, challenge: room_pb2.Challenge) -> None:
        hello = room_pb2.Hello()
        hello.CopyFrom(self._lent.hello)
        identity = self._lent.identity
        hello.link_addresses.extend(self._link_addresses)
        hello.peer_id, hello.public_key, hello.certificate = identity.id, identity.public_key, identity.certificate.der
        hello.signature = identity.sign(challenge.nonce, self._invite.fingerprint)
        self._say(room_pb2.FromMember(hello=hello))
        self._introduced = True

    def _hear(self, message: room_pb2.ToMember) -> None:
        self._unanswered = 0
        if message.HasField("heartbeat"):
            self._beat_heard = (message.heartbeat.sent, time.monotonic())
        self._heard.put(message)

    async def _handle(self, message: room_pb2.ToMember) -> None:
        kind = message.WhichOneof("payload")
        if kind == "challenge":
            self._introduce(message.challenge)
        elif kind == "welcome":
            self.welcomed = True
            self._share_token = message.welcome.share_token
            metadata = (*self._metadata, (dial.MEMBER, message.welcome.token))
            self._supply.way = Way(self._invite.address, self._room_certificate, metadata)
            if self._resting:
                self.rest(True)
            self._open_lanes(message.welcome.token)
            self._tell("joined", f"joined room {message.welcome.room} as {message.welcome.name}")
            self._tell("waiting", "waiting for layers")
        elif kind == "refused":
            raise RoomRefused(message.refused.reason)
        elif kind == "assignment":
            await self._stop_loading()
            self._loading = self._start(self._load(message.assignment))
        elif kind == "released":
            await self._stop_loading()
            await self._holder.release()
            await self._drop_link()
            self._tell("released", "the deal is over; waiting for layers")
        elif kind == "wire":
            self._holder.use_wire(message.wire)
        elif kind == "outlook":
            self._tell("waiting", _outlook(message.outlook))
        elif kind == "errand" and self._supply.way is not None:
            pace = self._lent.pacer.paced_last
            self._start(give(self._supply.way, message.errand.number, self._supply.store.locate, pace))
        elif kind == "test":
            self._start(self._test(message.test))
        elif kind == "audit":
            self._start(self._audit(message.audit))
        elif kind == "prepare":
            await self._stop_loading()
            self._loading = self._start(self._prepare(message.prepare))

    async def _beat(self) -> None:
        process = psutil.Process()
        # Beats are counted and not seconds: a peer that stood still itself must not blame the room.
        while self._unanswered < ROOM_SILENT:
            self._unanswered += 1
            echo, heard_at = self._beat_heard
            beat = room_pb2.Heartbeat(
                rss=process.memory_info().rss,
                step_seconds=self._holder.step_seconds,
                echo=echo,
                since=time.monotonic() - heard_at,
            )
            if self._introduced:
                self._say(room_pb2.FromMember(heartbeat=beat))
            await asyncio.sleep(HEARTBEAT)
        self._heard.close(RoomLost("the room fell silent"))

    # ------------------------------------------------------------ loading

    async def _load(self, assignment: room_pb2.Assignment) -> None:
        epoch = assignment.epoch
        self._first, self._last = assignment.start == 0, assignment.end == assignment.layers
        await self._drop_link()
        self._inward.begin(epoch)
        await self._links.expect(assignment.link_token)
        try:
            async with self._telling(epoch, _layers(assignment)) as report:
                ready = await self._holder.load(assignment, report)
        except PeerError as error:
            self._refuse(epoch, error)
            return
        if not (self._first and self._last):
            self._onward = Onward(assignment, self._lent.pacer, self._relay, self._report)
            self._finding = self._start(self._onward.run())
        if self._onward is not None and not self._last:  # what it draws can go by way of the room meanwhile
            await self._onward.settled.wait()
        self._say(room_pb2.FromMember(ready=ready))
        self._tell_loaded("ready", f"serving {_layers(assignment)}")

    async def _prepare(self, wanted: room_pb2.Prepare) -> None:
        """Load a slice that is to be served later."""
        try:
            async with self._telling(0, _layers(wanted)) as report:
                prepared = await self._holder.prepare(wanted, report)
        except PeerError as error:
            self._refuse(0, error)
            return
        self._say(room_pb2.FromMember(prepared=prepared))
        self._tell_loaded("waiting", f"ready to take over {_layers(wanted)}")

    async def _audit(self, wanted: room_pb2.Audit) -> None:
        """Compute what another peer did, between frames."""
        try:
            audited = await self._holder.audit(wanted)
        except PeerError as error:
            log.warning("an audit could not be computed", extra={"why": str(error)})
            audited = room_pb2.Audited(number=wanted.number)
        self._say(room_pb2.FromMember(audited=audited))

    async def _test(self, test: room_pb2.TestFrame) -> None:
        """Compute the test frame beside whatever else is computed."""
        from peer.selfcheck import fingerprint

        try:
            source = await self._supply.opened(test.manifest.hex())
            values = await asyncio.to_thread(fingerprint, source)
        except PeerError as error:
            self._refuse(0, error)
            return
        self._say(room_pb2.FromMember(tested=room_pb2.Tested(values=values)))

    def _refuse(self, epoch: int, error: PeerError) -> None:
        self._tell("refused", str(error))
        self._say(room_pb2.FromMember(failed=room_pb2.SliceFailed(epoch=epoch, reason=str(error))))

    @asynccontextmanager
    async def _telling(self, epoch: int, layers: str) -> AsyncIterator[LoadReport]:
        """Tell of a report, to the room and here, for as long as the block lasts."""
        report = LoadReport()
        telling = self._start(keep_telling(partial(self._progress, epoch, layers, report)))
        try:
            yield report
        finally:
            telling.cancel()

    def _progress(self, epoch: int, layers: str, report: LoadReport) -> None:
        left = report.seconds_left
        progress = room_pb2.LoadProgress(
            epoch=epoch, done=report.done, bytes_per_second=int(report.rate), seconds_left=ceil(left or 0)
        )
        self._say(room_pb2.FromMember(progress=progress))
        self._watch(PeerEvent("loading", f"loading {layers}", report.done, report.rate, left))

    def _tell_loaded(self, kind: Literal["ready", "waiting"], text: str) -> None:
        self._watch(PeerEvent(kind, text, 1.0, fetched=dict(self._supply.fetched)))

    async def _let_reader_in(self, context: Context) -> None:
        """End the call of whoever does not present what the room gave the other peers."""
        given = str(dict(context.invocation_metadata() or ()).get(dial.SHARE, ""))
        if not self._share_token or not compare_digest(given.encode(), self._share_token.encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this peer gives weights to peers of its room only")

    async def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None

    async def _drop_link(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
            self._finding = self._onward = None

    def _report(self, link: room_pb2.LinkState) -> None:
        self._say(room_pb2.FromMember(link=link))

    def _relay(self, frame: peer_pb2.Frame) -> None:
        """Send a frame to the next peer through the room."""
        self._lanes[frame.lane].put(peer_pb2.FromPeer(relay=frame))

    # ------------------------------------------------------------ frames

    def _open_lanes(self, token: str) -> None:
        for lane, outbox in self._lanes.items():
            metadata = (*self._metadata, (dial.MEMBER, token), (dial.LANE, lane_name(lane)))
            call = room_pb2_grpc.RoomStub(self._open_channel()).Frames(
                self._lent.pacer.paced(outbox), metadata=metadata
            )
            self._start(self._pump(call, partial(self._take, lane)))

    def _take(self, lane: Lane, message: peer_pb2.ToPeer) -> None:
        kind = message.WhichOneof("payload")
        if kind == "frame":
            self._take_relayed(message.frame)
        elif kind == "reply" and self._onward is not None:
            self._onward.replied(message.reply)
        elif kind == "plan":
            task = self._joiner.plan(message.plan)
            if task is not None:
                self._holder.submit(task)
        elif kind == "mask":
            self._holder.learn_mask(lane, message.mask)

    def _take_linked(self, frame: peer_pb2.Frame) -> peer_pb2.LinkReply:
        """A frame came straight from the peer before this one; what to answer."""
        reply = peer_pb2.LinkReply(epoch=frame.epoch, lane=frame.lane, probe=frame.probe.number)
        if not may_come(frame, first=self._first):
            log.warning("a frame that only the room may send was dropped")
        elif not reply.probe:
            self._take_frame(frame)
            reply.hop = self._inward.came(frame.lane)
        return reply

    def _take_relayed(self, frame: peer_pb2.Frame) -> None:
        """A frame came from the room, its own or that of the peer before this one."""
        if frame.probe.number:
            reply = peer_pb2.LinkReply(epoch=frame.epoch, lane=frame.lane, probe=frame.probe.number)
            self._lanes[frame.lane].put(peer_pb2.FromPeer(reply=reply))
        else:
            self._take_frame(frame)

    def _take_frame(self, frame: peer_pb2.Frame) -> None:
        for each in self._inward.take(frame):
            self._submit(each)

    def _submit(self, frame: peer_pb2.Frame) -> None:
        whole = self._follower.take(frame) if self._first else Whole(frame, time.perf_counter())
        if whole is None:
            return
        task = self._joiner.frame(whole.frame, whole.since) if self._last else Task(whole.frame, None, whole.since)
        if task is not None:
            self._holder.submit(task)

    def _pass_on(self, outcome: Outcome) -> None:
        """Send what was computed: a frame to the next peer, anything else to the room."""
        if isinstance(outcome, peer_pb2.FrameResult):
            if outcome.loops:
                self._give_back(outcome)
            self._lanes[DECODE].put(peer_pb2.FromPeer(result=outcome))
        elif isinstance(outcome, peer_pb2.FrameFault):
            self._lanes[DECODE].put(peer_pb2.FromPeer(fault=outcome))
        elif self._onward is not None:
            went_straight = self._onward.send(outcome)
            if went_straight and outcome.audit:
                copy = peer_pb2.Frame(epoch=outcome.epoch, step=outcome.step, hidden=outcome.hidden)
                self._lanes[outcome.lane].put(peer_pb2.FromPeer(copy=copy))

    def _give_back(self, result: peer_pb2.FrameResult) -> None:
        """Let the first peer go on with what was drawn: the room may have sent a frame ahead that waits for it."""
        ids = [token.id for segment in result.segments for token in segment.tokens]
        frame = peer_pb2.Frame(epoch=result.epoch, step=result.step, lane=DECODE, drawn=peer_pb2.Drawn(ids=ids))
        if self._first:
            self._submit(frame)
        elif self._onward is not None:
            self._onward.send(frame)

    # ------------------------------------------------------------ streams

    def _open_channel(self) -> grpc.aio.Channel:
        channel = dial.channel_to(self._invite.address, self._room_certificate)
        self._channels.append(channel)
        return channel

    async def _pump(self, call: AsyncIterable[T], take: Callable[[T], None]) -> None:
        """Read one of the room's streams; when it ends, so does the membership, with the reason."""
        try:
            async for message in call:
                take(message)
            self._heard.close(RoomLost("the room closed the connection"))
        except grpc.aio.AioRpcError as error:
            self._heard.close(_translate(error))

    def _say(self, message: room_pb2.FromMember) -> None:
        self._said.put(message)

    def _tell(self, kind: Any, text: str, done: float = 0.0) -> None:
        self._watch(PeerEvent(kind, text, done))

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A bug in one of the tasks must not leave a membership that looks alive."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._heard.close(error if isinstance(error, Exception) else None)

    async def _close(self) -> None:
        await self._drop_link()
        self._said.close()  # lets gRPC's writers of these streams come to their end
        for lane in self._lanes.values():
            lane.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()


async def check_invite(invite: Invite, version: str, peer_id: str) -> None:
    """Ask the room whether it knows the invite, before anything slow is done.

    Raises RoomLost when nobody answers, RoomRefused when it says no.
    """
    async with dial.channel_to(invite.address, await _certificate_of(invite)) as channel:
        await _answering(channel, invite)
        watch = room_pb2_grpc.RoomStub(channel).Watch(
            room_pb2.WatchRequest(), metadata=dial.credentials(invite, version, peer_id)
        )
        try:
            await watch.read()
        except grpc.aio.AioRpcError as error:
            raise _translate(error) from error
        watch.cancel()


async def _certificate_of(invite: Invite) -> bytes | None:
    try:
        async with asyncio.timeout(DIAL_PATIENCE):
            return await dial.pinned(invite)
    except (dial.Unreachable, TimeoutError) as error:
        raise RoomLost(f"nobody answers at {invite.place}") from error
    except dial.WrongCertificate as error:
        raise RoomRefused(str(error)) from error


async def _answering(channel: grpc.aio.Channel, invite: Invite) -> None:
    try:
        async with asyncio.timeout(DIAL_PATIENCE):
            await channel.channel_ready()
    except TimeoutError:
        raise RoomLost(f"nobody answers at {invite.place}") from None


async def _messages(outbox: Outbox[T]) -> AsyncIterator[T]:
    async for message in outbox:
        yield message


def _layers(wanted: room_pb2.Assignment | room_pb2.Prepare) -> str:
    """In words, for people."""
    return f"layers {wanted.start} to {wanted.end - 1} of {wanted.layers}"


def _outlook(told: room_pb2.Outlook) -> str:
    """In words, for people."""
    change = f"about {told.with_it:.1f} tokens/s with this peer, {told.without_it:.1f} without it"
    return f"a spare for now: one answer should get {change}"


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Call a function on the loop from the compute thread; at the very end there may be no loop any more."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        log.debug("computed a frame after the end")


def _translate(error: grpc.aio.AioRpcError) -> PeerError:
    """What a broken stream means to a peer: the one place where gRPC's errors become ours."""
    said = dial.refusal(error)
    if error.code() in _REFUSED:
        return RoomRefused(said.message)
    log.info("a stream broke", extra={"status": error.code().name, "details": said.message[:200]})
    return RoomLost("the connection to the room broke")
