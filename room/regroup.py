"""Peers of a room that serves, put together otherwise so that they make more of it: when that pays. Free of I/O.

Peers that hold the whole model without anybody else make a further chain by themselves (`Dealer.another`). Where they
lack something that a chain has more of than it needs, one of them takes a place in that chain for which it has the
layers loaded already, and who had the place makes the further chain with the others: answers go on. All else would
have peers at work load other layers, and is done only while a room is at rest.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from room.chain import Chain
from room.chains import Chains
from room.deal import Deal
from room.dealer import Dealer, Found
from room.members import Member, Roster
from room.pages import PAGE
from room.spares import Spares

WORTH_IT = 1.25
"""Times as many tokens a second as now: less is not worth putting peers together otherwise."""

AT_REST = 30.0
"""Seconds without a request, and with nobody coming or going, after which a room is at rest."""

_MOST_TRIED = 4
"""Exchanges that are thought through: those first that set most memory free."""


@dataclass(frozen=True)
class Exchange:
    """A spare takes the place of one of a chain's peers."""

    chain: Chain
    found: Found
    """What the chain becomes."""


class Regroup:
    """Each state of peers and chains is looked at once."""

    def __init__(self, roster: Roster, dealer: Dealer, chains: Chains, spares: Spares, now: float) -> None:
        self._roster = roster
        self._dealer = dealer
        self._chains = chains
        self._spares = spares
        self._looked_at: Hashable = None  # for an exchange
        self._considered: Hashable = None  # for all anew
        self._seen: Hashable = None
        self._since = now  # this was seen, and nobody asked

    def __repr__(self) -> str:
        return f"<Regroup [{len(self._spares.free())} spares beside {len(self._chains)} chains]>"

    def exchange(self, now: float) -> Exchange | None:
        """The one after which the peers that are free make a further chain, if there is one.

        Spares have loaded what they are to hold in reserve by then.
        """
        free, here = self._spares.free(), self._state()
        if here == self._looked_at or self._dealer.awaits(now) or any(member.preparing for member in free):
            return None
        self._looked_at = here
        ways = sorted(self._ways(free), key=lambda way: way[2].hello.memory - way[1].hello.memory)
        tried = (self._tried(free, *way) for way in ways[:_MOST_TRIED])
        return next((found for found in tried if found is not None), None)

    def _ways(self, free: Sequence[Member]) -> Iterator[tuple[Chain, Member, Member]]:
        """Chains, those of their peers that lend more than a spare with the same layers, and that spare."""
        for chain in self._chains:
            if chain.flows and chain.stays and not chain.rebuilding:
                for stage, span in zip(chain.stages, chain.spans, strict=True):
                    for spare in free:
                        if spare.held == span and spare.hello.memory < stage.member.hello.memory:
                            yield chain, stage.member, spare

    def _tried(self, free: Sequence[Member], chain: Chain, member: Member, spare: Member) -> Exchange | None:
        members = [spare if stage.member is member else stage.member for stage in chain.stages]
        became = self._dealer.fits(self._roster, members, chain.deal.slices)
        if not isinstance(became, Deal) or self._context([became]) < self._context([chain.deal]):
            return None
        others = [each.deal for each in self._chains if each is not chain]
        left = [each for each in self._roster.candidates() if each is member or (each in free and each is not spare)]
        further = self._dealer.beside(self._roster, left, [became, *others])
        if further is None or not self._pays([became, further[0]], [chain.deal]):
            return None
        return Exchange(chain, (became, members))

    def anew(self, now: float, *, busy: bool) -> bool:
        """Whether to deal everything anew: the room is at rest, has spares, and would have much more of its peers."""
        here = self._state()
        if busy or here != self._seen or not all(chain.flows for chain in self._chains):
            self._seen, self._since = here, now
            return False
        if now - self._since < AT_REST or here == self._considered or not self._spares.free():
            return False
        self._considered = here
        deals, present = self._dealer.afresh(self._roster), [chain.deal for chain in self._chains]
        return self._pays(deals, present) and self._context(deals) >= self._context(present)

    def _state(self) -> Hashable:
        return (
            tuple((member.id, member.held) for member in self._spares.free()),
            tuple((chain.epoch, chain.flows) for chain in self._chains),
        )

    def _pays(self, deals: Sequence[Deal], present: Sequence[Deal]) -> bool:
        promised, had = (sum(self._dealer.rate(self._roster, each) for each in some) for some in (deals, present))
        return promised >= WORTH_IT * had

    def _context(self, deals: Sequence[Deal]) -> int:
        """Tokens that a conversation may have."""
        return min(self._dealer.ctx, max((found.pages for found in deals), default=0) * PAGE)
