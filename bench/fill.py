"""How full the pipeline is kept behind slow links, with peers whose compute is a sleep."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import typer

from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn
from bench.servers import LinksUnused, require_carried
from bench.sleeping import SleepingHolder, lent, no_weights, served
from peer.membership import Membership
from room.config import RoomConfig
from room.room import Room
from tests.cluster import free_port
from tests.proxy import SlowLink
from tests.room.fakes import CountingAnswer, job, model

SLEEP = 0.040
DELAY = 0.025
STREAMS = 16
FIXED = 4
"""Frames in flight of the set-up that is not tuned: the way round of 130 ms over a stage's 40 ms."""

LONG = 4000
"""Tokens of an answer: more than there is time for."""

LEAST = 10
"""Bytes that a token takes at least on all its hops together."""

CODE = "FILLED"


@dataclass(frozen=True)
class Run:
    tokens_per_second: float
    busy: float
    """Part of the time that the busier peer slept in frames."""
    depth: int
    """Frames in flight at the end."""


def main(
    rounds: Rounds = 5,
    seconds: Annotated[float, typer.Option(metavar="S")] = 5.0,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """Two peers that sleep 40 ms a frame, 16 streams; room and peers on real connections, 0 or 25 ms apart."""
    seconds = 1.0 if quick else seconds
    logging.getLogger("pooled").setLevel(logging.ERROR)  # rooms are closed with peers in them

    def contender(delay: float, depth: int | None) -> Callable[[int], Run]:
        return lambda number: asyncio.run(measured(delay, depth, seconds))

    found = in_turn(
        {
            "tuned, no delay": contender(0.0, None),
            "tuned, 25 ms": contender(DELAY, None),
            f"{FIXED} frames, no delay": contender(0.0, FIXED),
            f"{FIXED} frames, 25 ms": contender(DELAY, FIXED),
        },
        1 if quick else rounds,
    )
    report = Report(f"{STREAMS} streams, two peers that sleep {SLEEP * 1000:.0f} ms a frame")
    speeds = {}
    for name, runs in found.items():
        speeds[name] = report.add("tokens", name, "tok/s", [run.tokens_per_second for run in runs])
        report.add("busier peer at work", name, "", [run.busy for run in runs])
        report.add("frames in flight", name, "", [float(run.depth) for run in runs])
    near, far, near_fixed, far_fixed = speeds.values()
    bound = STREAMS / (2 * SLEEP + 2 * DELAY)
    report.goals = [
        Goal(f"25 ms over no delay, {FIXED} frames in flight in both", far_fixed.over(near_fixed), 0.9),
        Goal("25 ms over no delay, both as tuned", far.over(near), 0.9),
        Goal(f"25 ms, tuned, over the {bound:.0f} tok/s that the way round allows", far.median / bound, 0.9),
    ]
    report.notes = [
        "A token of each stream takes two sleeps and two hops, 130 ms, however many frames are in flight; without "
        "delay it takes 80 ms. As these sleeps do not depend on a frame's size, full frames make up to 200 tok/s "
        f"without delay and {bound:.0f} with it: no schedule can do more."
    ]
    report.show()
    report.save(json)


async def measured(delay: float, depth: int | None, seconds: float) -> Run:
    """One room from its start to its end. Raises LinksUnused where tokens took other ways than are meant."""
    async with opened(delay) as (room, peers, links):
        if depth is not None:
            room.chains[0].tuning.fix(depth)
        sessions = [room.submit(job(8, LONG, first=at), cast(Any, CountingAnswer(LONG))) for at in range(STREAMS)]
        await asyncio.sleep(seconds)
        begun, before, slept = time.perf_counter(), sum(len(each.tokens) for each in sessions), [p.slept for p in peers]
        carried = sum(link.carried for link in links)
        await asyncio.sleep(seconds)
        took = time.perf_counter() - begun
        tokens = sum(len(each.tokens) for each in sessions) - before
        require_carried(sum(link.carried for link in links) - carried, tokens * LEAST)
        way = room.chains[0].stages[0].member.link
        if way is None or not way.direct:
            raise LinksUnused("the first peer sends through the room, which is a hop more")
        return Run(
            tokens / took,
            max(peer.slept - at for peer, at in zip(peers, slept, strict=True)) / took,
            room.chains[0].limits.decode_depth,
        )


@asynccontextmanager
async def opened(delay: float) -> AsyncIterator[tuple[Room, list[SleepingHolder], list[SlowLink]]]:
    """A room, and two peers that reach it and each other over links of so much delay one way; those links."""
    room = Room(RoomConfig(model="/model", devices=2), replace(model(4)), CODE, "room")
    peers = [SleepingHolder(SLEEP), SleepingHolder(SLEEP)]
    async with served(room) as invite:
        with ExitStack() as stack:
            tasks, links = [], []
            for at, peer in enumerate(peers):
                to_room, listening = stack.enter_context(SlowLink(invite.port, delay=delay)), free_port()
                to_peer = stack.enter_context(SlowLink(listening, delay=delay))
                links += [to_room, to_peer]
                offer = lent(f"p{at}", f"127.0.0.1:{listening}", f"127.0.0.1:{to_peer.port}")
                behind = replace(invite, port=to_room.port)
                member = Membership(offer, cast(Any, peer), no_weights(), behind, lambda event: None)
                tasks.append(asyncio.create_task(member.run()))
            await asyncio.gather(*(peer.loaded.wait() for peer in peers))
            while not _linked(room):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            try:
                yield room, peers, links
            finally:
                room.shut_down()
                await asyncio.gather(*tasks, return_exceptions=True)


def _linked(room: Room) -> bool:
    """Whether its peers hold their slices and have found their ways."""
    chain = room.chains[0] if len(room.chains) else None
    return chain is not None and chain.ready and chain.passes_back and chain.stages[0].member.link is not None
