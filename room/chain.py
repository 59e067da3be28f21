"""A chain of peers that together hold all layers: its pages, and the frames on their way through it."""

import hashlib
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from protos import peer_pb2, room_pb2
from protos.lanes import LANES, Lane
from protos.outbox import Outbox
from room.cache import Cache
from room.config import RoomConfig
from room.deal import LEAST_TOKENS, UNMEASURED, Deal, Slice
from room.errors import InternalError
from room.members import DTYPE_BYTES, Member, Span, State
from room.model import Model
from room.pages import PAGE
from room.rebuild import can_go_on, interrupt, share_out
from room.schedule import FramePlan, Limits, Share, frame_behind
from room.session import Session
from room.tuning import Tuning
from room.wire import AUTO, NAMES, fitting, row_bytes

log = logging.getLogger("pooled.room")


@dataclass(frozen=True)
class Stage:
    member: Member
    slice: Slice
    link_token: str
    """What the stage before it presents."""


class Chain:
    """One deal at work. An epoch is never used twice, so what a former chain's peers still send is told apart."""

    def __init__(
        self,
        epoch: int,
        number: int,
        deal: Deal,
        members: Sequence[Member],
        model: Model,
        config: RoomConfig,
        clock: Callable[[], float],
        former: "Chain | None" = None,
    ) -> None:
        """`former` is the chain in which it replaces peers, while the others keep their pages."""
        max_running = config.max_running
        self.epoch = epoch
        self.number = number
        """Among the room's chains, for people."""
        self.deal = deal
        self.model = model
        self._wire, self._forms = NAMES[config.wire], config.forms
        self._max_running = max_running
        self._former = former
        self.cache: Cache = former.cache if former else self._empty_cache(deal.pages)
        self.sessions: list[Session] = []  # running, in order of admission
        self.stages = [
            Stage(member, part, secrets.token_urlsafe(16)) for member, part in zip(members, deal.slices, strict=True)
        ]
        machines = [stage.member.hello.machine for stage in self.stages]
        self.tuning = Tuning(machines, config.speculate, clock)
        limits = self.limits
        self.max_frame_tokens = max(limits.prefill_tokens, max_running * limits.decode_tokens)
        self.owed = 0.0
        """As the latest frame says (FramePlan.owed)."""
        self._flight: dict[int, FramePlan] = {}
        self._looping: set[int] = set()
        """Steps on their way whose tokens the first stage will get from the last one."""
        self.leaving: list[Session] = []
        """Ended, or made to make way. What they hold is free once no frame on its way names it."""
        self._rebuilt_until = 0  # the end of the last slice that was replaced
        self.leave_by: float | None = None
        """When the peers that are to leave it do so, whoever takes over."""
        self._step = 0

    def __repr__(self) -> str:
        state = "ready" if self.ready else "loading"
        frames = f"{len(self._flight)} frames in flight"
        return f"<Chain {self.number} [{len(self.stages)} stages, {state} | {frames} | {self.cache.pool}]>"

    @property
    def ready(self) -> bool:
        return all(stage.member.task is State.READY for stage in self.stages)

    @property
    def flows(self) -> bool:
        """Whether something new may go through: every peer holds its slice and none is suspect."""
        return all(stage.member.serves for stage in self.stages)

    @property
    def stays(self) -> bool:
        """Whether none of its peers wants out, nor has to."""
        return all(stage.member.stays for stage in self.stages)

    @property
    def has_place(self) -> bool:
        """Whether it may answer one session more."""
        return len(self.sessions) < self._max_running

    def step_seconds(self, sessions: int) -> float:
        """What a step of so many sessions should take, were each computed alone: to compare chains by.

        That is one's way through all stages, or else what all of them take at the slowest stage.
        """
        stages = [(stage.member.place, stage.slice.end - stage.slice.start) for stage in self.stages]
        seconds = [layers * (place.layer_seconds or UNMEASURED) for place, layers in stages]
        way = sum(seconds) + sum(place.hop_seconds for place, _ in stages)
        return max(way, sessions * max(seconds))

    @property
    def limits(self) -> Limits:
        return self.tuning.limits

    @property
    def in_flight(self) -> Counter[Lane]:
        """Frames in the pipeline, by lane: one that was sent ahead is not, until the one before it is through."""
        return Counter(plan.lane for plan in self._flight.values() if plan.follows not in self._flight)

    @property
    def passes_back(self) -> bool:
        """Whether the last peer gives the first one what it draws straight."""
        link = self.stages[-1].member.link
        return len(self.stages) == 1 or (link is not None and link.direct)

    @property
    def flying(self) -> Iterable[FramePlan]:
        """The frames on their way."""
        return self._flight.values()

    @property
    def rebuilding(self) -> bool:
        """Peers were replaced and lack what running sessions build on: nobody else may run yet."""
        return any(session.rebuilding for session in self.sessions)

    @property
    def lacks_until(self) -> int:
        """The end of the last slice whose replacement may still lack something; 0: all is rebuilt."""
        unfinished = self.rebuilding or any(plan.rebuilds for plan in self.flying)
        return self._rebuilt_until if unfinished else 0

    def holds(self, member: Member) -> bool:
        return any(stage.member is member for stage in self.stages)

    def _place(self, member: Member) -> int | None:
        """Which of the stages is the member's, from 0; None where it has none here."""
        return next((at for at, stage in enumerate(self.stages) if stage.member is member), None)

    def span_of(self, member: Member) -> Span | None:
        return next(((each.slice.start, each.slice.end) for each in self.stages if each.member is member), None)

    @property
    def spans(self) -> list[Span]:
        """Of its stages, first to last."""
        return [(stage.slice.start, stage.slice.end) for stage in self.stages]

    def assignments(self) -> Iterator[tuple[Member, room_pb2.Assignment]]:
        """What to tell each peer, first to last."""
        for at, stage in enumerate(self.stages):
            after = self.stages[(at + 1) % len(self.stages)] if len(self.stages) > 1 else None
            yield (
                stage.member,
                room_pb2.Assignment(
                    epoch=self.epoch,
                    manifest=bytes.fromhex(self.model.manifest),
                    start=stage.slice.start,
                    end=stage.slice.end,
                    layers=self.model.shape.layers,
                    pages=self.deal.pages,
                    state_slots=self.deal.state_slots,
                    next_addresses=after.member.hello.link_addresses if after else (),
                    next_token=after.link_token if after else "",
                    next_certificate=after.member.hello.certificate if after else b"",
                    link_token=stage.link_token if len(self.stages) > 1 else "",
                    max_frame_tokens=self.max_frame_tokens,
                    wire=self._wire,
                    quant=self._forms.quant,
                    kv=self._forms.kv,
                    least_pages=min(self.deal.pages, LEAST_TOKENS // PAGE),
                    keeps=self._former.epoch if self._former and self._former.holds(stage.member) else 0,
                ),
            )

    # ------------------------------------------------------------ memory

    def open(self) -> list[Session]:
        """All slices are loaded: have as many pages as the peer with the least memory has room for.

        Sessions that it inherited go on with what they hold; those are returned that have to begin anew.
        """
        pages = min(self.deal.pages, *(stage.member.pages for stage in self.stages))
        if pages < self.deal.pages:
            log.info("fewer pages fit than were dealt", extra={"pages": pages, "dealt": self.deal.pages})
        lacking = [stage.slice.end for stage in self.stages if not stage.member.kept]
        former, self._former = self._former, None
        if former is None or self.cache.pool.pages > pages or len(lacking) == len(self.stages):
            return self._begin_anew(pages)
        self._rebuilt_until = max([self._rebuilt_until, *lacking])
        begin_anew = [session for session in self.sessions if not can_go_on(session)]
        for session in begin_anew:
            self.dismiss(session)
        for session in self.leaving:
            session.spoilt, session.in_flight = True, 0
        self.reap()
        self.cache.forget()
        share_out(self.sessions)
        return begin_anew

    def _begin_anew(self, pages: int) -> list[Session]:
        begin_anew = self.sessions
        for session in [*self.sessions, *self.leaving]:
            session.rewind()
        self.sessions, self.leaving, self.cache = [], [], self._empty_cache(pages)
        return begin_anew

    def inherit(self, sessions: Sequence[Session]) -> None:
        """Answer these sessions of the former chain. Its others end, or are in the line."""
        assert self._former is not None
        self._rebuilt_until = self._former.lacks_until
        interrupt(sessions, self._former.flying)
        self.sessions = list(sessions)
        self.leaving = [each for each in [*self._former.sessions, *self._former.leaving] if each not in self.sessions]

    def _empty_cache(self, pages: int) -> Cache:
        return Cache(pages, self.deal.state_slots, self._max_running)

    @property
    def most_positions(self) -> int:
        """That a session may have: pages for them, and what the slices themselves can place."""
        limits = (stage.member.position_limit for stage in self.stages)
        return min([self.cache.pool.pages * PAGE, *(limit for limit in limits if limit)])

    # ------------------------------------------------------------ links

    def link_measured(self, member: Member, link: room_pb2.LinkState) -> None:
        """The way from `member` to the stage after it is such: let it send in a form that crosses in time."""
        at = self._place(member)
        assert at is not None
        member.link = link
        if at + 1 == len(self.stages):
            return
        after = self.stages[at + 1].member.hello
        # On one machine the way is never too slow, however little it showed while others computed.
        near = link.direct and member.hello.machine == after.machine and not after.forwarded
        width, dtype_bytes = self.model.shape.hidden_size, DTYPE_BYTES[member.hello.dtype]
        rate = max(link.bytes_per_second, 1)
        wire = self._wire if self._wire != AUTO or near else fitting(rate, width, dtype_bytes)
        self.tuning.crosses(at, 0.0 if near else row_bytes(wire, width, dtype_bytes) / rate)
        log.info("link measured", extra={"peer": member.name, "direct": link.direct, "wire": wire})
        if self._wire == AUTO:
            member.outbox.put(room_pb2.ToMember(wire=room_pb2.WireChoice(epoch=self.epoch, wire=wire)))

    # ------------------------------------------------------------ sessions

    def admit(self, session: Session) -> bool:
        """Let the session run; False when there are no pages or no state slot for what it has.

        What the chain still holds of its prompt is not computed again.
        """
        if not self.cache.enter(session):
            return False
        if not session.started:
            session.cached = session.sent
        self.sessions.append(session)
        return True

    def make_room(self) -> list[Session]:
        """Give every running session pages for the tokens it has; the sessions that had to make way for others.

        The latest admitted goes first. The first admitted never has to, so that somebody always gets on; who made way
        needs only its tokens to go on later, and finds in the cache what nobody wanted in the meantime.
        """
        made_way: list[Session] = []
        for session in list(self.sessions):
            # Pages that are on their way back are worth waiting for.
            while session in self.sessions and not self.cache.grow(session) and not self.leaving:
                made_way.append(self.sessions[-1])
                self.dismiss(self.sessions[-1])
                self.reap()
        return made_way

    def dismiss(self, session: Session) -> None:
        """The session does not go on here, or not now."""
        if session in self.sessions:
            self.sessions.remove(session)
            self.leaving.append(session)
            share_out(self.sessions)

    def reap(self) -> None:
        """Free what those that leave hold, if none of their frames is on its way."""
        for session in [session for session in self.leaving if not session.in_flight]:
            self.leaving.remove(session)
            broken_off = session.rebuilding
            session.spoilt = session.spoilt or broken_off
            self.cache.leave(session)
            if broken_off:
                self.cache.forget()

    # ------------------------------------------------------------ frames

    def with_drafts(self, plan: FramePlan) -> FramePlan:
        """The frame with guesses at what follows, where they pay."""
        loops = self.passes_back and all(share.session.foreseeable for share in plan.shares)
        return self.tuning.with_drafts(plan, self.cache.may_guess, loops=loops)

    def send(self, plan: FramePlan) -> int:
        """Put a frame on its way to the first stage, and how to sample it to the last; its step."""
        self._step += 1
        until = self._rebuilt_until if plan.rebuilds else 0
        frame = peer_pb2.Frame(
            epoch=self.epoch,
            step=self._step,
            lane=plan.lane,
            until=until,
            audit=plan.audited,
            loops=plan.loops and self.passes_back,
            follows=plan.follows,
        )
        if frame.loops:
            self._looping.add(self._step)
        specs = peer_pb2.SamplingPlan(epoch=self.epoch, step=self._step)
        for share in plan.shares:
            session = share.session
            if share.draft:
                self.cache.guesses(session)
            frame.segments.append(self._segment(share))
            if share.ends:
                spec = specs.specs.add(params=session.job.params, counts=session.counts())
                spec.masks.extend(self._masks_known(plan.lane, share.draft.masks or (session.mask,)))
            session.sent += share.tokens
            session.in_flight += 1
        self.owed = plan.owed
        self._flight[self._step] = plan
        self.tuning.sent(self._step, plan)
        if specs.specs:
            self._lane(-1, plan.lane).put(peer_pb2.ToPeer(plan=specs))
        self._lane(0, plan.lane).put(peer_pb2.ToPeer(frame=frame))
        return self._step

    def _segment(self, share: Share) -> peer_pb2.Segment:
        session = share.session
        return peer_pb2.Segment(
            session=session.number,
            start=session.sent,
            ids=[*session.tokens[session.sent : session.sent + share.tokens], *share.draft.ids],
            pages=session.runs,
            state=self.cache.state(session),
            sampled=share.sampled,
            copy=self.cache.copy(session),
            drawn=share.drawn,
        )

    def _masks_known(self, lane: Lane, masks: Sequence[bytes | None]) -> list[bytes]:
        """How a sampling spec names masks: not at all where all tokens are allowed everywhere."""
        if all(mask is None for mask in masks):
            return []
        return [b"" if mask is None else self._mask_known(lane, mask) for mask in masks]

    def _mask_known(self, lane: Lane, mask: bytes) -> bytes:
        """The mask's hash, once the last peer has been sent the mask itself."""
        digest = hashlib.sha256(mask).digest()
        known = self.stages[-1].member.masks[lane]
        if digest not in known:
            known.add(digest, mask)
            self._lane(-1, lane).put(peer_pb2.ToPeer(mask=peer_pb2.TokenMask(hash=digest, bits=mask)))
        return digest

    def send_ahead(self) -> None:
        """Put frames behind those that are in the pipeline, so that peers go on without waiting for the room."""
        if not self.passes_back:
            return
        self.tuning.way = sum(self.stages[at].member.place.hop_seconds for at in (-1, 0))
        behind = {plan.follows: step for step, plan in self._flight.items() if plan.follows in self._flight}
        for first in [step for step, plan in self._flight.items() if plan.follows not in self._flight]:
            last, number = first, 0
            while last in behind:
                last, number = behind[last], number + 1
            while number < self.tuning.ahead(self._flight[last].rows) and (plan := self._behind(last)) is not None:
                last, number = self.send(plan), number + 1

    def _behind(self, step: int) -> FramePlan | None:
        """What should follow a frame on its way."""
        if step not in self._looping:
            return None
        plan = frame_behind(step, self._flight[step], self.sessions, self.in_flight, self.limits, self.owed)
        guesses_pay = plan is not None and self.tuning.with_drafts(plan, self.cache.may_guess, loops=True) != plan
        return None if guesses_pay else plan

    def relay(self, sender: Member, frame: peer_pb2.Frame) -> None:
        """Pass a frame on to the stage after the sender's, which the sender cannot reach itself."""
        at = self._place(sender)
        if at is None or frame.epoch != self.epoch or frame.lane not in LANES:
            return
        after = (at + 1) % len(self.stages)
        if after or frame.HasField("drawn") or frame.HasField("probe"):  # what the first computes comes from the room
            self._lane(after, frame.lane).put(peer_pb2.ToPeer(frame=frame))

    def relay_back(self, sender: Member, reply: peer_pb2.LinkReply) -> None:
        """Pass on to the stage before the sender's what it answers to a relayed probe."""
        at = self._place(sender)
        if reply.epoch == self.epoch and at is not None and reply.lane in LANES:
            self._lane(at - 1, reply.lane).put(peer_pb2.ToPeer(reply=reply))

    def settle(self, epoch: int, step: int, stages: Sequence[peer_pb2.StageTime] = ()) -> FramePlan | None:
        """A frame is through the chain, done or failed: forget it. None when it is late, foreign or a duplicate.

        `stages` is what each stage spent on it, where it is done.
        """
        plan = self._flight.pop(step, None) if epoch == self.epoch else None
        if plan is None:
            return None
        self._looping.discard(step)
        self.tuning.came_back(step, stages, sum(session.decoding for session in self.sessions))
        if plan.rows == 1 and len(stages) == len(self.stages):
            for stage, spent in zip(self.stages, stages, strict=True):
                layers = stage.slice.end - stage.slice.start
                stage.member.place.took(spent.computed_us / 1e6 / layers)
        for session in (share.session for share in plan.shares):
            session.in_flight -= 1
        return plan

    def failed(self, epoch: int, step: int) -> FramePlan | None:
        """A frame could not be computed: it is settled, and what was sent ahead behind it never comes about."""
        plan = self.settle(epoch, step)
        lost = {step} if plan is not None else set()
        for behind, other in list(self._flight.items()):  # in the order they were sent
            if other.follows in lost:
                lost.add(behind)
                for share in other.shares:
                    share.session.sent -= share.tokens
                self.settle(epoch, behind)
        return plan

    def ends_at(self, step: int) -> Member:
        """The peer from which the frame's result comes."""
        plan = self._flight.get(step)
        rebuilds = plan is not None and plan.rebuilds
        ends = (stage.member for stage in self.stages if rebuilds and stage.slice.end == self._rebuilt_until)
        return next(ends, self.stages[-1].member)

    def before(self, member: Member) -> Member:
        """The peer that sends to this one: the last one to the first."""
        at = self._place(member)
        assert at is not None
        return self.stages[at - 1].member

    def check(self, plan: FramePlan, result: peer_pb2.FrameResult) -> None:
        """Raise InternalError unless the result is one that a sound last peer can give for this plan."""
        wanted = [share.sampled for share in plan.shares if share.sampled]
        given = [len(segment.tokens) for segment in result.segments]
        vocab = self.model.shape.vocab_size
        tokens = [token for segment in result.segments for token in segment.tokens]
        chances = [(token.id, token.logprob) for token in tokens]
        chances += [(chance.id, chance.logprob) for token in tokens for chance in token.top]
        if wanted != given or any(id >= vocab or math.isnan(logprob) for id, logprob in chances):
            raise InternalError("it returned a result that does not fit its frame")

    def _lane(self, at: int, lane: Lane) -> Outbox[peer_pb2.ToPeer]:
        return self.stages[at].member.lanes[lane]
