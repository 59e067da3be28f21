"""The room: who is here, who holds what, who is answered next. Plans synchronously; the service acts.

Every event (a peer joins, loads, leaves, a frame comes back, a request arrives or is given up) changes the state and
ends in `_plan`, which deals, admits and sends. Nothing here awaits, so nothing can change in the middle of a plan.
Messages go out through outboxes, which the service's streams drain.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from protos import peer_pb2, room_pb2
from protos.lanes import PREFILL
from protos.outbox import Outbox
from room import report
from room.admission import Line
from room.audit import Audits
from room.chain import Chain
from room.chains import Chains, better_off, by_preference
from room.config import RoomConfig
from room.deal import Deal
from room.dealer import Dealer, Found
from room.drafting import Drafting
from room.errors import (
    CallError,
    CancelledByRoom,
    ContextLengthExceeded,
    InternalError,
    InvalidValue,
    Loading,
    NoPipeline,
    NotReady,
    PipelineLost,
    QueueFull,
    RemovedPeer,
    RoomClosed,
    RoomFull,
    ShuttingDown,
    SlowReader,
    UnknownPeer,
    UnknownRequest,
)
from room.faults import Faults
from room.members import SUSPECT_AFTER, Member, Place, Roster, State
from room.model import Model
from room.pace import Pace
from room.regroup import Regroup
from room.schedule import FramePlan, next_frame
from room.session import Event, Job, Session
from room.spares import Spares
from room.store import Kept
from room.text.answer import Answer
from room.versions import Versions

log = logging.getLogger("pooled.room")

MAX_RECOVERIES = 3
WAIT_FOR_CHAIN = 120.0
"""Seconds an answer that has begun waits for a whole chain."""

MOST_UNREAD = 1 << 14
"""Events an answer's reader may leave: its answer is kept no longer then. Nobody else is held up before or after."""

MOST_PEERS = 256

RESUMING = "peer left, resuming"
MOVING = "moving to other peers"
"""Both are told to those whose answer is interrupted. The second is by our own will and counts as no recovery."""

FAULTY = "a peer failed, resuming"
FULL = "a peer ran out of memory, resuming"
MADE_WAY = "waiting for memory, resuming"


class Room:
    """One room's state. `kept` is what a former run of it left, `library` the version of transformers it runs with.

    `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        config: RoomConfig,
        model: Model,
        code: str,
        machine: str,
        *,
        kept: Kept | None = None,
        library: str = "",
        clock: Callable[[], float] = time.monotonic,
        thinks: bool = False,
        efforts: bool = False,
    ) -> None:
        self.config = config
        self.model = model
        self.code = code
        self.ctx = min(config.ctx or model.shape.ctx, model.shape.ctx)
        self.roster = Roster(machine, kept.places if kept else ())
        latest = kept.deals if kept and kept.model == model.source else ()
        self.dealer = Dealer(config, model.shape, self.ctx, latest=latest, now=clock())
        self.versions = Versions(library)
        self._faults = Faults(self.roster, self.dealer)
        self._audits = Audits(config.audit, self.roster, exact=(config.quant, config.kv) == ("none", "auto"))
        self.chains = Chains(model, config, clock)
        self._spares = Spares(self.roster, self.dealer, self.chains, model, config.forms)
        self._regroup = Regroup(self.roster, self.dealer, self.chains, self._spares, clock())
        self.drafting = Drafting(model.shape.vocab_size, clock)
        self.line = Line()
        self.pace = Pace(clock)
        self.served = 0
        self.created = int(time.time())
        self._clock = clock
        self.thinks = thinks
        self.efforts = efforts
        self._sessions = 0
        self._why: NotReady = NoPipeline("")
        self._broken_at: float | None = None  # since when answers that have begun wait for a chain
        self._ticked_at = clock()
        self._closed = False
        self._plan()

    def __repr__(self) -> str:
        states = [member.state for member in self.roster]
        peers = ", ".join(f"{states.count(state)} {state}" for state in State if state in states) or "none"
        return f"<Room {self.code} [peers: {peers} | requests: {len(self.running)} running, {len(self.line)} waiting]>"

    @property
    def running(self) -> list[Session]:
        return self.chains.sessions

    @property
    def not_ready(self) -> NotReady | None:
        """Why a request would be refused now; None when it would be served."""
        if self._closed:
            return ShuttingDown()
        return None if self.chains.ready else self._why

    # ------------------------------------------------------------ peers

    def join(self, hello: room_pb2.Hello, *, own: bool = False) -> Member:
        """A peer is here, the host's `own` one or another. One that was here before under the same id is replaced.

        Raises TooLittleMemory when it could not hold any layer, RemovedPeer when the host put it out, RoomFull.
        """
        self.dealer.check(hello)
        place = self.roster.place_of(hello.peer_id)
        if place is not None and place.removed and not own:
            raise RemovedPeer(place.name)
        before = self.roster.get(hello.peer_id)
        if before is not None:
            self.leave(before, "it joined again")
        elif len(self.roster) >= MOST_PEERS:
            raise RoomFull(MOST_PEERS)
        member = self.roster.add(hello, self._clock())
        member.place.own = own
        if own:
            member.place.removed = False
        member.proven = self.versions.is_ours(member)
        log.info("peer joined", extra={"peer": member.name, "device": hello.device, "memory": hello.memory})
        member.outbox.put(
            room_pb2.ToMember(
                welcome=room_pb2.Welcome(
                    room=self.code,
                    token=member.token,
                    model=self.model_id,
                    name=member.name,
                    share_token=member.share_token,
                )
            )
        )
        self._plan()
        return member

    def leave(self, member: Member, why: str) -> None:
        """A peer is gone: its stream ended, it fell silent, or it has handed over."""
        if member not in self.roster:
            return
        self.roster.remove(member)
        member.lose()
        log.warning("peer left", extra={"peer": member.name, "why": why})
        if chain := self.chains.of(member):
            self._drop(chain)
        self._plan()

    def pause(self, name: str) -> None:
        """Deal a peer nothing from now on, and have what it holds handed over. Raises UnknownPeer."""
        self._place(name).paused = True
        self._plan()

    def resume(self, name: str) -> None:
        """Undo `pause` and `remove`. Raises UnknownPeer."""
        place = self._place(name)
        place.paused = place.removed = place.aside = False
        place.faults = place.withheld = 0
        self._plan()

    def remove(self, name: str) -> None:
        """Put a peer out at once and for good. Raises UnknownPeer, or InvalidValue for the host's own."""
        place = self._place(name)
        if place.own:
            raise InvalidValue(
                "name", f"{name} is the peer of the room's own host; pause it instead: pooled peers pause {name}"
            )
        place.removed = True
        for member in [member for member in self.roster if member.place is place]:
            self.put_out(member, RemovedPeer(name))

    def put_out(self, member: Member, reason: CallError) -> None:
        """Tell a peer why it may not stay, and end its membership."""
        member.outbox.put(room_pb2.ToMember(refused=room_pb2.Refused(reason=str(reason))))
        self.leave(member, "the host put it out")

    def redeal(self) -> None:
        """Deal anew to all who are here. Running answers go on after it."""
        self._take_apart()
        self._plan()

    def _take_apart(self) -> None:
        self.dealer.forget()
        for chain in self.chains:
            self._replace(chain, MOVING, None)

    def _place(self, name: str) -> Place:
        place = self.roster.place_named(name)
        if place is None:
            raise UnknownPeer(name)
        return place

    def heard(self, member: Member, message: room_pb2.FromMember) -> None:
        """A peer said something on its membership stream."""
        self._is_here(member)
        kind = message.WhichOneof("payload")
        if kind == "heartbeat":
            member.beat(message.heartbeat, self._clock())
        elif kind == "progress" and self.chains.of_epoch(member, message.progress.epoch):
            member.loaded, member.progress = message.progress.done, message.progress
        elif kind == "ready" and (chain := self.chains.of_epoch(member, message.ready.epoch)):
            self._slice_ready(chain, member, message.ready)
        elif kind == "link" and (chain := self.chains.of_epoch(member, message.link.epoch)):
            chain.link_measured(member, message.link)
        elif kind == "failed":
            self._slice_failed(member, message.failed)
        elif kind == "prepared":
            self._prepared(member, message.prepared)
        elif kind == "tested":
            self.versions.answered(member, message.tested.values)
            self._plan()
        elif kind == "audited":
            differing = self._audits.answered(member, message.audited)
            if differing is not None:
                self._at_fault(differing, f"its layers came out otherwise at {member.name}")
        elif kind == "resting":
            member.resting = message.resting.resting
            log.info("peer rests" if member.resting else "peer serves again", extra={"peer": member.name})
            self._plan()
        elif kind == "leaving":
            member.leaving = True
            log.info("peer wants to leave", extra={"peer": member.name})
            self._plan()

    def _is_here(self, member: Member) -> None:
        """A peer spoke: what had to wait for it goes on."""
        if member.heard(self._clock()):
            log.info("peer speaks again", extra={"peer": member.name})
            self._plan()

    def _slice_ready(self, chain: Chain, member: Member, ready: room_pb2.SliceReady) -> None:
        if member.task is not State.LOADING:
            return  # it said so before
        member.task, member.loaded = State.READY, 1.0
        member.weight_bytes = ready.weight_bytes
        member.pages, member.position_limit, member.kept = ready.pages, ready.position_limit, ready.kept
        member.place.took(ready.layer_seconds)
        member.held = chain.span_of(member)
        log.info("slice ready", extra={"peer": member.name, "weight_bytes": ready.weight_bytes})
        if chain.ready:
            for spare in self._spares.free():
                self._spares.foretell(spare)
            for session in chain.open():
                self.line.join(session)
            self._spread(chain)
        self._plan()

    def _spread(self, chain: Chain) -> None:
        """Have answers of other chains go on in one that has become ready where they end sooner there."""
        others = [other for other in self.chains if other is not chain and other.ready]
        for former, session in better_off(chain, others):
            former.dismiss(session)
            session.outbox.put(Event(notice=room_pb2.Notice(text=MOVING)))
            self.line.join(session)

    def _slice_failed(self, member: Member, failed: room_pb2.SliceFailed) -> None:
        chain = self.chains.of_epoch(member, failed.epoch)
        if chain is None and (failed.epoch or member.preparing is None):
            return  # of a deal that is over
        member.task, member.why, member.preparing = State.FAILED, failed.reason, None
        log.warning("slice refused", extra={"peer": member.name, "why": failed.reason})
        if chain is not None:
            self._drop(chain)
        self._plan()

    def _prepared(self, member: Member, prepared: room_pb2.Prepared) -> None:
        if self._spares.prepared(member, prepared):
            self._spares.foretell(member)
            self._plan()

    # ------------------------------------------------------------ frames

    def arrived(self, member: Member, message: peer_pb2.FromPeer) -> None:
        """A peer sent something on a lane."""
        self._is_here(member)
        chain = self.chains.of(member)
        if chain is None:
            return
        kind = message.WhichOneof("payload")
        if kind == "copy":
            self._audits.gave(chain, member, message.copy)
        elif kind == "relay":
            if message.relay.audit:
                self._audits.gave(chain, member, message.relay)
            chain.relay(member, message.relay)
        elif kind == "reply":
            chain.relay_back(member, message.reply)
        elif kind == "result" and member is chain.ends_at(message.result.step):
            self._settle(chain, member, message.result)
        elif kind == "fault":
            self._fault(chain, member, message.fault)

    def _settle(self, chain: Chain, member: Member, result: peer_pb2.FrameResult) -> None:
        plan = chain.settle(result.epoch, result.step, result.stages)
        if plan is None:
            if result.epoch == chain.epoch:  # it came twice, or was made up
                self._at_fault(member, "it returned a frame twice")
            return
        if plan.audited and result.HasField("hidden"):
            self._audits.gave(chain, member, result)
        sampling = [share for share in plan.shares if share.ends]
        try:
            chain.check(plan, result)
        except InternalError as error:
            waited_for = any(other.follows == result.step for other in chain.flying)
            self._blame(chain, member, str(error), plan)
            if waited_for and chain in self.chains:  # nobody knows whether the first peer got what was drawn
                self._replace(chain, FAULTY, None)
                self._plan()
            return
        for share in plan.shares:
            if plan.lane == PREFILL and not share.ends and not share.session.ended:
                share.session.has_read(share.tokens)
        for share, segment in zip(sampling, result.segments, strict=True):
            session = share.session
            if session.ended:
                continue
            if plan.lane == PREFILL:
                chain.cache.share(session)
            before = len(session.tokens)
            self._go_on(session, partial(session.take, segment.tokens, share.draft))
            self.pace.count(len(session.tokens) - before)
        self._plan()

    def _at_fault(self, member: Member, reason: str) -> None:
        """A peer did something wrong that changed no answer. It is done without once it does so as a rule."""
        self._faults.count(member, reason)
        if self._faults.too_many(member):
            self._set_aside(member)
            self._plan()

    def _go_on(self, session: Session, step: Callable[[], None]) -> None:
        """Let an answer take a step, and end it if that was its last or cannot be taken."""
        try:
            step()
        except InternalError as error:
            log.error("an answer broke off", extra={"why": str(error)})
            self._end(session, error)
            return
        if session.answer.finished is not None:
            self._finish(session)
        elif len(session.outbox) > MOST_UNREAD:
            self._end(session, SlowReader(MOST_UNREAD))

    def _fault(self, chain: Chain, member: Member, fault: peer_pb2.FrameFault) -> None:
        plan = chain.failed(fault.epoch, fault.step)
        if plan is not None and not (fault.out_of_memory and self._relieve(chain, member, plan)):
            self._blame(chain, chain.before(member) if fault.upstream else member, fault.reason, plan)

    def _relieve(self, chain: Chain, member: Member, plan: FramePlan) -> bool:
        """Deal fewer layers to a peer whose memory ran out. False: nobody can take them, or that did not help."""
        asked = [share.session for share in plan.shares]
        if any(member.id in session.faulted for session in asked):
            return False
        if not self.dealer.relieve(self.roster, member, chain.deal.slices):
            return False
        log.warning("peer ran out of memory", extra={"peer": member.name, "withheld": member.place.withheld})
        for session in asked:
            session.faulted.add(member.id)
        self._replace(chain, FULL, None)
        self._plan()
        return True

    def _blame(self, chain: Chain, member: Member, reason: str, plan: FramePlan) -> None:
        """A frame failed at a peer. Its requests go on elsewhere if others can hold the model, else they end.

        A request whose frames fail at a second peer is to blame itself and ends.
        """
        self._faults.count(member, reason)
        for share in plan.shares:
            share.session.spoilt = True
        error = InternalError(f"peer {member.name} could not compute this request: {reason}")
        failed = [share.session for share in plan.shares if not share.session.ended]
        guilty = self._faults.guilty(member, failed)
        self._fail(guilty, error)
        if len(guilty) < len(failed) and not self._set_aside(member):
            self._fail(failed, error)
        self._plan()

    def _set_aside(self, member: Member) -> bool:
        """Do without a peer that returned what is wrong, for good when that is usual. False: nobody else can serve."""
        if not self._faults.set_aside(member):
            return False
        if chain := self.chains.of(member):
            self._drop(chain, FAULTY)
        if self._faults.too_many(member) and not member.place.own:
            self.remove(member.name)
        return True

    # ------------------------------------------------------------ a draft model's guesses

    def drafted(self, guesses: room_pb2.Drafted) -> None:
        """The host's draft model has guessed."""
        self.drafting.take(guesses)
        self._plan()

    def draft_due(self, session: int, length: int) -> None:
        """Its guesses behind so many tokens have been waited for long enough."""
        if self.drafting.give_up(session, length):
            self._plan()

    def drafter_left(self, outbox: Outbox[room_pb2.DraftWanted]) -> None:
        """It is gone, or another has come in its place."""
        self.drafting.end(outbox)
        self._plan()

    # ------------------------------------------------------------ requests

    def check_open(self) -> None:
        """Raise NotReady when no request can be taken now."""
        if self.not_ready is not None:
            raise self.not_ready

    def submit(self, job: Job, answer: Answer) -> Session:
        """Take a request. Its session's outbox tells first how many are ahead of it.

        Raises NotReady, QueueFull.
        """
        self.check_open()
        self._sessions += 1
        session = Session(self._sessions, job, answer)
        self.line.join(session)
        self._plan()
        if session in self.line and self._line_is_full(job):
            self.line.leave(session)
            self._tell_places()
            raise QueueFull(len(self.line), self.pace.retry_after(len(self.running)))
        return session

    def _line_is_full(self, job: Job) -> bool:
        mine = self.line.waiting_of(job.client)
        return len(self.line) > self.config.max_waiting or (0 < job.max_waiting < mine)

    def close(self, session: Session) -> None:
        """The caller is gone or has its answer: nothing more is computed for it, and what it holds is freed."""
        self._end(session)
        self._plan()

    def stop(self, number: int) -> None:
        """The host stops a request. Raises UnknownRequest."""
        for session in [*self.running, *self.line.order(())]:
            if session.number == number:
                self.cut_off(session, CancelledByRoom())
                return
        raise UnknownRequest(number)

    def cut_off(self, session: Session, reason: CallError) -> None:
        """End a request with an error, as the host wants."""
        self._end(session, reason)
        self._plan()

    def _finish(self, session: Session) -> None:
        """The answer is whole."""
        self.served += 1
        self.pace.finished(self._clock() - session.began_at)
        session.finish()
        self._end(session)

    def _fail(self, sessions: list[Session], error: CallError) -> None:
        for session in sessions:
            self._end(session, error)

    def _end(self, session: Session, error: CallError | None = None) -> None:
        if session.ended:
            return
        session.ended = True
        session.outbox.close(error)
        if error is not None:
            about = {"number": session.number, "request": session.job.request_id, "client": session.job.client}
            log.info("request failed", extra={**about, "why": str(error)})
        self.drafting.forget(session)
        if session in self.line:
            self.line.leave(session)
        elif chain := self.chains.answering(session):
            chain.dismiss(session)

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """Call about twice a second: notices who fell silent and which answers have waited too long."""
        now, away = self._clock(), self._clock() - self._ticked_at
        self._ticked_at = now
        for member in list(self.roster):
            if away > SUSPECT_AFTER:  # it was this process that stood still: nobody could be heard
                member.heard_at += away
            self._look_at(member, now)
        if self._broken_at is not None and now - self._broken_at > WAIT_FOR_CHAIN:
            waiting = [session for session in [*self.line.order(()), *self.running] if session.started]
            self._fail(waiting, PipelineLost(f"a peer left and no whole chain came back in {WAIT_FOR_CHAIN:.0f} s"))
            self._broken_at = None
        self._spares.foretell_anew()
        self._plan()  # some of it waits for time to pass
        for member in self.roster:
            member.outbox.put(room_pb2.ToMember(heartbeat=room_pb2.Heartbeat(sent=now)))

    def _look_at(self, member: Member, now: float) -> None:
        before = member.state
        after = member.look(now)
        if after is State.LOST:
            self.leave(member, "it fell silent")
        elif after is State.SUSPECT is not before:
            log.warning("peer is silent", extra={"peer": member.name})

    def shut_down(self) -> None:
        """End every request and let every peer go."""
        self._closed = True
        self._fail([*self.line.order(()), *self.running], RoomClosed())
        for member in self.roster:
            member.close()

    # ------------------------------------------------------------ the plan

    def _plan(self) -> None:
        """Deal, admit, send: as far as the state allows."""
        if self._closed:
            return
        for chain in self.chains:
            if not chain.stays and self._spares.take_over(chain, self._clock()):
                self._drop(chain, MOVING)
        self._let_go()
        self._prove()
        self._deal()
        if self.chains.ready:
            self._broken_at = None
            self._spares.prepare()
        flowing = [chain for chain in self.chains if chain.flows]
        for chain in flowing:
            chain.reap()
            self._make_room(chain)
        steady = [chain for chain in flowing if not chain.rebuilding]
        self._admit([chain for chain in steady if chain.stays or self._spares.stand_ins(chain)])
        for chain in flowing:
            self._make_room(chain)  # an answer may begin with tokens that leave no choice
            self._send(chain)
        self._tell_places()

    def _prove(self) -> None:
        """Peers with other libraries than the room's have to compute a test frame as others do."""
        for member in self.versions.to_ask(self.roster):
            member.tested = True
            test = room_pb2.TestFrame(manifest=bytes.fromhex(self.model.manifest))
            member.outbox.put(room_pb2.ToMember(test=test))
        for member in self.roster:
            wrong = self.versions.judge(member)
            if wrong is not None and member.task is not State.FAILED:
                member.task, member.why = State.FAILED, wrong
                log.warning("peer refused", extra={"peer": member.name, "why": wrong})

    def _let_go(self) -> None:
        """Who asked to leave and holds nothing any more may go."""
        for member in [member for member in self.roster if member.leaving]:
            if self.chains.of(member) is None:
                self.roster.remove(member)
                member.lose()
                log.info("peer left", extra={"peer": member.name, "why": "it asked to"})

    def _deal(self) -> None:
        """Make chains of the peers that are here, or note what is missing and tell those who wait when it is news."""
        while len(self.chains):
            busy = [chain.deal for chain in self.chains]
            another = self.dealer.another(self.roster, self._spares.free(), busy, self._clock())
            if another is not None:
                self._start(*another)
            elif (exchange := self._regroup.exchange(self._clock())) is not None:
                self._replace(exchange.chain, MOVING, exchange.found)
            elif self._regroup.anew(self._clock(), busy=bool(self.running or len(self.line))):
                self._take_apart()
                break
            else:
                return
        found = self.dealer.deal(self.roster, self._spares.free(), self._clock())
        if not isinstance(found, NotReady):
            self._start(*found)
            self._deal()
            return
        if isinstance(found, NoPipeline) and str(found) != str(self._why):
            notice = Event(notice=room_pb2.Notice(text=f"waiting for peers: {self.dealer.missing(self.roster)}"))
            for session in self.line.order(()):
                session.outbox.put(notice)
        self._why = found

    def _start(self, found: Deal, members: list[Member], former: Chain | None = None) -> Chain:
        self.dealer.started(found)
        chain = self.chains.start(found, members, former)
        self._why = Loading("the peers are loading the model")
        layers = [part.end - part.start for part in found.slices]
        log.info("dealt", extra={"chain": chain.number, "epoch": chain.epoch, "layers": layers})
        return chain

    def _drop(self, chain: Chain, why: str = RESUMING) -> None:
        """The chain is over. Where spares can stand in for the peers it lacks another takes its place."""
        self._replace(chain, why, self._spares.successors(chain))

    def _replace(self, chain: Chain, why: str, found: Found | None) -> None:
        """The chain is over, and what was `found` takes its place.

        Answers that had begun go on there, or else go back to the line, first in it.
        """
        inherits = found is not None and self._spares.inherit(chain, found[1])
        self.chains.end(chain, found[1] if found is not None and inherits else ())
        if chain.sessions and self._broken_at is None:
            self._broken_at = self._clock()
        going_on = [session for session in chain.sessions if self._survives(session, why)]
        heir = self._start(*found, chain if inherits else None) if found is not None else None
        if heir is not None and inherits:
            heir.inherit(going_on)
            return
        for session in [*chain.leaving, *going_on]:
            session.rewind()  # those that made way are in the line already
        for session in going_on:
            self.line.join(session)

    def _survives(self, session: Session, why: str) -> bool:
        """Tell a session that its chain is over; it ends when that was once too often."""
        session.recoveries += why is RESUMING
        if session.recoveries > MAX_RECOVERIES:
            self._fail([session], PipelineLost(f"peers left {session.recoveries} times during this answer"))
            return False
        session.outbox.put(Event(notice=room_pb2.Notice(text=why)))
        return True

    def _make_room(self, chain: Chain) -> None:
        for session in chain.make_room():
            session.outbox.put(Event(notice=room_pb2.Notice(text=MADE_WAY)))
            self.line.join(session)

    def _admit(self, chains: list[Chain]) -> None:
        """Let those who wait run, in the line's order: at a chain that the one before waits for nobody overtakes it."""
        for session in self.line.order(self.running):
            if not chains:
                return
            if session.most_tokens > self.effective_ctx:  # the chain it was checked for is gone
                self._end(
                    session, ContextLengthExceeded(self.effective_ctx, len(session.job.prompt), session.job.max_new)
                )
                continue
            if self.chains.leaves(session):
                return
            fitting = [chain for chain in chains if session.most_tokens <= chain.most_positions]
            wanted = by_preference(session, [chain for chain in fitting if chain.has_place])
            if wanted and wanted[0].cache.awaits(session):
                continue
            if not any(chain.admit(session) for chain in wanted):
                chains = [chain for chain in chains if chain not in fitting]
                continue
            self.line.admit(session)
            if not session.started:
                session.began_at = self._clock()
                self._go_on(session, session.begin)

    def _send(self, chain: Chain) -> None:
        self.drafting.ask(chain)
        while (plan := next_frame(chain.sessions, chain.in_flight, chain.limits, chain.owed)) is not None:
            self._audits.send(chain, chain.with_drafts(plan))
        if not self.drafting.wants_a_say(chain):
            chain.send_ahead()

    def _tell_places(self) -> None:
        for at, session in enumerate(self.line.order(self.running)):
            if not session.started:
                session.tell_place(at + 1, self.pace.wait(at + 1, len(self.running)))

    # ------------------------------------------------------------ what others see

    @property
    def model_id(self) -> str:
        return f"pooled/{self.config.model_name or self.model.slug}"

    @property
    def effective_ctx(self) -> int:
        """Tokens a conversation may have: the room's setting, or less where the peers hold less."""
        return min(self.ctx, self.chains.most_positions) if len(self.chains) else self.ctx

    def outlook(self, spare: Member) -> room_pb2.Outlook | None:
        """What a spare would change for the chain whose slice it holds, where that is known."""
        return self._spares.outlook(spare)

    def state(self) -> room_pb2.RoomState:
        """What bridges and `pooled status` are told."""
        return report.room_state(self)

    def peers(self) -> list[room_pb2.PeerState]:
        """What the host is told of its peers: those that are here, then those that were put out."""
        return [*report.peer_states(self), *report.removed_peers(self)]

    def requests(self) -> list[room_pb2.RequestState]:
        """What the host is told of the requests that run and those that wait, in the line's order."""
        waiting = enumerate(self.line.order(self.running), start=1)
        return [
            *(session.told("running") for session in self.running),
            *(session.told("waiting", ahead) for ahead, session in waiting),
        ]

    @property
    def kept(self) -> Kept:
        """What the next run of this room takes over."""
        return Kept(self.code, self.model.source, self.roster.kept, tuple(self.dealer.latest))
