"""Spares: what they load ahead, whom they stand in for, and what they would change."""

import logging
from collections.abc import Sequence

from protos import room_pb2
from room.chain import Chain
from room.chains import Chains
from room.deal import Deal, Offer
from room.dealer import Dealer, Found
from room.forms import Forms
from room.handover import HANDOVER, reserves, stand_ins
from room.members import Member, Roster, Span
from room.model import Model

log = logging.getLogger("pooled.room")


class Spares:
    """The peers of a room that are in no chain."""

    def __init__(self, roster: Roster, dealer: Dealer, chains: Chains, model: Model, forms: Forms) -> None:
        self._roster = roster
        self._chains = chains
        self._dealer = dealer
        self._model = model
        self._forms = forms

    def __repr__(self) -> str:
        return f"<Spares [{', '.join(member.name for member in self.free())}]>"

    def free(self) -> list[Member]:
        """Those that a chain may have in place of its own peers."""
        return [member for member in self._roster.candidates() if self._chains.of(member) is None]

    # ------------------------------------------------------------ loading ahead

    def prepare(self) -> None:
        """Have spares load what they may have to take over at once."""
        free = self.free()
        settled = [chain for chain in self._chains if chain.ready and chain.stays] if free else []
        stages = [stage for chain in settled for stage in chain.stages]
        weights = [stage.member.weight_bytes for stage in stages]
        for member, span in reserves([stage.slice for stage in stages], weights, free, self._dealer.holds):
            self._load(member, span)

    def _load(self, member: Member, span: Span) -> None:
        if member.preparing == span:
            return
        member.preparing, member.held = span, None
        start, end = span
        manifest, layers = bytes.fromhex(self._model.manifest), self._model.shape.layers
        prepare = room_pb2.Prepare(manifest=manifest, start=start, end=end, layers=layers, quant=self._forms.quant)
        member.outbox.put(room_pb2.ToMember(prepare=prepare))

    def prepared(self, member: Member, prepared: room_pb2.Prepared) -> bool:
        """A spare has loaded a slice. False: it is not the one it was told last."""
        span = prepared.start, prepared.end
        if span != member.preparing:
            return False
        member.held, member.preparing = span, None
        member.place.took(prepared.layer_seconds)
        return True

    # ------------------------------------------------------------ handing over

    def stand_ins(self, chain: Chain) -> list[Member] | None:
        """The chain's members with a spare for each that is lost or leaves; None where the spares cannot hold that."""
        willing = self._roster.candidates()
        staying = [stage.member if stage.member in willing else None for stage in chain.stages]
        return stand_ins(chain.deal.slices, staying, self.free(), self._dealer.holds)

    def take_over(self, chain: Chain, now: float) -> bool:
        """Whether it is time for the peers that leave the chain to do so.

        It runs on until spares hold their slices. Where no spare can, it takes nothing new and runs until its answers
        have ended: whoever stays has to load other layers then, and holds one slice at a time.
        """
        if chain.leave_by is None:
            chain.leave_by = now + HANDOVER
        members = self.stand_ins(chain)
        ready = not chain.sessions if members is None else self._hold(chain, members)
        return ready or not chain.ready or now > chain.leave_by

    def _hold(self, chain: Chain, members: Sequence[Member]) -> bool:
        """Whether each of the members holds its slice of the chain; those that do not are told to load it."""
        lacking = [(each, span) for each, span in zip(members, chain.spans, strict=True) if each.held != span]
        for member, span in lacking:
            self._load(member, span)
        return not lacking

    def successors(self, chain: Chain) -> Found | None:
        """The chain's deal with spares in the places of those that are lost or leave, where that is possible."""
        members = self.stand_ins(chain)
        found = self._dealer.fits(self._roster, members, chain.deal.slices) if members is not None else None
        return (found, members) if members is not None and isinstance(found, Deal) else None

    def inherit(self, chain: Chain, members: Sequence[Member]) -> bool:
        """Whether answers of a chain go on with these members and with the pages that others than the spares hold.

        Not those of hybrid models, whose recurrent states cannot run twice. Where a spare has to load first, another
        chain is the quicker way on.
        """
        if self._model.shape.hybrid or not chain.ready or not chain.sessions:
            return False
        loaded = all(member.held == span for member, span in zip(members, chain.spans, strict=True))
        return loaded or not any(other.ready for other in self._chains if other is not chain)

    # ------------------------------------------------------------ what they would change

    def foretell(self, spare: Member) -> None:
        """Tell a spare what it would change for the chain whose slice it holds, where that is other than it was."""
        chain = self._backed_by(spare)
        if chain is None:
            return
        prospect = self._dealer.prospect(self._offers(chain, spare))
        if prospect == spare.prospect:
            return
        spare.prospect = prospect
        outlook = self.outlook(spare)
        if outlook is not None:
            spare.outbox.put(room_pb2.ToMember(outlook=outlook))

    def foretell_anew(self) -> None:
        """The same for one of those whose chain's peers have become quicker or slower since: a search takes long."""
        for spare in self.free():
            chain = self._backed_by(spare)
            if chain and (spare.prospect is None or spare.prospect.drifted(self._offers(chain, spare))):
                self.foretell(spare)
                return

    def outlook(self, spare: Member) -> room_pb2.Outlook | None:
        """What a spare would change, at the speeds of now; None where that is not known, or no deal can hold it."""
        chain = self._backed_by(spare)
        if chain is None or spare.prospect is None:
            return None
        seconds = spare.prospect.seconds(self._offers(chain, spare))
        if seconds is None:
            return None
        return room_pb2.Outlook(with_it=1 / seconds, without_it=self._dealer.rate(self._roster, chain.deal))

    def _backed_by(self, spare: Member) -> Chain | None:
        """The chain whose slice a spare holds."""
        return next((chain for chain in self._chains if chain.ready and spare.held in chain.spans), None)

    def _offers(self, chain: Chain, spare: Member) -> list[Offer]:
        """Of the chain's peers, in order, and of the spare."""
        return self._roster.offers([*(stage.member for stage in chain.stages), spare], self._forms)
