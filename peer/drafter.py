"""A small whole model that reads along with a room's sessions and guesses how their answers go on.

It draws as the room's last peer does, with the same noise, so a sampled answer is guessed as well as a greedy one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peer.errors import UnsupportedArchitecture
from peer.kv import PAGE, KvPool
from peer.slice import Slice
from peer.step import Engine
from protos import peer_pb2, room_pb2
from protos.lanes import DECODE

READ_AT_ONCE = 32
"""Tokens of one session in a forward: who waits for guesses waits for those that are only read, too."""


@dataclass
class _Held:
    """A session, as far as it is known here."""

    place: int
    """Which part of the pool is its own."""
    ids: list[int]
    """What the room sent, and guesses behind it."""
    params: peer_pb2.SamplingParams
    computed: int = 0
    """How many of `ids` are in the pool."""
    sent: int = 0
    """How many of them the room sent."""
    wanted: int = 0
    """Guesses behind those."""
    busy: bool = False

    @property
    def unread(self) -> int:
        return len(self.ids) - self.computed

    @property
    def whole(self) -> bool:
        """What was asked for is there."""
        return len(self.ids) == self.sent + self.wanted and (self.wanted > 0 or not self.unread)


class Drafter:
    """Takes what the room wants and computes it step by step. Synchronous; not for use by two threads at a time."""

    def __init__(self, slice: Slice, ctx: int, sessions: int) -> None:
        """Room for `sessions` of `ctx` tokens; the one used longest ago makes way.

        Raises UnsupportedArchitecture for a model whose state cannot be cut back to an earlier token.
        """
        if slice.layout.recurrent:
            raise UnsupportedArchitecture(f"{slice} cannot take a guess back; name a model without states by --draft")
        self._pages = -(-ctx // PAGE)
        self._engine = Engine(slice, KvPool(slice, self._pages * sessions))
        self._vocab_size, self._ctx = slice.vocab_size, min(ctx, slice.position_limit or ctx)
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._free = list(range(sessions))
        self._steps = 0

    @property
    def busy(self) -> bool:
        """Something that was asked for is not there yet."""
        return any(held.busy for held in self._held.values())

    def step(self, wanted: Iterable[room_pb2.DraftWanted]) -> list[room_pb2.Drafted]:
        """Take what came, compute one forward, and give what is whole by then. Raises FrameError."""
        out = [refused for each in wanted if (refused := self._take(each)) is not None]
        return [*out, *self._compute([(number, held) for number, held in self._held.items() if held.busy])]

    def _take(self, wanted: room_pb2.DraftWanted) -> room_pb2.Drafted | None:
        """Note what is wanted; an answer at once where it cannot be had."""
        if wanted.over:
            if (ended := self._held.pop(wanted.session, None)) is not None:
                self._free.append(ended.place)
            return None
        held, sent = self._held.get(wanted.session), wanted.start + len(wanted.ids)
        unknown = wanted.start > (len(held.ids) if held else 0)
        if unknown or sent + wanted.count > self._ctx or max(wanted.ids, default=0) >= self._vocab_size:
            return room_pb2.Drafted(session=wanted.session, length=sent)
        if held is None:
            held = self._held[wanted.session] = _Held(self._place(), [], wanted.params)
        self._held.move_to_end(wanted.session)
        held.ids[wanted.start :] = wanted.ids
        held.computed = min(held.computed, wanted.start, sent - 1)  # guesses are drawn behind a token that is computed
        held.sent, held.wanted, held.busy = sent, wanted.count, True
        return None

    def _place(self) -> int:
        if not self._free:
            _, oldest = self._held.popitem(last=False)
            self._free.append(oldest.place)
        return self._free.pop()

    def _compute(self, held: Sequence[tuple[int, _Held]]) -> list[room_pb2.Drafted]:
        """One forward for all of these."""
        if not held:
            return []
        self._steps += 1
        frame = peer_pb2.Frame(epoch=1, step=self._steps, lane=DECODE)
        plan = peer_pb2.SamplingPlan(epoch=1, step=self._steps)
        drawing: list[_Held] = []
        for number, each in held:
            ids = each.ids[each.computed :][:READ_AT_ONCE]
            draws = each.wanted > 0 and len(ids) == each.unread
            run = peer_pb2.PageRun(first=each.place * self._pages, count=self._pages)
            frame.segments.add(session=number, start=each.computed, ids=ids, pages=[run], sampled=int(draws))
            each.computed += len(ids)
            if draws:
                plan.specs.add(params=each.params)
                drawing.append(each)
        result = self._engine.run(frame, plan, {})
        assert isinstance(result, peer_pb2.FrameResult), "it holds the whole model"
        for each, segment in zip(drawing, result.segments, strict=True):
            each.ids.append(segment.tokens[0].id)
        return [_given(number, each) for number, each in held if each.whole]


def _given(number: int, held: _Held) -> room_pb2.Drafted:
    held.busy = False
    return room_pb2.Drafted(session=number, length=held.sent, ids=held.ids[held.sent :])
