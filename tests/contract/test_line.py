"""The waiting line, comments in a silence, and callers that leave: P108 to P116, C9."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.rig import USER, Rig, events_of, line, read_stream, running, user

pytestmark = pytest.mark.anyio

HANG = line("a", fault="hang")


@pytest.fixture(scope="module")
async def shared_narrow(anyio_backend: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder = tmp_path_factory.mktemp("narrow")
    async with running(tiny, folder, max_running=1, bridge={"keepalive": 0.1}) as rig:
        yield rig


@pytest.fixture
async def narrow(shared_narrow: Rig) -> Rig:
    """A room that answers one request at a time, behind a bridge that breaks a silence after 0.1 s."""
    await shared_narrow.at_rest()
    shared_narrow.play(line("ok"))
    return shared_narrow


@asynccontextmanager
async def asking(rig: Rig, **members: Any) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a stream, which is left when the block ends."""
    body = {"messages": [USER], "stream": True, **members}
    async with rig.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        yield reply.aiter_lines()


async def until(lines: AsyncIterator[str], wanted: str) -> None:
    async for text in lines:
        if wanted in text:
            return
    raise AssertionError(f"the stream ended without {wanted!r}")


async def until_waiting(rig: Rig, count: int) -> None:
    while len(rig.room.line) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_P110_P111_the_line_counts_down_and_never_says_nought(narrow: Rig) -> None:
    narrow.play(HANG, HANG, line("b"), line("c"))
    async with asking(narrow) as first:
        await until(first, '"content":"a"')
        async with asking(narrow) as second:
            await until(second, ": queued, 1 ahead")
            third = asyncio.create_task(narrow.post(stream=True))
            await until_waiting(narrow, 2)
            async with asking(narrow) as fourth:
                await until(fourth, ": queued, 3 ahead")
                await first.aclose()  # type: ignore[attr-defined]
                await until(second, '"content":"a"')
                await until(fourth, ": queued, 2 ahead")
                await second.aclose()  # type: ignore[attr-defined]
                await until(fourth, '"content":"c"')
            told = (await third).text
    assert ": queued, 0 ahead" not in told
    assert told.index(": queued, 2 ahead") < told.index(": queued, 1 ahead") < told.index('"content":"b"')


async def test_P108_a_request_that_waits_has_its_headers(narrow: Rig) -> None:
    narrow.play(HANG)
    async with asking(narrow) as first:
        await until(first, '"content":"a"')
        async with asking(narrow):
            assert len(narrow.room.line) == 1


@pytest.mark.parametrize("waited", ["the first token", "a later one"])
async def test_P110_P112_B1_B2_B3_B4_B35_comments_in_a_silence(narrow: Rig, waited: str) -> None:
    narrow.play(line("x", "y", at_ms=[1000, 1000] if waited == "the first token" else [0, 1000]))
    reply = await narrow.post(stream=True)
    blocks = reply.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith((": ", "data: ")) and "\n" not in block for block in blocks)
    first_comment = blocks.index(": keep-alive")
    letter = "x" if waited == "the first token" else "y"
    assert first_comment < next(at for at, block in enumerate(blocks) if f'"content":"{letter}"' in block)
    assert events_of(reply.text)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [line(fault="hang"), HANG, line("a", "b", at_ms=[60_000])])
async def test_P115_B16_a_caller_that_leaves_makes_way(narrow: Rig, stream: bool, script: dict[str, Any]) -> None:
    narrow.play(script, line("next"))
    task = asyncio.create_task(narrow.post(stream=stream))
    while not narrow.room.running:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    task.cancel()
    async with asyncio.timeout(60):
        assert (await narrow.ask()).content == "next"


async def test_P115_one_that_leaves_the_line_never_reaches_the_model(narrow: Rig) -> None:
    narrow.play(HANG, line("never"), line("last"))
    async with asking(narrow) as first:
        await until(first, '"content":"a"')
        before = len(narrow.records)
        leaving = asyncio.create_task(narrow.post([user("goes away")]))
        await until_waiting(narrow, 1)
        last = asyncio.create_task(narrow.ask([user("stays")]))
        await until_waiting(narrow, 2)
        leaving.cancel()
        await until_waiting(narrow, 1)
    assert (await last).content == "last"
    assert [entry["turns"][0]["content"] for entry in narrow.records[before:]] == ["stays"]


async def test_P115_pages_of_those_who_left_are_free_again(narrow: Rig) -> None:
    """A hanging frame comes back once nobody waits for it."""
    narrow.play(HANG)
    for _ in range(3):
        async with asking(narrow) as lines:
            await until(lines, '"content":"a"')
    chain = narrow.room.chains[0]
    assert chain is not None
    async with asyncio.timeout(60):
        while chain.in_flight.total():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_C9_P114_the_ninth_in_line_is_told_to_come_back(tiny: Path, tmp_path: Path) -> None:
    """Behind a bridge that is slow to break a silence: on a busy machine a refusal may come late, and has no 200."""
    async with running(tiny, tmp_path, max_running=1) as narrow:
        narrow.play(HANG)
        waiting: list[asyncio.Task[httpx.Response]] = []
        async with asking(narrow) as first:
            await until(first, '"content":"a"')
            for place in range(1, 9):
                waiting.append(asyncio.create_task(narrow.post()))
                await until_waiting(narrow, place)
            for stream in (False, True):
                reply = await narrow.post(stream=stream)
                assert reply.status_code == 429
                error = reply.json()["error"]
                assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
                assert 1 <= int(reply.headers["retry-after"]) <= 60
            for task in waiting:
                task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_P116_requests_side_by_side_do_not_wait_for_each_other(rig: Rig) -> None:
    rig.play(HANG, line(*"quick"))
    async with asking(rig) as slow:
        await until(slow, '"content":"a"')
        assert (await rig.listen()).content == "quick"


async def test_P97_P98_a_prompt_seen_before_is_not_read_again(rig: Rig) -> None:
    rig.play(line("ok"))
    question = [user("What has the room kept of this question, which nobody asked before?")]
    first, second = await rig.ask(question), await rig.ask(question)
    other = await rig.ask([{"role": "system", "content": "Nobody began like this either."}, *question])
    block, prompt = 16, first.usage["prompt_tokens"]

    def cached(usage: dict[str, Any]) -> int:
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    assert prompt - 1 - block <= cached(second.usage) < prompt
    opening = 8  # tokens at most of "<|im_start|>system\n", which others may have asked for
    assert max(cached(first.usage), cached(other.usage)) <= opening < prompt - 1 - block


async def test_P105_a_stream_after_the_wait_has_its_usual_shape(narrow: Rig) -> None:
    narrow.play(HANG, line("z"))
    async with asking(narrow) as first:
        await until(first, '"content":"a"')
        body = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
        second = asyncio.create_task(narrow.http.post("/v1/chat/completions", json=body))
        await until_waiting(narrow, 1)
    assert read_stream((await second).text).content == "z"
