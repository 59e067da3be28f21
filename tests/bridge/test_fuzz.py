"""Whatever a body holds, the caller gets an answer or a refusal, and never a failure."""

import os
import sys
from collections import Counter

import pytest

from tests.bridge import shapes
from tests.bridge.conftest import Bridge
from tests.bridge.fake_room import call, call_delta, finish, queued, reasoning, text, usage
from tests.bridge.mutate import VALID, mutated
from tests.bridge.test_calls import TOOL_CALLS

pytestmark = pytest.mark.anyio

SOAK = os.environ.get("POOLED_SOAK") == "1"
BODIES = 20_000 if SOAK else 300
SEED = 4

GROWTH = 1.10
"""How much larger the process may be at the end of a soak than after its first fifth."""

ANSWER = [
    queued(0),
    reasoning("hm"),
    text("so"),
    call(0, "f"),
    call_delta(0, '{"a": 1}'),
    finish(TOOL_CALLS),
    usage(9, 5, 4, 1),
]


def resident() -> int:
    """Bytes of memory that this process, with bridge and room in it, holds now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def once(bridge: Bridge, body: bytes) -> int:
    """The status of a request with this body, after a look at the answer's shape."""
    reply = await bridge.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 200 or 400 <= reply.status_code < 500, (reply.status_code, reply.text)
    shapes.check(reply)
    if len(bridge.room.requests) > 100:  # what the room remembers is not the bridge's memory
        bridge.room.requests.clear()
    return reply.status_code


@pytest.mark.parametrize("body", VALID)
async def test_P10_the_bodies_are_fine_before_they_are_mutated(bridge: Bridge, body: dict[str, object]) -> None:
    bridge.room.script = ANSWER
    await bridge.seen(**body)


@pytest.mark.timeout(3600 if SOAK else 120)
async def test_P131_P132_P133_any_body_is_answered_or_refused(bridge: Bridge) -> None:
    bridge.room.script = ANSWER
    statuses: Counter[int] = Counter()
    early = 0
    for index in range(BODIES):
        try:
            statuses[await once(bridge, mutated((SEED, index)))] += 1
        except Exception as error:
            raise AssertionError(f"mutated({(SEED, index)})") from error
        if index == BODIES // 5 and sys.platform == "linux":
            early = resident()
    assert statuses[200] > BODIES / 10, "the mutants are too wild to say anything"
    assert statuses[400] > BODIES / 10, "the mutants are too tame to say anything"
    assert (await bridge.http.get("/health")).json()["queue"] == 0
    if SOAK and sys.platform == "linux":
        late = resident()
        print(f"{dict(statuses)}, {early >> 20} MiB, then {late >> 20} MiB")
        assert late <= early * GROWTH
