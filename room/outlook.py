"""What a spare would change for a chain: which deal with it is the quickest, and what that comes to at today's speeds.

The search for the deal is done now and then, since it takes long for many peers. Its figures are worked out whenever
they are asked for: those of all spares of a chain then speak of the same moment. Free of I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from room.deal import Offer
from room.placement import Placement

DRIFT = 1.25
"""How many times slower or quicker a peer has become when another deal may be the quickest."""


@dataclass(frozen=True)
class Prospect:
    """The quickest deal that a spare is part of, by the speeds at the time of the search."""

    offers: tuple[Offer, ...]
    """Of the chain's peers, in order, and of the spare."""
    placement: Placement | None
    """None: no deal with the spare is possible."""

    def drifted(self, offers: Sequence[Offer]) -> bool:
        """Whether it is time to search anew: `offers` are what the same peers lend now, or others' altogether."""
        pairs = list(zip(self.offers, offers, strict=False))
        if len(offers) != len(self.offers) or any(before.peer != now.peer for before, now in pairs):
            return True
        return any(not 1 / DRIFT < now.layer_seconds / before.layer_seconds < DRIFT for before, now in pairs)

    def seconds(self, offers: Sequence[Offer]) -> float | None:
        """That a token should take in this deal by what the peers lend now.

        None where no deal is possible, or one of its peers is not among the `offers`.
        """
        now = {offer.peer: offer for offer in offers}
        if self.placement is None or any(offer.peer not in now for offer in self.placement.offers):
            return None
        pairs = zip(self.placement.offers, self.placement.layers, strict=True)
        return sum(now[dealt.peer].hop_seconds + now[dealt.peer].layer_seconds * layers for dealt, layers in pairs)
