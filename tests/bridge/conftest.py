import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from bridge.app import run_bridge
from bridge.config import BridgeConfig
from tests.bridge import shapes
from tests.bridge.fake_room import CTX, FakeRoom
from tests.bridge.shapes import events_of
from tests.bridge.wire import Wire

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for this folder, so that a bridge can serve a whole module."""
    return "asyncio"


@dataclass
class Bridge:
    """A running bridge, the room behind it and a client before it."""

    base_url: str
    room: FakeRoom
    http: httpx.AsyncClient
    task: asyncio.Task[None]

    @property
    def port(self) -> int:
        port = httpx.URL(self.base_url).port
        assert port is not None
        return port

    def wire(self) -> Wire:
        return Wire(self.port)

    async def ask(self, messages: Any = None, **members: Any) -> httpx.Response:
        """POST a chat request: "hi" from the user, with `members` added."""
        body = {"model": "pooled", "messages": [USER] if messages is None else messages, **members}
        return await self.post(json.dumps(body).encode())

    async def post(self, body: bytes, **headers: str) -> httpx.Response:
        own = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        reply = await self.http.post("/v1/chat/completions", content=body, headers=own)
        shapes.check(reply)
        return reply

    async def seen(self, messages: Any = None, **members: Any) -> Any:
        """What the room was asked for a request that must be fine."""
        reply = await self.ask(messages, **members)
        assert reply.status_code == 200, reply.text
        return self.room.asked

    async def events(self, messages: Any = None, **members: Any) -> list[Any]:
        """The data of a stream's events, parsed; [DONE] as it is. Comments are left out."""
        reply = await self.ask(messages, stream=True, **members)
        assert reply.status_code == 200, reply.text
        return events_of(reply.content)

    async def until(self, **health: Any) -> None:
        """Wait until /health says so: the room's word travels for a moment."""
        # Over HTTP there is no event to wait for.
        while not health.items() <= (await self.http.get("/health")).json().items():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def refused(self, messages: Any = None, **members: Any) -> dict[str, Any]:
        """The error object of a request that must be a 400, and never reach the room."""
        before = len(self.room.requests)
        reply = await self.ask(messages, **members)
        assert reply.status_code == 400, (messages, members, reply.text)
        assert len(self.room.requests) == before
        return error_of(reply)


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error object, after a look at its shape."""
    assert reply.headers["content-type"] == "application/json"
    return shapes.check_error(reply.json())


def deltas(events: list[Any]) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in events if event != "[DONE]" and event["choices"]]


def _reason(ended: asyncio.Task[None]) -> BaseException:
    return (None if ended.cancelled() else ended.exception()) or RuntimeError("the bridge ended before it listened")


@asynccontextmanager
async def running(room: FakeRoom, **settings: Any) -> AsyncIterator[Bridge]:
    """A real bridge on a free port, until the block ends."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = BridgeConfig(port=0, **settings)
    task = asyncio.create_task(run_bridge(config, room.invite, ready=listening.set_result))
    task.add_done_callback(lambda ended: None if listening.done() else listening.set_exception(_reason(ended)))
    base_url = await listening
    root = base_url.removesuffix("/v1")
    try:
        async with httpx.AsyncClient(base_url=root, trust_env=False, timeout=60) as http:
            yield Bridge(base_url, room, http, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="package")
async def fake_room(anyio_backend: str) -> AsyncIterator[FakeRoom]:
    room = FakeRoom()
    await room.start()
    yield room
    await room.stop()


@pytest.fixture
async def room(fake_room: FakeRoom) -> FakeRoom:
    """The package's room, as new."""
    fake_room.reset()
    await fake_room.tell()
    return fake_room


@pytest.fixture(scope="package")
async def shared_bridge(fake_room: FakeRoom) -> AsyncIterator[Bridge]:
    async with running(fake_room) as bridge:
        yield bridge


@pytest.fixture
async def bridge(shared_bridge: Bridge, room: FakeRoom) -> Bridge:
    """A bridge with everything as it comes."""
    await shared_bridge.until(connected=True, ready=True, ctx=CTX, queue=0)
    return shared_bridge


@pytest.fixture(scope="package")
async def shared_chatty_bridge(fake_room: FakeRoom) -> AsyncIterator[Bridge]:
    async with running(fake_room, keepalive=0.2) as bridge:
        yield bridge


@pytest.fixture
async def chatty(shared_chatty_bridge: Bridge, room: FakeRoom) -> Bridge:
    """A bridge that breaks a silence after 0.2 s. Only for what is about that: elsewhere a busy machine would too."""
    await shared_chatty_bridge.until(connected=True, ready=True, ctx=CTX, queue=0)
    return shared_chatty_bridge
