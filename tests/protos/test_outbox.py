"""What waits to be written: in which order, and by whom first."""

import asyncio

import pytest

from protos.outbox import Outbox

pytestmark = pytest.mark.anyio


async def test_who_reads_patiently_goes_after_all_who_are_woken_in_the_same_moment() -> None:
    patient, hurried = Outbox[str](), Outbox[str]()
    heard: list[str] = []

    async def read(outbox: Outbox[str]) -> None:
        async for item in outbox:
            heard.append(item)

    readers = [asyncio.create_task(read(each)) for each in (patient.patiently(), hurried)]
    await asyncio.sleep(0)
    for round in ("1", "2"):
        patient.put("patient " + round)
        hurried.put("hurried " + round)
        await asyncio.sleep(0.01)
    patient.close()
    hurried.close()
    await asyncio.gather(*readers)
    assert heard == ["hurried 1", "patient 1", "hurried 2", "patient 2"]


async def test_an_error_is_raised_behind_all_that_was_put_before_it() -> None:
    outbox = Outbox[int]()
    outbox.put(1)
    outbox.close(ValueError("over"))
    outbox.put(2)
    heard = []
    with pytest.raises(ValueError, match="over"):
        async for item in outbox.patiently():
            heard.append(item)
    assert heard == [1]
