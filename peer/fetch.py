"""Fetching pieces of weights from several places at once, in rounds.

In each round every piece that is still missing goes to the best place that has it, and each place is read from by a few
readers at once. A place that breaks off is tried again in the next round, a few times; one that sends wrong bytes is
asked no more. What it would have sent then comes from another.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from peer.errors import SourceFailed, WeightsMissing, WrongBytes
from peer.sources import Source, Wanted
from protos.manifest import BLOCK

log = logging.getLogger("pooled.peer")

TRIES = 3
"""Times that a place may break off."""

Take = Callable[[Wanted, bytes], bool]
"""Check and keep bytes that came; False when they are not what was asked for. Called in threads."""


@dataclass
class Fetched:
    """What came from where."""

    by_source: Counter[str] = field(default_factory=Counter)
    """Bytes."""
    liars: list[str] = field(default_factory=list)
    """Places that sent wrong bytes."""


@dataclass(eq=False)
class _Place:
    source: Source
    has: set[str]
    failures: int = 0
    ended: str = ""
    """Why it is asked no more."""


async def fetch(
    wanted: Sequence[Wanted], sources: Iterable[Source], take: Take, came: Callable[[int], object]
) -> Fetched:
    """Have all of `wanted` taken. `came` hears of bytes as they come. Raises WeightsMissing."""
    fetched = Fetched()
    missing = {each.piece.sha256: each for each in wanted}
    places = [_Place(source, set()) for source in sources]
    await _all(_ask(place, list(missing.values())) for place in places)
    while missing:
        rounds = []
        for place, share in _plan(missing.values(), places):
            batches = deque(_batches(share))
            rounds += [_drain(place, batches, take, came, missing, fetched) for _ in range(place.source.lanes)]
        await _all(rounds)
    return fetched


async def _ask(place: _Place, wanted: list[Wanted]) -> None:
    try:
        answers = await place.source.have(wanted)
    except SourceFailed as error:
        place.ended = str(error)
        return
    place.has = {each.piece.sha256 for each, here in zip(wanted, answers, strict=True) if here}


def _plan(missing: Iterable[Wanted], places: Sequence[_Place]) -> list[tuple[_Place, list[Wanted]]]:
    """Each piece for one of the best places that have it, so that those have about as much to send.

    Raises WeightsMissing when one is nowhere.
    """
    shares: dict[_Place, list[Wanted]] = {place: [] for place in places}
    loads: Counter[_Place] = Counter()
    for each in missing:
        able = [place for place in places if not place.ended and each.piece.sha256 in place.has]
        if not able:
            raise WeightsMissing(_nowhere(each, places))
        best = min(able, key=lambda place: (place.source.tier, loads[place]))
        shares[best].append(each)
        loads[best] += each.piece.size
    return [(place, share) for place, share in shares.items() if share]


def _nowhere(wanted: Wanted, places: Sequence[_Place]) -> str:
    reasons = "; ".join(place.ended for place in places if place.ended)
    return (
        f"nobody has the right bytes of {wanted.file} ({reasons or 'no peer and not the room'}); the host has to give "
        "the room the whole model, or name one of the hub"
    )


def _batches(share: Sequence[Wanted]) -> Iterable[list[Wanted]]:
    """Small pieces together, so that each read is worth its way."""
    batch: list[Wanted] = []
    size = 0
    for each in share:
        if batch and size + each.piece.size > BLOCK:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.piece.size
    if batch:
        yield batch


async def _drain(
    place: _Place,
    batches: deque[list[Wanted]],
    take: Take,
    came: Callable[[int], object],
    missing: dict[str, Wanted],
    fetched: Fetched,
) -> None:
    """Read batch after batch from one place, until there are none or it fails."""
    while batches and not place.ended:
        batch = batches.popleft()
        try:
            await _read(place.source, batch, take, came, missing, fetched)
        except WrongBytes as error:
            place.ended = str(error)
            fetched.liars.append(place.source.name)
            log.error("wrong bytes", extra={"source": place.source.name, "why": str(error)})
        except SourceFailed as error:
            place.failures += 1
            log.warning("a source broke off", extra={"source": place.source.name, "why": str(error)})
            if place.failures >= TRIES:
                place.ended = str(error)
            return


async def _read(
    source: Source,
    batch: Sequence[Wanted],
    take: Take,
    came: Callable[[int], object],
    missing: dict[str, Wanted],
    fetched: Fetched,
) -> None:
    """Raises SourceFailed, WrongBytes."""
    at, content = 0, bytearray()
    async with aclosing(source.read(batch)) as parts:
        async for number, data in parts:
            if at == len(batch) or number != at or len(content) + len(data) > batch[at].piece.size:
                raise WrongBytes(f"{source.name} sent more of {batch[0].file} than was asked for")
            content += data
            came(len(data))
            fetched.by_source[source.name] += len(data)
            if len(content) == batch[at].piece.size:
                if not await asyncio.to_thread(take, batch[at], bytes(content)):
                    raise WrongBytes(f"{source.name} sent wrong bytes of {batch[at].file}")
                missing.pop(batch[at].piece.sha256, None)
                at, content = at + 1, bytearray()
    if at < len(batch):
        raise SourceFailed(f"{source.name} sent less of {batch[at].file} than was asked for")


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; when one fails, the others end with it."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
