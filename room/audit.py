"""Audits: now and then another holder of a stage's layers computes what the stage did, and the results are compared.

The first tokens of a prompt are sent alone, so that nothing before them counts, in a frame whose hidden states every
stage tells the room. What the audited stage got and gave goes to the auditor, which says how far its own result is from
it. A peer that cheats may tell which frames are audited: this finds what breaks by itself, and proves nothing.
"""

import logging
import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from protos import peer_pb2, room_pb2, tensor_pb2
from protos.lanes import PREFILL
from room.chain import Chain
from room.members import DTYPE_BYTES, Member, Roster
from room.schedule import FramePlan, Share

log = logging.getLogger("pooled.room")

K = TypeVar("K")

TOKENS = 32
"""Of a prompt that are audited."""

CLOSE, CLOSE_IN_FEW_BITS = 1e-3, 5e-2
"""Largest difference, relative to the largest value, that counts as rounding: where both compute in float32, from
weights that are kept so, and elsewhere."""

MOST_OPEN = 64
"""Audits that wait for peers."""


@dataclass
class _Audit:
    audited: Member
    at: int
    """Of the stage in its chain."""
    auditor: Member
    span: tuple[int, int]
    ids: list[int]
    tensors: dict[int, tensor_pb2.Tensor] = field(default_factory=dict)
    """By stage: what it gave."""


class Audits:
    """`rate` is the share of prompts; `exact` says whether weights and KV are kept as they are computed with."""

    def __init__(self, rate: float, roster: Roster, *, exact: bool) -> None:
        self._rate = rate
        self._roster = roster
        self._exact = exact
        self._frames: OrderedDict[tuple[int, int], _Audit] = OrderedDict()  # by epoch and step
        self._asked: OrderedDict[int, _Audit] = OrderedDict()
        self._number = 0

    def __repr__(self) -> str:
        return f"<Audits [{len(self._frames)} on their way, {len(self._asked)} asked]>"

    def send(self, chain: Chain, plan: FramePlan) -> None:
        """Put a frame on its way, or in its place the beginning of its first prompt to be audited."""
        found = self._drawn(chain, plan)
        if found is None:
            chain.send(plan)
            return
        audit, share = found
        step = chain.send(FramePlan(PREFILL, (share,), audited=True, owed=chain.owed))
        _keep(self._frames, (chain.epoch, step), audit)

    def _drawn(self, chain: Chain, plan: FramePlan) -> tuple[_Audit, Share] | None:
        share = plan.shares[0]
        begins = plan.lane == PREFILL and not share.session.sent and share.tokens > TOKENS and not plan.rebuilds
        if not begins or not random.random() < self._rate:
            return None
        pairs = [(at, auditor) for at, span in enumerate(chain.spans) for auditor in self._holders(chain, at, span)]
        if not pairs:
            return None
        at, auditor = random.choice(pairs)
        ids = share.session.tokens[:TOKENS]
        audit = _Audit(chain.stages[at].member, at, auditor, chain.spans[at], ids)
        return audit, replace(share, tokens=TOKENS, ends=False)

    def _holders(self, chain: Chain, at: int, span: tuple[int, int]) -> Iterable[Member]:
        audited = chain.stages[at].member
        return (each for each in self._roster.candidates() if each is not audited and each.held == span)

    def gave(self, chain: Chain, member: Member, told: peer_pb2.Frame | peer_pb2.FrameResult) -> None:
        """A stage tells what it gave for an audited frame."""
        epoch, step, hidden = told.epoch, told.step, told.hidden
        audit = self._frames.get((epoch, step))
        if audit is None or epoch != chain.epoch:
            return
        at = next(at for at, stage in enumerate(chain.stages) if stage.member is member)
        audit.tensors[at] = hidden
        if audit.at in audit.tensors and (audit.at == 0 or audit.at - 1 in audit.tensors):
            del self._frames[epoch, step]
            self._ask(audit)

    def _ask(self, audit: _Audit) -> None:
        self._number += 1
        _keep(self._asked, self._number, audit)
        start, end = audit.span
        request = room_pb2.Audit(
            number=self._number,
            start=start,
            end=end,
            ids=audit.ids,
            came=audit.tensors.get(audit.at - 1),
            gave=audit.tensors[audit.at],
        )
        audit.auditor.outbox.put(room_pb2.ToMember(audit=request))

    def answered(self, auditor: Member, answer: room_pb2.Audited) -> Member | None:
        """An auditor's answer: counted for the audited peer, which is returned if the results differ."""
        audit = self._asked.get(answer.number)
        if audit is None or audit.auditor is not auditor:
            return None
        del self._asked[answer.number]
        if not answer.computed:
            return None  # it holds other layers by now
        place = audit.audited.place
        if answer.difference <= self._close(audit):
            place.agreed += 1
            return None
        place.differed += 1
        log.error(
            "an audit differs",
            extra={"peer": audit.audited.name, "auditor": auditor.name, "difference": answer.difference},
        )
        return audit.audited

    def _close(self, audit: _Audit) -> float:
        full = self._exact and all(DTYPE_BYTES[each.hello.dtype] == 4 for each in (audit.audited, audit.auditor))
        narrow = any(tensor.dtype != tensor_pb2.DTYPE_F32 for tensor in audit.tensors.values())
        return CLOSE if full and not narrow else CLOSE_IN_FEW_BITS


def _keep(kept: "OrderedDict[K, _Audit]", key: K, audit: _Audit) -> None:
    kept[key] = audit
    if len(kept) > MOST_OPEN:
        kept.popitem(last=False)
