"""An answer as server-sent events.

Every event is one `data:` line and a blank line, every comment one `: text` line and a blank line. There is never an
`id:`, `event:` or `retry:` line: after an `id:` line several SDKs take the next comment for an event and fail.
"""

from collections.abc import Mapping

from bridge import calls
from bridge.errors import ApiError
from bridge.reply import Head, dump, finish_reason, unfinished, usage_json
from protos import room_pb2

DONE = b"data: [DONE]\n\n"

_LINE_BREAKS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""Line ends to Unicode and so to clients that split with their language's own function."""


def data(value: object) -> bytes:
    return b"data: " + _line(value) + b"\n\n"


def _line(value: object) -> bytes:
    """JSON without anything that a reader could take for the end of a line."""
    line = dump(value)
    return line if line.isascii() else line.decode().translate(_LINE_BREAKS).encode()


def comment(text: str) -> bytes:
    """A comment with a text: some clients choke on a bare colon, others on one without the blank line after it."""
    return f": {' '.join(text.split())}\n\n".encode()


class KeepAlive:
    """When to break a stream's silence, and how. Fed with the time in seconds; knows no clock of its own."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._sent_at = now

    def sent(self, now: float) -> None:
        """Bytes went out: silence starts anew."""
        self._sent_at = now

    def left(self, now: float) -> float:
        """Seconds until a comment is due; 0 or less: it is."""
        return self._sent_at + self._interval - now

    @staticmethod
    def text(ahead: int, eta: int = 0) -> bytes:
        """`ahead`: how many must make way before the request starts; 0: it runs. `eta`: in seconds; 0: not known."""
        if not ahead:
            return comment("keep-alive")
        return comment(f"queued, {ahead} ahead") + (comment(f"eta {eta}s") if eta else b"")


class ChunkWriter:
    """Turns the events of one answer into chunks."""

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._content = self._around("content")
        self._reasoning = self._around("reasoning_content")
        self._opened = False
        self._finish: str | None = None
        self.done = False

    def write(self, event: room_pb2.GenerateEvent) -> bytes:
        """The bytes to send for `event`; often none."""
        match event.WhichOneof("event"):
            case "text" if event.text.text:
                return self._open() + _line(event.text.text).join(self._content)
            case "reasoning" if event.reasoning.text:
                return self._open() + _line(event.reasoning.text).join(self._reasoning)
            case "call":
                return self._open() + self._call(calls.opening(event.call))
            case "call_delta" if event.call_delta.arguments:
                return self._open() + self._call(calls.continuation(event.call_delta))
            case "notice" if event.notice.text.strip():
                return comment(event.notice.text)
            case "finish":
                # Held until the usage is here: a stream that fails in between must not look finished.
                self._finish = finish_reason(event.finish)
            case "usage" if self._finish is not None:
                return self._close(event.usage)
        return b""

    def fail(self, error: ApiError, request_id: str) -> bytes:
        """The error chunk that ends a stream in place of its finish chunk and [DONE]."""
        return data(error.payload(request_id))

    def end(self) -> None:
        """Raises InternalError when the stream of events ended before the answer did."""
        if not self.done:
            raise unfinished()

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._delta({"role": "assistant", "content": ""})

    def _close(self, usage: room_pb2.Usage) -> bytes:
        self.done = True
        written = self._open() + self._delta({}, self._finish)
        if self._include_usage:
            written += self._chunk([], usage=usage_json(usage, self._head.thinking))
        return written + DONE

    def _call(self, entry: dict[str, object]) -> bytes:
        # One entry per chunk: clients merge two of one call wrongly.
        return self._delta({"tool_calls": [entry]})

    def _around(self, member: str) -> tuple[bytes, bytes]:
        """What goes before and behind each piece of text in its chunk, written once: all else in it stays the same."""
        before, _, behind = self._delta({member: 0}).partition(b'"%s":0' % member.encode())
        return before + b'"%s":' % member.encode(), behind

    def _delta(self, delta: Mapping[str, object], finish: str | None = None) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])

    def _chunk(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return data({**self._head.to_json("chat.completion.chunk"), "choices": choices, **more})
