"""Sessions side by side are attended to as one by one, whatever became of their pages in between."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from peer.attention import Heads, Span, attend_spans
from peer.kv import KvLayout, KvShape
from peer.packs import Packs

PAGE, PAGES = 4, 64
HEADS, SHARED, DIM, VALUE_DIM = 6, 2, 8, 5
LAYERS = (3, 4)
LAYOUT = KvLayout({layer: KvShape(SHARED, DIM, VALUE_DIM) for layer in LAYERS}, {})
POSITION_BYTES = 4 * len(LAYERS) * SHARED * (DIM + VALUE_DIM)
ROOMY = 10_000 * POSITION_BYTES


@dataclass
class Session:
    pages: list[int]
    length: int = 0
    """Positions written."""

    def span(self, rows: int = 1) -> Span:
        """The next rows of it."""
        slots = [self.pages[at // PAGE] * PAGE + at % PAGE for at in range(self.length + rows)]
        starts = [at for at in range(len(slots)) if at == 0 or slots[at] != slots[at - 1] + 1]
        ends = [*starts[1:], len(slots)]
        return Span(rows, tuple((slots[start], end - start) for start, end in zip(starts, ends, strict=True)))


class Pool:
    """Keys and values of every slot, all not a number before they are written, and the packs beside them."""

    def __init__(self, kept: torch.dtype = torch.float32, most: int = ROOMY) -> None:
        self.packs = Packs(LAYOUT, torch.float32, PAGE, most)
        self._random = torch.Generator().manual_seed(1)
        self.kept = {
            layer: [torch.zeros(SHARED, PAGES * PAGE, dim, dtype=kept) for dim in (DIM, VALUE_DIM)]
            + [torch.full((SHARED, PAGES * PAGE, 1), torch.nan)] * 2 * (kept == torch.int8)
            for layer in LAYERS
        }
        if kept != torch.int8:
            for layer in LAYERS:
                for each in self.kept[layer]:
                    each.fill_(torch.nan)

    def write(self, layer: int, slots: Sequence[int]) -> list[torch.Tensor]:
        """Random keys and values, which are returned, and steps; each [kv heads, len(slots), dim]."""
        rows = [(4 * self.noise(SHARED, len(slots), each.shape[-1])).abs() for each in self.kept[layer]]
        for each, given in zip(self.kept[layer], rows, strict=True):
            each[:, list(slots)] = given.to(each.dtype)
        return rows[:2]

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._random)

    def frame(
        self,
        sessions: Sequence[Session],
        rows: Sequence[int],
        copied: int | None = None,
        fails_before: int = 99,
        other: int = 99,
    ) -> bool | None:
        """Write and attend to the next rows of each; whether that went side by side, None: it failed midway.

        Layer `other` has heads that no pack takes.
        """
        spans = [session.span(count) for session, count in zip(sessions, rows, strict=True)]
        written = [
            session.pages[at // PAGE] * PAGE + at % PAGE
            for session, count in zip(sessions, rows, strict=True)
            for at in range(session.length, session.length + count)
        ]
        step = self.packs.step(spans, {slot // PAGE for slot in written}, set() if copied is None else {copied})
        if copied is not None:
            for layer in LAYERS:
                self.write(layer, range(copied * PAGE, (copied + 1) * PAGE))
        for layer in LAYERS:
            if layer >= fails_before:
                return None
            came = [each.transpose(0, 1) for each in self.write(layer, written)]
            if step is not None and layer != other:
                query = self.noise(len(spans), HEADS, DIM)
                found = step.attend(layer, query, came, self.kept[layer], Heads(0.5))
                expected = attend_spans(spans, query, self.kept[layer], Heads(0.5))
                assert torch.allclose(found, expected, atol=1e-4, equal_nan=False)
        for session, count in zip(sessions, rows, strict=True):
            session.length += count
        return step is not None


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("seed", range(6))
def test_packed_sessions_are_attended_to_as_one_by_one(kept: torch.dtype, seed: int) -> None:
    """Sessions come, grow, go back, end, and leave their pages to others, with frames that fail in between."""
    rng, pool = random.Random(seed), Pool(kept)
    free = list(range(PAGES))
    rng.shuffle(free)
    sessions: list[Session] = []
    packed = 0
    for _ in range(120):
        if len(sessions) < 4 or (rng.random() < 0.1 and len(free) >= 8):
            sessions.append(Session([free.pop() for _ in range(8)]))
            pool.frame(sessions[-1:], [rng.randint(1, 9)])
        if rng.random() < 0.05 and len(sessions) > 4:
            free += sessions.pop(rng.randrange(len(sessions))).pages
        if rng.random() < 0.05 and free and sessions[0].length <= 7 * PAGE:
            sessions[0].pages[-1], free[-1] = free[-1], sessions[0].pages[-1]
        if rng.random() < 0.1:
            sessions[rng.randrange(len(sessions))].length -= 1
        ended = [session for session in sessions if session.length + 3 > 8 * PAGE]
        for session in ended:
            sessions.remove(session)
            free += session.pages
        running = sessions if rng.random() < 0.9 else rng.sample(sessions, len(sessions) // 2)
        running = [session for session in running if session.length > 0]
        if running:
            rows = [1 if rng.random() < 0.98 else 2 for _ in running]
            fails_before = LAYERS[1] if rng.random() < 0.05 else 99
            copied = rng.choice([*running[0].pages, *free]) if rng.random() < 0.05 else None
            other = rng.choice(LAYERS) if rng.random() < 0.05 else 99
            packed += bool(pool.frame(running, rows, copied, fails_before, other))
    assert packed > 20


def test_steps_that_follow_each_other_gather_nothing_again() -> None:
    pool = Pool()
    sessions = [Session([at, at + 8, at + 16], length=0) for at in range(4)]
    for session in sessions:
        pool.frame([session], [3])
    assert pool.frame(sessions, [1] * 4)
    (pack,) = pool.packs._packs
    held = pack.layers[LAYERS[0]]
    for _ in range(5):
        assert pool.frame(sessions, [1] * 4)
    assert pack.layers[LAYERS[0]] is held


def sessions_of(*lengths: int) -> list[Session]:
    """Sessions with so many positions each, which nobody wrote."""
    return [Session(list(range(at * 8, at * 8 + 8)), length=length - 1) for at, length in enumerate(lengths)]


def step_of(packs: Packs, *lengths: int) -> object:
    return packs.step([session.span() for session in sessions_of(*lengths)], set(), set())


def test_what_is_packed_and_what_is_not() -> None:
    packs = Packs(LAYOUT, torch.float32, PAGE, ROOMY)
    step = packs.step([session.span() for session in sessions_of(20, 10, 18, 12)], set(), set())
    assert step is not None
    assert [step.takes(Heads(1, window)) for window in (None, 20, 19)] == [True, True, False]
    assert not step.takes(Heads(1, softcap=2.0))
    assert not step.takes(Heads(1, sinks=torch.zeros(HEADS)))
    assert step_of(packs, 20, 10, 18) is None, "a loop over few of them is as quick"
    assert step_of(packs, 30, 2, 2, 2) is None, "most of it would be padding"
    two_rows = [session.span(2) for session in sessions_of(5, 5, 5, 5)]
    assert packs.step(two_rows, set(), set()) is None
    assert step_of(Packs(LAYOUT, torch.float32, PAGE, 0), 20, 10, 18, 12) is None


def test_packs_keep_within_their_memory() -> None:
    four = 4 * 64 * POSITION_BYTES
    packs = Packs(LAYOUT, torch.float32, PAGE, 2 * four)
    for lengths in ((9, 9, 9, 9), (10, 10, 10, 10, 10), (11, 11, 11, 11), (12, 12, 12, 12, 12, 12)):
        assert step_of(packs, *lengths) is not None
        assert 0 < packs.bytes <= 2 * four
    assert step_of(packs, *[9] * 9) is None, "alone it takes more than there is"
