"""The gRPC servers that rooms and peers listen with."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc
from grpc.aio import _server

from protos.dial import SERVER_OPTIONS


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """Ends calls of methods that are not registered, unread.

    gRPC's own decodes the method's name of such a call in the one loop that takes calls, and the loop dies when the
    name is not UTF-8: whoever reached the port could shut it. The core finds registered methods by their bytes.
    """

    async def _request_call(self) -> None:
        while True:  # a call is cancelled when nobody holds its state
            await super()._request_call()


Context = grpc.aio.ServicerContext[Any, Any]

Greet = Callable[[Context, str], Awaitable[object]]
"""Ends the calls of those who may not call a method at all. It is given the method's name, /PACKAGE.SERVICE/METHOD."""


class _Greeting(grpc.aio.ServerInterceptor):
    """Has callers greeted before their request is read.

    gRPC's own reads a single request whole, up to 64 MiB, before the servicer hears of the call. A stream is read by
    the servicer, so here single requests become streams of one.
    """

    def __init__(self, greet: Greet) -> None:
        self._greet = greet

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler, method = await continuation(handler_call_details), str(handler_call_details.method)
        if handler is None or handler.request_streaming:
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            self._answering(method, handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )

    def _streaming(self, method: str, serve: Any) -> Any:
        async def behaviour(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            await self._greet(context, method)
            request = await _only(requests, context)
            async for answer in serve(request, context):
                yield answer

        return behaviour

    def _answering(self, method: str, serve: Any) -> Any:
        async def behaviour(requests: AsyncIterator[Any], context: Context) -> Any:
            await self._greet(context, method)
            return await serve(await _only(requests, context), context)

        return behaviour


async def _only(requests: AsyncIterator[Any], context: Context) -> Any:
    """The one request of a call; a call without one, or with one that cannot be read, is ended."""
    try:
        return await anext(requests)
    except (StopAsyncIteration, DecodeError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no request that can be read")


class _Server(_server.Server):
    def __init__(self, interceptors: tuple[grpc.aio.ServerInterceptor, ...]) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Calls(self._loop, None, (), interceptors, tuple(SERVER_OPTIONS), None)


def new_server(greet: Greet | None = None) -> grpc.aio.Server:
    """A server for generated services, with the options that links of ours need. Unknown methods end as CANCELLED.

    Requests of callers whom `greet` turns away are not read. Streams, which servicers read themselves, it hears not of.
    """
    return cast(grpc.aio.Server, _Server((_Greeting(greet),) if greet else ()))
