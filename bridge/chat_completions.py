"""POST /v1/chat/completions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bridge.body import check_content, parse_json, read_body
from bridge.client import RoomClient
from bridge.config import BridgeConfig
from bridge.errors import ApiError, PipelineLost, ShuttingDown, as_api_error
from bridge.exchange import Exchange, Exchanges
from bridge.front import FAILED, request_id_of
from bridge.reply import Head, WholeAnswer, dump
from bridge.request import ChatRequest
from bridge.sse import ChunkWriter, KeepAlive

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies such as nginx would collect the stream otherwise.
    (b"x-accel-buffering", b"no"),
)

Write = Callable[[Exchange], Coroutine[Any, Any, None]]


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    def __init__(self, config: BridgeConfig, room: RoomClient, exchanges: Exchanges) -> None:
        self._config = config
        self._room = room
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_content(Headers(scope=scope), self._config.max_body)
        body = await read_body(receive, self._config.max_body, self._config.timeouts.body)
        chat = ChatRequest.parse(parse_json(body), self._room.state.ctx)
        del body  # screenshots in it would be held for as long as the answer takes
        request = chat.to_room(
            request_id=request_id_of(scope), client=self._room.id, max_waiting=self._config.max_queue
        )
        head = Head(self._room.state.model, chat.thinking)

        async def write(exchange: Exchange) -> None:
            if chat.stream:
                stream = _Stream(send, ChunkWriter(head, chat.include_usage), scope)
                await stream.run(exchange, self._config.keepalive)
            else:
                await _write_whole(exchange, WholeAnswer(head), scope, receive, send)

        with self._exchanges.open(request) as exchange:
            await _race(exchange, write, receive)


async def _race(exchange: Exchange, write: Write, receive: Receive) -> None:
    """Run the request and write its answer, until the answer is written or the caller has gone, whichever is first.

    Raises ApiError when there is no answer and nothing has been written yet.
    """
    failure: ApiError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchange.pump)
        tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
        try:
            await write(exchange)
        except ApiError as error:  # let out alone: a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _write_whole(exchange: Exchange, answer: WholeAnswer, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        async for event in exchange.events():
            answer.add(event)
    except ApiError:
        if not answer.done:
            raise
    await Response(dump(answer.to_json()), media_type="application/json")(scope, receive, send)


class _Stream:
    """Writes one answer as server-sent events. Its 200 goes out with the room's first event."""

    def __init__(self, send: Send, writer: ChunkWriter, scope: Scope) -> None:
        self._send = send
        self._writer = writer
        self._scope = scope
        self._request_id = request_id_of(scope)
        self._started = False

    async def run(self, exchange: Exchange, keepalive: float) -> None:
        """Raises ApiError when the request fails before the first byte; a later failure becomes an error chunk."""
        try:
            await self._run(exchange, keepalive)
        except Exception as error:
            failure = as_api_error(error, self._request_id)
            if not self._started:
                raise failure from error
            if isinstance(failure, ShuttingDown):  # says when to ask again, which an error chunk cannot
                failure = PipelineLost(str(failure))
            if not self._writer.done:
                self._scope[FAILED] = failure.code
                await self._write(self._writer.fail(failure, self._request_id))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run(self, exchange: Exchange, keepalive: float) -> None:
        clock = asyncio.get_running_loop().time
        silence = KeepAlive(keepalive, clock())
        while True:
            try:
                event = await exchange.next(within=silence.left(clock()))
            except anyio.EndOfStream:
                break
            if await self._write(
                silence.text(exchange.ahead, exchange.eta) if event is None else self._writer.write(event)
            ):
                silence.sent(clock())
        self._writer.end()

    async def _write(self, data: bytes) -> bool:
        """Whether any byte went out: the headers count."""
        sent = bool(data) or not self._started
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)})
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        return sent
