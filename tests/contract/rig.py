"""A scripted room and a bridge on real sockets, and what a client makes of their answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from bridge.app import run_bridge
from bridge.config import BridgeConfig
from protos import room_pb2
from room.app import Opened, run_host
from room.config import RoomConfig
from room.intake import Intake
from room.room import Room
from room.scripted import ScriptedIntake, ScriptedPeer, read_scripts
from room.session import Job
from room.text.answer import Answer
from room.text.tokenizer import TextModel
from tests.bridge import shapes

USER = {"role": "user", "content": "hi"}

Token = str | int
Line = dict[str, Any]


def line(*tokens: Token, **members: Any) -> Line:
    """A line of a script."""
    return {"tokens": list(tokens), **members}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def developer(text: str) -> dict[str, Any]:
    return {"role": "developer", "content": text}


def assistant(text: str | None, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **members}


def tool(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def function(name: str, parameters: Any = None, **members: Any) -> dict[str, Any]:
    """A tool as a request lists it."""
    extra = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **extra, **members}}


def called(call_id: str, name: str, arguments: Any = "{}") -> dict[str, Any]:
    """A call as an assistant message of the history has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class Deck(Intake):
    """Intake of a room whose script can be exchanged while it runs."""

    def __init__(self, intake: Intake, text: TextModel, folder: Path) -> None:
        self._inner = intake
        self._file = folder / "script.jsonl"
        self.text = text
        self.put([line()])

    def put(self, lines: Sequence[Line]) -> None:
        """Play these from here on, from the first."""
        self._file.write_text("".join(json.dumps(each) + "\n" for each in lines))
        self._dealing = ScriptedIntake(self._inner, read_scripts(self._file, self.text))

    async def prepare(self, request: room_pb2.GenerateRequest, ctx: int) -> tuple[Job, Answer]:
        return await self._dealing.prepare(request, ctx)


@dataclass
class Said:
    """An answer as a client puts it together."""

    content: str | None = ""
    reasoning: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    deltas: list[dict[str, Any]] = field(default_factory=list)
    """Of a stream."""
    error: dict[str, Any] | None = None

    def pieces(self, name: str = "content") -> list[str]:
        """The deltas' pieces of one text, without the role's empty one."""
        return [delta[name] for delta in self.deltas if delta.get(name)]


@dataclass
class Rig:
    room: Room
    deck: Deck
    record: StringIO
    base_url: str
    http: httpx.AsyncClient

    def play(self, *lines: Line) -> None:
        self.deck.put(lines)

    @property
    def text(self) -> TextModel:
        return self.deck.text

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(entry) for entry in self.record.getvalue().splitlines()]

    @property
    def seen(self) -> dict[str, Any]:
        """What the room was asked last."""
        return self.records[-1]

    @property
    def port(self) -> int:
        port = httpx.URL(self.base_url).port
        assert port is not None
        return port

    async def post(self, messages: Any = None, **members: Any) -> httpx.Response:
        body = {"model": "pooled", "messages": [USER] if messages is None else messages, **members}
        reply = await self.http.post("/v1/chat/completions", json=body)
        shapes.check(reply)
        return reply

    async def ask(self, messages: Any = None, **members: Any) -> Said:
        """A whole answer."""
        reply = await self.post(messages, **members)
        assert reply.status_code == 200, reply.text
        return read_whole(reply)

    async def listen(self, messages: Any = None, **members: Any) -> Said:
        """A streamed answer."""
        reply = await self.post(messages, stream=True, stream_options={"include_usage": True}, **members)
        assert reply.status_code == 200, reply.text
        return read_stream(reply.text)

    async def both(self, script: Line | Sequence[Token], messages: Any = None, **members: Any) -> Said:
        """The answer to one script, asked for whole and as a stream, which must say the same (P100)."""
        self.play(script if isinstance(script, dict) else line(*script))
        whole, streamed = await self.ask(messages, **members), await self.listen(messages, **members)
        assert (whole.content or "") == (streamed.content or "")
        assert whole.reasoning == streamed.reasoning
        assert [_unnamed(call) for call in whole.calls] == [_unnamed(call) for call in streamed.calls]
        assert whole.finish == streamed.finish
        assert _counts(whole.usage) == _counts(streamed.usage)
        whole.deltas = streamed.deltas
        return whole

    async def see(self, messages: Any = None, **members: Any) -> dict[str, Any]:
        """What the room was asked for a request that must be fine."""
        before = len(self.records)
        await self.ask(messages, **members)
        assert len(self.records) == before + 1
        return self.seen

    async def refused(self, status: int = 400, messages: Any = None, **members: Any) -> dict[str, Any]:
        """The error of a request that must be refused, whole and streamed alike, before the room works on it."""
        before = len(self.records)
        errors = []
        for stream in (False, True):
            reply = await self.post(messages, stream=stream, **members)
            assert reply.status_code == status, (messages, members, reply.text)
            assert reply.headers["content-type"] == "application/json"
            errors.append(reply.json()["error"])
            assert set(errors[-1]) == {"message", "type", "param", "code"}
        assert len(self.records) == before
        assert errors[0]["code"] == errors[1]["code"]
        return dict(errors[0])

    async def at_rest(self) -> None:
        """Wait until nothing runs: the room hears of a caller that left a moment later."""
        while self.room.running or len(self.room.line):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def _unnamed(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "id"}


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def read_whole(reply: httpx.Response) -> Said:
    body = reply.json()
    (choice,) = body["choices"]
    message = choice["message"]
    assert message["role"] == "assistant"
    assert message["refusal"] is None
    assert "tool_calls" not in message or message["tool_calls"]
    return Said(
        message["content"],
        message.get("reasoning_content"),
        message.get("tool_calls", []),
        choice["finish_reason"],
        body["usage"],
    )


def events_of(stream: str) -> list[Any]:
    """The data of a stream's events; comments are left out."""
    blocks = stream.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(": ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def read_stream(stream: str) -> Said:
    """Put a stream together, and hold it to the order and shape of P105 and P106."""
    events = events_of(stream)
    said = Said()
    if "error" in events[-1]:
        said.error = events.pop()["error"]
    else:
        assert events.pop() == "[DONE]"
        assert events[-1]["choices"] == []
        said.usage = events.pop()["usage"]
        said.finish = events[-1]["choices"][0]["finish_reason"]
        assert events.pop()["choices"][0]["delta"] == {}
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) <= 1
    for event in events:
        (choice,) = event["choices"]
        assert choice["finish_reason"] is None
        said.deltas.append(choice["delta"])
    if said.deltas:
        assert said.deltas[0] == {"role": "assistant", "content": ""}
    for delta in said.deltas[1:]:
        _add(said, delta)
    return said


def _add(said: Said, delta: dict[str, Any]) -> None:
    ((name, value),) = delta.items()
    if name == "content":
        assert value
        assert not said.calls, "content after a call"
        said.content = (said.content or "") + value
    elif name == "reasoning_content":
        assert value
        assert not said.content, "reasoning after content"
        said.reasoning = (said.reasoning or "") + value
    else:
        assert name == "tool_calls"
        (entry,) = value
        _add_call(said, entry)


def _add_call(said: Said, entry: dict[str, Any]) -> None:
    if entry["index"] == len(said.calls):
        assert set(entry) == {"index", "id", "type", "function"}
        assert entry["id"]
        assert entry["function"]["name"]
        function = dict(entry["function"])
        said.calls.append({"id": entry["id"], "type": entry["type"], "function": function})
        return
    assert entry["index"] == len(said.calls) - 1
    assert set(entry) == {"index", "function"}
    assert set(entry["function"]) == {"arguments"}
    said.calls[-1]["function"]["arguments"] += entry["function"]["arguments"]


@asynccontextmanager
async def running(
    model: Path, folder: Path, *, bridge: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """A scripted room of `model` and a bridge before it, until the block ends. `settings` are the room's."""
    dealt: asyncio.Future[tuple[Room, Deck]] = asyncio.get_running_loop().create_future()
    record = StringIO()

    @asynccontextmanager
    async def playing(room: Room, text: TextModel, intake: Intake) -> AsyncIterator[Intake]:
        deck = Deck(intake, text, folder)
        peer = ScriptedPeer(room, text, record).start()
        dealt.set_result((room, deck))
        try:
            yield deck
        finally:
            peer.cancel()

    async with AsyncExitStack() as stack:
        with mock.patch("room.app.playing", playing):
            config = RoomConfig(str(model), listen="127.0.0.1:0", scripted=folder / "script.jsonl", **settings)
            opened: Opened = await stack.enter_async_context(started(run_host, config))
        room, deck = await dealt
        bridge_config = BridgeConfig(port=0, **(bridge or {}))
        base_url: str = await stack.enter_async_context(started(run_bridge, bridge_config, opened.clients[0]))
        root = base_url.removesuffix("/v1")
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=root, trust_env=False, timeout=60))
        rig = Rig(room, deck, record, base_url, http)
        while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield rig


@asynccontextmanager
async def started(run: Any, *arguments: Any) -> AsyncIterator[Any]:
    """What `run` says when it is ready; it is stopped when the block ends."""
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(*arguments, ready=ready.set_result))
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield ready.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
