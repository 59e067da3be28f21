"""One answer: sampled tokens in, events for the caller out, and when it is over."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from protos import peer_pb2, room_pb2
from room.text.stops import StopScanner
from room.text.tokenizer import TextModel

Reason: TypeAlias = "room_pb2.FinishReason.ValueType"

Segment = tuple[str, str]
"""A kind of text, and a piece of it."""

TEXT = "text"


class Answer:
    """A state machine without I/O.

    `max_new` is the number of tokens after which the answer is cut. With `logprobs`, deltas carry their tokens.
    """

    def __init__(self, text: TextModel, stops: Sequence[str], max_new: int, logprobs: bool) -> None:
        self._model = text
        self._max_new = max_new
        self._detokenizer = text.detokenizer()
        self._scanner = StopScanner(stops)
        self._tokens = _Tokens(text) if logprobs else None
        self.completion_tokens = 0
        """Sampled so far, up to the one that ended the answer, an end-of-turn token included."""
        self.finished: Reason | None = None

    def feed(self, tokens: Sequence[peer_pb2.SampledToken]) -> list[room_pb2.GenerateEvent]:
        """What the caller hears of these tokens. Those after the answer's end are ignored."""
        segments: list[Segment] = []
        for token in tokens:
            if self.finished is None:
                segments += self._take(token)
        return self._events(segments)

    def mask(self) -> bytes | None:
        """Bits of the tokens that may come next; None: all."""
        return None

    def force(self) -> tuple[list[int], list[room_pb2.GenerateEvent]]:
        """Tokens that come next without a choice, and what the caller hears of them."""
        return [], []

    def _take(self, token: peer_pb2.SampledToken) -> list[Segment]:
        """The text that one more token releases. It may be the last one: an end of turn, the end of a stop string."""
        self.completion_tokens += 1
        if token.id in self._model.eos_ids:
            return self._finish(room_pb2.FINISH_REASON_STOP)
        text = self._detokenizer.feed([token.id])
        if self._tokens:
            self._tokens.add(token, text, self._detokenizer.holding)
        released, hit = self._scanner.feed(text)
        if hit:
            self.finished = room_pb2.FINISH_REASON_STOP
        elif self.completion_tokens >= self._max_new:
            return [(TEXT, released), *self._finish(room_pb2.FINISH_REASON_LENGTH)]
        return [(TEXT, released)]

    def _finish(self, reason: Reason) -> list[Segment]:
        """No stop string can come any more: what was held back for one is text."""
        self.finished = reason
        return [(TEXT, self._scanner.flush())]

    def _events(self, segments: list[Segment]) -> list[room_pb2.GenerateEvent]:
        text = "".join(piece for _, piece in segments)
        tokens = self._tokens.release(text, last=self.finished is not None) if self._tokens else []
        if not text and not tokens:
            return []
        return [room_pb2.GenerateEvent(text=room_pb2.TextDelta(text=text, tokens=tokens))]


class _Waiting(NamedTuple):
    token: room_pb2.TextToken
    start: int
    end: int


class _Tokens:
    """Tokens, each of which goes out with the last of its text. Positions count characters of the answer."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._waiting: deque[_Waiting] = deque()
        self._decoded = 0
        self._released = 0

    def add(self, token: peer_pb2.SampledToken, text: str, holding: bool) -> None:
        """A token that completed `text`; `holding`: it also began or went on with a character that is not whole."""
        data = self._model.token_bytes(token.id)
        start, self._decoded = self._decoded, self._decoded + len(text)
        if not data:
            return
        top = [
            room_pb2.TextChance(token=self._model.token_spelling(chance.id), logprob=chance.logprob)
            for chance in token.top
        ]
        told = room_pb2.TextToken(token=data, logprob=token.logprob, top=top)
        self._waiting.append(_Waiting(told, start, self._decoded + holding))

    def release(self, text: str, *, last: bool) -> list[room_pb2.TextToken]:
        """The tokens that go out with `text`; with the `last` one, those that began in it too."""
        self._released += len(text)
        out = []
        while self._waiting:
            token, start, end = self._waiting[0]
            if (start + 1 if last else end) > self._released:
                break
            self._waiting.popleft()
            out.append(token)
        return out
