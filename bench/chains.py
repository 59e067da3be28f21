"""What a second chain adds, with peers that are processes of their own and whose compute is a sleep."""

import asyncio
import logging
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any, cast

import typer

from bench.measure import Goal, JsonFile, Quick, Report, Rounds, in_turn
from bench.sleeping import VERSION, SleepingHolder, lent, no_weights, served
from peer.membership import Membership
from protos import dial, room_pb2, room_pb2_grpc
from protos.invite import Invite
from room.config import RoomConfig
from room.room import Room
from tests.room.fakes import CountingAnswer, job, model

STREAMS = 16
LONG = 4000
"""Tokens of an answer: more than there is time for."""

SETTLE = 2.0
"""Seconds until peers are linked and frames in flight are tuned."""

STAGES = {
    "5 ms + 10 ms a row": (0.005, 0.010),
    "36 ms + 17 ms a row": (0.036, 0.017),
    "36 ms + 3.7 ms a row": (0.036, 0.0037),
    "40 ms": (0.040, 0.0),
}
"""What a frame takes at a stage: as where rows are what takes the time, as half of SmolLM2 in float32 on one core takes
in contexts of 4,000 tokens and in short ones (docs/benchmarks.md), and as where it does not depend on rows at all."""

CODE = "CHAINS"


def main(
    rounds: Rounds = 3,
    seconds: Annotated[float, typer.Option(metavar="S")] = 6.0,
    quick: Quick = False,
    json: JsonFile = None,
) -> None:
    """16 streams over two peers in a chain, and over four peers in two chains: real processes and connections."""
    seconds = 1.0 if quick else seconds
    logging.getLogger("pooled").setLevel(logging.CRITICAL)

    def contender(chains: int, flat: float, row: float) -> Callable[[int], float]:
        return lambda number: asyncio.run(measured(chains, flat, row, seconds))

    report = Report(
        f"{STREAMS} streams over chains of two peers that sleep; a simulation of stage times", compared=False
    )
    for name, (flat, row) in STAGES.items():
        kinds = {"2 chains": contender(2, flat, row), "1 chain": contender(1, flat, row)}
        found = in_turn(kinds, 1 if quick else rounds)
        two, one = (report.add(f"a frame takes {name}", who, "tok/s", runs) for who, runs in found.items())
        report.goals.append(Goal(f"2 chains over 1, a frame takes {name}", two.over(one), 1.6))
    report.notes = [
        "Each peer is a process with a processor of its own, as far as the room can tell, and sleeps instead of "
        "computing. Where a frame takes as long however many rows it has, a second chain can gain nothing at so few "
        "streams: each of its frames carries half the rows."
    ]
    report.show()
    report.save(json)


async def measured(chains: int, flat: float, row: float, seconds: float) -> float:
    """Tokens a second of one room, from its start to its end."""
    async with opened(chains, flat, row) as room:
        sessions = [room.submit(job(8, LONG, first=at), cast(Any, CountingAnswer(LONG))) for at in range(STREAMS)]
        await asyncio.sleep(SETTLE + seconds)
        begun, before = time.perf_counter(), sum(len(each.tokens) for each in sessions)
        await asyncio.sleep(seconds)
        return (sum(len(each.tokens) for each in sessions) - before) / (time.perf_counter() - begun)


@asynccontextmanager
async def opened(chains: int, flat: float, row: float) -> AsyncIterator[Room]:
    """A room whose chains are ready, with two peers to each."""
    room = Room(RoomConfig(model="/model", devices=2, speculate=0), replace(model(4)), CODE, "room")
    start = multiprocessing.get_context("spawn").Process
    async with served(room) as invite, await dial.open_channel(invite) as channel:
        peers = [start(target=lend, args=(invite, f"p{at}", flat, row), daemon=True) for at in range(2 * chains)]
        for peer in peers:
            peer.start()
        try:
            watch = room_pb2_grpc.RoomStub(channel).Watch(
                room_pb2.WatchRequest(), metadata=dial.credentials(invite, VERSION)
            )
            async for state in watch:
                if sum(peer.state == "ready" for peer in state.peers) == 2 * chains:
                    break
            watch.cancel()
            yield room
        finally:
            for peer in peers:
                peer.terminate()
                await asyncio.to_thread(peer.join, 10)


def lend(invite: Invite, name: str, flat: float, row: float) -> None:
    """One peer's process."""

    async def serve() -> None:
        holder = cast(Any, SleepingHolder(flat, row))
        await Membership(lent(name), holder, no_weights(), invite, lambda event: None).run()

    asyncio.run(serve())
