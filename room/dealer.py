"""Who is to hold what, given who is here: the rules that stand around `deal`. Free of I/O."""

from collections.abc import Sequence

from protos import room_pb2
from room.config import RoomConfig
from room.deal import LEAST_TOKENS, UNMEASURED, USABLE, Deal, Offer, Shortfall, Slice, deal, holds, size
from room.errors import Loading, NoPipeline, NotReady, TooLittleMemory
from room.handover import stand_ins
from room.members import DTYPE_BYTES, Member, Roster, State
from room.model import ModelShape
from room.placement import Placement, fastest, predicted

RETURN_WITHIN = 30.0
"""Seconds a room that was restarted waits for the peers of its latest deal before it deals to whoever is here."""


_AS_QUICK = 1.01
"""Predictions that differ by less are taken for equal."""


class Dealer:
    """Remembers the latest deal, also when its chain is gone. `ctx` is in tokens; `now` counts monotonic seconds.

    `latest` comes from before a restart: its peers are waited for.
    """

    def __init__(
        self, config: RoomConfig, shape: ModelShape, ctx: int, *, latest: Sequence[Slice] = (), now: float = 0.0
    ) -> None:
        self.latest = tuple(latest)
        self._config = config
        self._shape = shape
        self._ctx = ctx
        self._first = not latest
        self._return_by = now + RETURN_WITHIN if latest else now

    def __repr__(self) -> str:
        return (
            f"<Dealer [{', '.join(f'{part.peer} {part.start}:{part.end}' for part in self.latest) or 'no deal yet'}]>"
        )

    def deal(self, roster: Roster, now: float) -> tuple[Deal, list[Member]] | NotReady:
        """Slices and who gets them; else why there is no deal.

        The peers of the latest deal get their slices back; a first deal waits for as many as the host said; then
        others stand in for those that are gone, so that nobody else has to load; else as few as hold the model.
        """
        return self._as_before(roster) or self._waits(roster, now) or self._with_stand_ins(roster) or self._anew(roster)

    def check(self, hello: room_pb2.Hello) -> None:
        """Raise TooLittleMemory where a peer could not hold any layer."""
        forms, dtype = self._config.forms, DTYPE_BYTES[hello.dtype]
        smallest = int(min(forms.layer_bytes(self._shape, layer, dtype) for layer in range(self._shape.layers)))
        if hello.memory * USABLE < smallest:
            raise TooLittleMemory(size(hello.memory), size(smallest))

    def spares(self, roster: Roster, member: Member) -> bool:
        """Whether the others can hold the model without this peer."""
        others = [each for each in roster.candidates() if each is not member]
        return not isinstance(self._among(roster, others), NotReady)

    def forget(self) -> None:
        """Deal as if for the first time, to whoever is here."""
        self.latest, self._first, self._return_by = (), False, 0.0

    def started(self, found: Deal) -> None:
        """This deal is at work now."""
        self.latest, self._first, self._return_by = found.slices, False, 0.0

    def holds(self, member: Member, part: Slice) -> bool:
        """Whether the peer lends enough for this slice."""
        offer = member.offer(self._config.forms, UNMEASURED)
        return holds(self._shape, offer, part.start, part.end, tokens=self._least_tokens, slots=self._slots)

    def outlook(
        self, roster: Roster, members: Sequence[Member], slices: Sequence[Slice], newcomer: Member
    ) -> room_pb2.Outlook | None:
        """What `newcomer` would change for the chain of `members`; None where no deal with it is possible."""
        *offers, new = roster.offers([*members, newcomer], self._config.forms)
        tokens, slots = self._least_tokens, self._slots
        best = fastest(self._shape, [*offers, new], tokens=tokens, slots=slots, including=new)
        if best is None:
            return None
        return room_pb2.Outlook(with_it=1 / best.seconds, without_it=1 / predicted(offers, slices))

    def fits(self, roster: Roster, members: Sequence[Member], slices: Sequence[Slice]) -> Deal | Shortfall:
        """A deal of just these slices, in order, to these members."""
        return self._try(roster.offers(members, self._config.forms), [part.end - part.start for part in slices])

    def missing(self, roster: Roster) -> str:
        """Which layers nobody holds: those of the peers that left, or all where nothing was dealt yet."""
        here = {member.id for member in roster.candidates()}
        gone = [part for part in self.latest if part.peer not in here]
        ranges = gone if len(gone) < len(self.latest) else [Slice("", 0, self._shape.layers)]
        return " and ".join(f"layers {part.start} to {part.end - 1}" for part in ranges) + " have no holder"

    def _as_before(self, roster: Roster) -> tuple[Deal, list[Member]] | None:
        return self._again(roster, [member for member in self._holders(roster) if member is not None])

    def _with_stand_ins(self, roster: Roster) -> tuple[Deal, list[Member]] | None:
        members = stand_ins(self.latest, self._holders(roster), roster.candidates(), self.holds)
        return self._again(roster, members or [])

    def _holders(self, roster: Roster) -> list[Member | None]:
        """Of the latest slices: who can serve them again, None for who is gone or was set aside."""
        here = {member.id: member for member in roster.candidates()}
        return [here.get(part.peer) for part in self.latest]

    def _again(self, roster: Roster, members: list[Member]) -> tuple[Deal, list[Member]] | None:
        """The latest slices to these members, in order, if there is one for each."""
        if not members or len(members) < len(self.latest):
            return None
        found = self.fits(roster, members, self.latest)
        return (found, members) if isinstance(found, Deal) else None

    def _waits(self, roster: Roster, now: float) -> NotReady | None:
        here, wanted = roster.candidates(aside=True), self._config.first_deal_peers
        if self._first and wanted is not None and len(here) < wanted:
            return NoPipeline(f"{self.missing(roster)}: {len(here)} of {wanted} peers have joined")
        if now < self._return_by:
            back = sum(part.peer in {member.id for member in here} for part in self.latest)
            return Loading(f"the room was restarted: {back} of its {len(self.latest)} peers are back")
        return None

    def _anew(self, roster: Roster) -> tuple[Deal, list[Member]] | NotReady:
        """Without those set aside, if that is possible."""
        found = self._among(roster, roster.candidates())
        return self._among(roster, roster.candidates(aside=True)) if isinstance(found, NotReady) else found

    def _among(self, roster: Roster, candidates: list[Member]) -> tuple[Deal, list[Member]] | NotReady:
        if not candidates:
            return NoPipeline(f"{self.missing(roster)}: {_nobody(roster)}")
        wanted = self._config.first_deal_peers
        offers = roster.offers(candidates, self._config.forms)
        found: Deal | Shortfall | None = self._fastest(offers, min(wanted, len(candidates)) if wanted else None)
        sizes = [min(wanted, len(candidates))] if wanted else range(1, len(candidates) + 1)
        for count in sizes if found is None else ():
            found = self._try(offers[:count], self._config.layers)
            if isinstance(found, Deal):
                break
        if isinstance(found, Deal):
            by_id = {member.id: member for member in candidates}
            return found, [by_id[part.peer] for part in found.slices]
        return NoPipeline(f"{self.missing(roster)}: {found.reason if found else ''}")

    def _fastest(self, offers: Sequence[Offer], peers: int | None) -> Deal | None:
        """The deal with which a token takes the least time, where that is what the host wants."""
        if self._config.deal != "speed" or self._config.layers:
            return None
        best = fastest(self._shape, offers, tokens=self._least_tokens, slots=self._slots, peers=peers)
        return None if best is None else self._evened(offers, best)

    def _evened(self, offers: Sequence[Offer], best: Placement) -> Deal | None:
        """Where peers are equally quick it does not matter who has how many layers: then all are to be as full."""
        chosen = [offer for offer in offers if offer in best.offers]
        even = self._try(chosen, None)
        if isinstance(even, Deal) and predicted(chosen, even.slices) <= best.seconds * _AS_QUICK:
            return even
        found = self._try(best.offers, best.layers)
        return found if isinstance(found, Deal) else None

    @property
    def _least_tokens(self) -> int:
        """Positions that a peer must have room for beside its slice."""
        return min(self._ctx, LEAST_TOKENS)

    @property
    def _slots(self) -> int:
        """Recurrent states that it must have room for."""
        return self._config.max_running if self._shape.hybrid else 0

    def _try(self, offers: Sequence[Offer], layers: Sequence[int] | None) -> Deal | Shortfall:
        return deal(
            self._shape,
            offers,
            ctx=self._ctx,
            sessions=self._config.max_running,
            layers=layers if layers and len(layers) == len(offers) else None,
        )


def _nobody(roster: Roster) -> str:
    failed = [member for member in roster if member.task is State.FAILED]
    return "; ".join(f"{member.name} refused: {member.why}" for member in failed) or "no peer has joined"
