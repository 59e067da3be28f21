"""Who is to hold what, given who is here: the rules that stand around `deal`. Free of I/O."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from protos import room_pb2
from protos.progress import amount
from room.config import RoomConfig
from room.deal import LEAST_TOKENS, UNMEASURED, USABLE, Deal, Offer, Shortfall, Slice, deal, fullest, holds
from room.division import MUCH_SLOWER, divided
from room.errors import Loading, NoPipeline, NotReady, TooLittleMemory
from room.handover import stand_ins
from room.members import DTYPE_BYTES, Member, Roster, Span, State
from room.model import ModelShape
from room.outlook import Prospect
from room.placement import MOST_EXACT, Placement, fastest, predicted

RETURN_WITHIN = 30.0
"""Seconds a room that was restarted waits for the peers of its latest deal before it deals to whoever is here."""

_AS_QUICK = 1.01
"""Predictions that differ by less are taken for equal."""

Slices: TypeAlias = tuple[Slice, ...]
Found: TypeAlias = tuple[Deal, list[Member]]
"""A deal, and the members that get its slices, in order."""


class Dealer:
    """Remembers the latest deals, also when their chains are gone. `ctx` is in tokens; `now` counts monotonic seconds.

    `latest` come from before a restart: their peers are waited for.
    """

    def __init__(
        self, config: RoomConfig, shape: ModelShape, ctx: int, *, latest: Sequence[Slices] = (), now: float = 0.0
    ) -> None:
        self.latest = list(latest)
        """Of each chain at work, and of those whose peers are still there in part. No peer is in two."""
        self._config = config
        self._shape = shape
        self.ctx = ctx
        self._first = not latest
        self._return_by = now + RETURN_WITHIN if latest else now
        self._in_vain: list[tuple[str, Span | None]] = []  # who was not enough for one chain more

    def __repr__(self) -> str:
        deals = ("-".join(f"{part.start}:{part.end}" for part in slices) for slices in self.latest)
        return f"<Dealer [{', '.join(deals) or 'no deal yet'}]>"

    def deal(self, roster: Roster, free: Sequence[Member], now: float) -> Found | NotReady:
        """Slices and who gets them; else why there is no deal. `free` are in no chain; candidates() of the roster.

        The peers of a former deal get their slices back; a first deal waits for as many as the host said; then others
        stand in for those that are gone, so that nobody else has to load; else as few as hold the model.
        """
        return (
            self._as_before(roster, free)
            or self._waits(roster, now)
            or self._with_stand_ins(roster, free)
            or self._anew(roster)
        )

    def another(self, roster: Roster, free: Sequence[Member], busy: Sequence[Deal], now: float) -> Found | None:
        """The same for one chain more beside those `busy`, if there may be one and the peers that are free suffice."""
        if not free or len(busy) >= (self._config.chains or len(roster)):
            return None
        here = [(member.id, member.held) for member in free]
        if here == self._in_vain:
            return None
        found = self._as_before(roster, free)
        if found is None and not self.awaits(now):
            found = self._with_stand_ins(roster, free) or self.beside(roster, free, busy)
            self._in_vain = here if found is None else []
        return found

    def beside(self, roster: Roster, free: Sequence[Member], busy: Sequence[Deal]) -> Found | None:
        """A further chain: of as many peers as the first, where the host said how many, and not much slower."""
        wanted = self._config.first_deal_peers
        chains = self._config.chains and self._config.chains - len(busy)
        if chains == 0 or not free or (wanted is not None and len(free) < wanted):
            return None
        found = self._among(roster, free, chains)
        if isinstance(found, NotReady):
            return None
        if self._config.chains is None:
            rates = [self.rate(roster, each) for each in busy]
            if self.rate(roster, found[0]) * MUCH_SLOWER < max(rates):
                return None
        return found

    def afresh(self, roster: Roster) -> list[Deal]:
        """All chains that would come about if everything were dealt anew."""
        found: Found | NotReady | None = self._anew(roster)
        deals: list[Deal] = []
        free = roster.candidates()
        while found is not None and not isinstance(found, NotReady):
            deals.append(found[0])
            free = [member for member in free if member not in found[1]]
            found = self.beside(roster, free, deals)
        return deals

    def rate(self, roster: Roster, found: Deal) -> float:
        """Tokens a second that one answer should get of a chain; 0 where one of its peers is gone."""
        members = [roster.get(part.peer) for part in found.slices]
        offers = roster.offers([member for member in members if member is not None], self._config.forms)
        return 1 / predicted(offers, found.slices) if len(offers) == len(members) else 0.0

    def check(self, hello: room_pb2.Hello) -> None:
        """Raise TooLittleMemory where a peer could not hold any layer."""
        forms, dtype = self._config.forms, DTYPE_BYTES[hello.dtype]
        smallest = int(min(forms.layer_bytes(self._shape, at, at + 1, dtype) for at in range(self._shape.layers)))
        if hello.memory * USABLE < smallest:
            raise TooLittleMemory(amount(hello.memory), amount(smallest))

    def spares(self, roster: Roster, member: Member) -> bool:
        """Whether the others can hold the model without this peer."""
        others = [each for each in roster.candidates() if each is not member]
        return not isinstance(self._among(roster, others, chains=1), NotReady)

    def relieve(self, roster: Roster, member: Member, slices: Slices) -> bool:
        """Count on so much less of a peer's memory that it is dealt fewer layers than in its chain of `slices`.

        That chain's deal is forgotten. False, and all is as before, where no such deal is possible.
        """
        place, before = member.place, member.place.withheld
        counted_on, layers = member.hello.memory - before, _layers_of(member, slices)
        for fewer in range(layers - 1, -1, -1):
            place.withheld = member.hello.memory - counted_on * fewer // layers
            found = self._anew(roster)
            if not isinstance(found, NotReady) and _layers_of(member, found[0].slices) < layers:
                self.latest = [each for each in self.latest if each != slices]
                return True
        place.withheld = before
        return False

    def awaits(self, now: float) -> bool:
        """Whether peers of deals from before a restart may still come back."""
        return now < self._return_by

    def forget(self) -> None:
        """Deal as if for the first time, to whoever is here."""
        self.latest, self._in_vain, self._first, self._return_by = [], [], False, 0.0

    def started(self, found: Deal) -> None:
        """This deal is at work now. Others with peers of it are no more."""
        peers = {part.peer for part in found.slices}
        self.latest = [slices for slices in self.latest if peers.isdisjoint(part.peer for part in slices)]
        self.latest.append(found.slices)
        self._first = False

    def holds(self, member: Member, part: Slice) -> bool:
        """Whether the peer lends enough for this slice."""
        offer = member.offer(self._config.forms, UNMEASURED)
        return holds(self._shape, offer, part.start, part.end, tokens=self._least_tokens, slots=self._slots)

    def prospect(self, offers: Sequence[Offer]) -> Prospect:
        """The quickest deal to some of these that the last of them, a spare, is part of."""
        tokens, slots = self._least_tokens, self._slots
        best = fastest(self._shape, offers, tokens=tokens, slots=slots, including=offers[-1])
        return Prospect(tuple(offers), best)

    def fits(self, roster: Roster, members: Sequence[Member], slices: Sequence[Slice]) -> Deal | Shortfall:
        """A deal of just these slices, in order, to these members."""
        return self._try(roster.offers(members, self._config.forms), [part.end - part.start for part in slices])

    def missing(self, roster: Roster) -> str:
        """Which layers nobody holds: those of the peers that left, or all where nothing was dealt yet."""
        here = {member.id for member in roster.candidates()}
        gone = [[part for part in slices if part.peer not in here] for slices in self.latest]
        partly = [parts for parts, slices in zip(gone, self.latest, strict=True) if len(parts) < len(slices)]
        ranges = min(partly, key=len, default=[Slice("", 0, self._shape.layers)])
        return " and ".join(f"layers {part.start} to {part.end - 1}" for part in ranges) + " have no holder"

    def _as_before(self, roster: Roster, free: Sequence[Member]) -> Found | None:
        for slices in self.latest:
            members = [member for member in _holders(slices, free) if member is not None]
            if found := self._again(roster, slices, members):
                return found
        return None

    def _with_stand_ins(self, roster: Roster, free: Sequence[Member]) -> Found | None:
        here = {member.id for member in roster.candidates()} - {member.id for member in free}
        for slices in self.latest:
            if any(part.peer in here for part in slices):
                continue  # at work
            members = stand_ins(slices, _holders(slices, free), free, self.holds)
            if found := self._again(roster, slices, members or []):
                self.latest.remove(slices)
                return found
        return None

    def _again(self, roster: Roster, slices: Slices, members: list[Member]) -> Found | None:
        """Former slices to these members, in order, if there is one for each."""
        if not members or len(members) < len(slices):
            return None
        found = self.fits(roster, members, slices)
        return (found, members) if isinstance(found, Deal) else None

    def _waits(self, roster: Roster, now: float) -> NotReady | None:
        here, wanted = roster.candidates(aside=True), self._config.first_deal_peers
        if self._first and wanted is not None and len(here) < wanted:
            return NoPipeline(f"{self.missing(roster)}: {len(here)} of {wanted} peers have joined")
        if self.awaits(now):
            before = [part.peer for slices in self.latest for part in slices]
            back = len({member.id for member in here} & set(before))
            return Loading(f"the room was restarted: {back} of its {len(before)} peers are back")
        return None

    def _anew(self, roster: Roster) -> Found | NotReady:
        """Without those set aside, if that is possible."""
        chains = self._config.chains
        found = self._among(roster, roster.candidates(), chains)
        return self._among(roster, roster.candidates(aside=True), chains) if isinstance(found, NotReady) else found

    def _among(self, roster: Roster, candidates: Sequence[Member], chains: int | None) -> Found | NotReady:
        """A chain of some of the candidates, who are to make up to so many."""
        if not candidates:
            return NoPipeline(f"{self.missing(roster)}: {_nobody(roster)}")
        wanted = self._config.first_deal_peers
        offers = self._leaving_others(roster.offers(candidates, self._config.forms), chains)
        count = min(wanted, len(offers)) if wanted else None
        found = self._fastest(offers, count) or self._to_fewest(offers, count)
        if isinstance(found, Deal):
            by_id = {member.id: member for member in candidates}
            return found, [by_id[part.peer] for part in found.slices]
        return NoPipeline(f"{self.missing(roster)}: {found.reason}")

    def _leaving_others(self, offers: Sequence[Offer], chains: int | None) -> Sequence[Offer]:
        """Those of the offers to make a chain of so that the others make further ones: all where these cannot."""
        if chains == 1 or self._config.layers:
            return offers
        division = divided(
            self._shape,
            offers if self._config.deal == "speed" else _alike(offers),
            tokens=self._least_tokens,
            slots=self._slots,
            peers=self._config.devices,
            chains=chains,
        )
        if len(division) < 2:
            return offers
        first = {offer.peer for offer in division[0]}
        return [offer for offer in offers if offer.peer in first]

    def _to_fewest(self, offers: Sequence[Offer], peers: int | None) -> Deal | Shortfall:
        """The deal to as few peers as hold the layers in the order of their arrival, else to those that do in another.

        `peers` fixes how many they are.
        """
        found = Shortfall("")
        for count in [peers] if peers else range(1, len(offers) + 1):
            tried = self._least_full(offers, count)
            if isinstance(tried, Deal):
                return tried
            found = tried
        if self._config.layers is None and (best := self._placed(_alike(offers), peers)) is not None:
            return self._try(best.offers, best.layers)
        return found

    def _least_full(self, offers: Sequence[Offer], count: int) -> Deal | Shortfall:
        """The deal to so many peers whose fullest one is least full; of equal ones that to whoever came first.

        Every set is tried among the MOST_EXACT peers that lend most, which are the least full where all compute alike.
        """
        most = sorted(offers, key=lambda offer: -offer.memory)[: max(MOST_EXACT, count)]
        among = [offer for offer in offers if offer in most] if self._config.layers is None else offers[:count]
        tried = [self._try(each, self._config.layers) for each in combinations(among, count)]
        deals = [found for found in tried if isinstance(found, Deal)]
        return min(deals, key=lambda found: fullest(self._shape, offers, found.slices)) if deals else tried[0]

    def _fastest(self, offers: Sequence[Offer], peers: int | None) -> Deal | None:
        """The deal with which a token takes the least time, where that is what the host wants."""
        if self._config.deal != "speed" or self._config.layers:
            return None
        best = self._placed(offers, peers)
        return None if best is None else self._evened(offers, best)

    def _placed(self, offers: Sequence[Offer], peers: int | None) -> Placement | None:
        return fastest(self._shape, offers, tokens=self._least_tokens, slots=self._slots, peers=peers)

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
        return min(self.ctx, LEAST_TOKENS)

    @property
    def _slots(self) -> int:
        """Recurrent states that it must have room for."""
        return self._config.max_running if self._shape.hybrid else 0

    def _try(self, offers: Sequence[Offer], layers: Sequence[int] | None) -> Deal | Shortfall:
        return deal(
            self._shape,
            offers,
            ctx=self.ctx,
            sessions=self._config.max_running,
            layers=layers if layers and len(layers) == len(offers) else None,
        )


def _holders(slices: Slices, free: Sequence[Member]) -> list[Member | None]:
    """Who can serve former slices again, None for who is gone or was set aside."""
    here = {member.id: member for member in free}
    return [here.get(part.peer) for part in slices]


def _alike(offers: Sequence[Offer]) -> list[Offer]:
    """The same memory, with no difference in speed."""
    return [replace(offer, layer_seconds=UNMEASURED, hop_seconds=0.0) for offer in offers]


def _layers_of(member: Member, slices: Slices) -> int:
    return sum(part.end - part.start for part in slices if part.peer == member.id)


def _nobody(roster: Roster) -> str:
    failed = [f"{member.name} refused: {member.why}" for member in roster if member.task is State.FAILED]
    paused = [f"{member.name} is paused" for member in roster if member.place.paused]
    return "; ".join([*failed, *paused]) or ("no peer is here any more" if roster.misses_some else "no peer has joined")
