"""One answer: sampled tokens in, events for the caller out, and when it is over."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple, TypeAlias

from protos import peer_pb2, room_pb2
from room.drafts import NOTHING, Draft
from room.text.guide import Guide, Rules
from room.text.memory import turn_key
from room.text.segments import ARGUMENTS, CALL, REASONING, TEXT, Segment, ThinkSplitter
from room.text.stops import StopScanner
from room.text.tokenizer import TextModel
from room.text.tools import Tool
from room.text.tools.base import Parser

Reason: TypeAlias = "room_pb2.FinishReason.ValueType"
Event = room_pb2.GenerateEvent

STOP, LENGTH, TOOL_CALLS = (
    room_pb2.FINISH_REASON_STOP,
    room_pb2.FINISH_REASON_LENGTH,
    room_pb2.FINISH_REASON_TOOL_CALLS,
)


class Answer:
    """A state machine without I/O.

    `max_new` is the number of tokens after which the answer is cut. With `logprobs`, deltas carry their tokens.
    `thinking` is what the prompt was rendered with. Only `tools` can be called, `most` times; with none of them
    what looks like a call is text. `rules` say what the answer is held to.
    """

    def __init__(
        self,
        text: TextModel,
        stops: Sequence[str],
        max_new: int,
        logprobs: bool,
        *,
        thinking: bool = False,
        tools: Sequence[Tool] = (),
        most: int = 0,
        rules: Rules | None = None,
    ) -> None:
        rules = rules or Rules()
        traits = text.traits
        self._model = text
        self._max_new = max_new
        self._most = most
        self._lead = traits.on if thinking else traits.off
        self._guide = Guide(text, rules, thinking=traits.thinking(thinking), max_new=max_new)
        self._reader = _Reader(text, thinking, tools, guided=rules.whole)
        self._scanner = StopScanner(stops)
        self._tokens = _Tokens(text) if logprobs else None
        self._ids: list[int] = []
        self._said = _Said()
        self.completion_tokens = 0
        """Sampled or forced so far, up to the one that ended the answer, an end-of-turn token included."""
        self.finished: Reason | None = None

    @property
    def reasoning_tokens(self) -> int:
        """Tokens between the tags of thoughts so far; `completion_tokens` counts them too."""
        return self._reader.reasoning_tokens

    def mask(self) -> bytes | None:
        """Bits of the tokens that may come next, token n in bit n % 8 of byte n // 8; None: all may."""
        return self._guide.mask()

    @property
    def steady(self) -> bool:
        """The mask should stay as it is, and nothing be forced, whatever token comes next."""
        return self._guide.steady

    def ahead(self, guess: Sequence[int]) -> Draft:
        """What of a guess may come, with the tokens that leave no choice put in. An end of turn ends it."""
        ids = list(takewhile(lambda token: token not in self._model.eos_ids, guess))
        return self._guide.ahead(ids) if ids else NOTHING

    def feed(self, tokens: Sequence[peer_pb2.SampledToken]) -> list[Event]:
        """What the caller hears of these tokens. Those after the answer's end are ignored.

        Raises InternalError for a token that mask() did not allow.
        """
        heard: list[_Heard] = []
        for token in tokens:
            if self.finished is None:
                heard += self._take(token)
        return self._events(heard)

    def force(self) -> tuple[list[int], list[Event]]:
        """Tokens that come next without a choice, taken as if they had been fed, and what the caller hears of them."""
        forced: list[int] = []
        heard: list[_Heard] = []
        while self.finished is None and (ids := self._guide.forced(self.reasoning_tokens)):
            for token in ids:
                if self.finished is None:
                    heard += self._take(peer_pb2.SampledToken(id=token))
                    forced.append(token)
        return forced, self._events(heard)

    # ------------------------------------------------------------ one token

    def _take(self, token: peer_pb2.SampledToken) -> "list[_Heard]":
        """What one more token releases. It may be the last one: an end of turn, the end of a stop string, of a call."""
        self.completion_tokens += 1
        if token.id in self._model.eos_ids:
            return self._finish([], None)
        self._ids.append(token.id)
        reader = self._reader
        self._guide.take(token.id, thinking=reader.thinking)
        thoughts = reader.thoughts
        start = reader.decoded
        segments = reader.feed(token.id)
        if reader.thoughts > thoughts:
            self._guide.thoughts_over()
        if self._tokens:
            self._tokens.add(token, start, reader.decoded + reader.holding)
        heard = self._hear(segments)
        if self.finished is not None:
            return heard
        if self._guide.over or 0 < self._most <= reader.calls:
            return self._finish(heard, None)
        if self.completion_tokens >= self._max_new:
            return self._finish(heard, LENGTH)
        return heard

    def _hear(self, segments: Iterable[Segment]) -> "list[_Heard]":
        """What the caller hears of segments: of text that which can be no stop string any more."""
        heard = []
        for kind, piece in segments:
            if kind != TEXT:
                # No stop string goes on behind other things: what was held back for one is text.
                heard.append(self._heard(TEXT, self._scanner.flush()))
                heard.append(self._heard(kind, piece))
                continue
            before = len(self._scanner.held)
            released, hit = self._scanner.feed(piece)
            if hit:
                self.finished = STOP
                upto = self._reader.consumed - before - len(piece) + len(released)
                return [*heard, self._heard(TEXT, released, upto)]
            heard.append(self._heard(TEXT, released))
        return heard

    def _heard(self, kind: str, piece: str, upto: int | None = None) -> "_Heard":
        """A segment with the tokens it completes; those of other kinds than text are told to nobody."""
        self._said.add(kind, piece)
        if not self._tokens:
            return _Heard(kind, piece, [])
        last = self.finished is not None
        consumed = self._reader.consumed - len(self._scanner.held) if upto is None else upto
        tokens = self._tokens.release(consumed, last=last)
        return _Heard(kind, piece, tokens if kind == TEXT and not self._reader.apart else [])

    def _finish(self, heard: "list[_Heard]", reason: "Reason | None") -> "list[_Heard]":
        """The answer ends here: by itself, or for `reason`."""
        reader = self._reader
        heard += self._hear(reader.flush(cut=reason is not None))
        if self.finished is None:
            whole = reader.calls > 0 and not reader.in_call
            self.finished = reason or (TOOL_CALLS if whole else STOP)
            heard.append(self._heard(TEXT, self._scanner.flush()))
            if not reader.in_call:
                self._model.remember(self._said.key(), self._lead, self._ids)
        return heard

    # ------------------------------------------------------------ events

    def _events(self, heard: "list[_Heard]") -> list[Event]:
        """Neighbours of one kind are one event; a call's beginning is always one of its own."""
        events = []
        index = self._said.calls - sum(each.kind == CALL for each in heard) - 1
        for kind, group in groupby(filter(_Heard.audible, heard), lambda each: each.kind):
            pieces = list(group)
            text = "".join(each.piece for each in pieces)
            if kind == TEXT:
                tokens = [token for each in pieces for token in each.tokens]
                events.append(Event(text=room_pb2.TextDelta(text=text, tokens=tokens)))
            elif kind == REASONING:
                events.append(Event(reasoning=room_pb2.ReasoningDelta(text=text)))
            elif kind == ARGUMENTS:
                events.append(Event(call_delta=room_pb2.ToolCallDelta(index=index, arguments=text)))
            else:
                for each in pieces:
                    index += 1
                    events.append(Event(call=room_pb2.ToolCallStart(index=index, name=each.piece)))
        return events


class _Heard(NamedTuple):
    """A segment, and the tokens that go out with it."""

    kind: str
    piece: str
    tokens: list[room_pb2.TextToken]

    def audible(self) -> bool:
        return bool(self.piece or self.tokens)


class _Reader:
    """Tokens to segments: characters, thoughts, calls. Positions count the characters decoded so far."""

    def __init__(self, text: TextModel, thinking: bool, tools: Sequence[Tool], *, guided: bool) -> None:
        traits = text.traits
        form = traits.format
        self._detokenizer = text.detokenizer()
        self._parser: Parser | None = form.parser(tools) if tools or form.ALWAYS else None
        self._splitter: ThinkSplitter | None = None
        if traits.tags is not None:
            self._splitter = ThinkSplitter(
                traits.tags,
                inside=traits.opened if thinking else traits.opened_always,
                opener=form.OPENER if tools else "",
                guided=guided,
            )
        self.decoded = 0
        self.reasoning_tokens = 0
        self._maybe_tag = 0  # tokens of reasoning that may turn out to be the closing tag

    @property
    def thinking(self) -> bool:
        return self._splitter is not None and self._splitter.thinking

    @property
    def thoughts(self) -> int:
        """How often thoughts have ended."""
        return self._splitter.closed if self._splitter else 0

    @property
    def calls(self) -> int:
        """Whole ones."""
        return self._parser.complete if self._parser else 0

    @property
    def in_call(self) -> bool:
        return self._parser is not None and self._parser.inside

    @property
    def apart(self) -> bool:
        """What comes now is not the answer's text."""
        return self.thinking or self.in_call or self.calls > 0

    @property
    def holding(self) -> bool:
        """Bytes of an unfinished character are waiting."""
        return self._detokenizer.holding

    @property
    def consumed(self) -> int:
        """Characters that have come out as segments or were dropped."""
        held = len(self._splitter.held) if self._splitter else 0
        return self.decoded - held - (len(self._parser.held) if self._parser else 0)

    def feed(self, token: int) -> list[Segment]:
        text = self._detokenizer.feed([token])
        self.decoded += len(text)
        before = self.thinking
        segments = self._splitter.feed(text) if self._splitter else [(TEXT, text)] if text else []
        self._count(before, segments)
        return self._parse(segments)

    def flush(self, *, cut: bool) -> list[Segment]:
        """The answer ends here; `cut`: not by the model's will."""
        self.reasoning_tokens += self._maybe_tag if self.thinking else 0
        self._maybe_tag = 0
        segments = self._parse(self._splitter.flush()) if self._splitter else []
        return segments + (self._parser.flush(cut=cut) if self._parser else [])

    def _parse(self, segments: list[Segment]) -> list[Segment]:
        if self._parser is None:
            return segments
        out: list[Segment] = []
        for kind, piece in segments:
            out += self._parser.feed(piece) if kind == TEXT else [(kind, piece)]
        return out

    def _count(self, before: bool, segments: list[Segment]) -> None:
        """Count a token that is, or may be, one of thoughts. The tags themselves are none."""
        if self._splitter is None:
            return
        if any(kind == REASONING for kind, _ in segments):
            self.reasoning_tokens += self._maybe_tag + 1
            self._maybe_tag = 0
        elif before and self.thinking and self._splitter.held.strip("\n"):
            self._maybe_tag += 1
        elif before and self.thinking:
            self.reasoning_tokens += 1
        else:
            self._maybe_tag = 0


class _Said:
    """What a caller has been told of an answer: what it will send back as a turn."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[str]] = {REASONING: [], TEXT: []}
        self._calls: list[tuple[str, list[str]]] = []

    @property
    def calls(self) -> int:
        return len(self._calls)

    def add(self, kind: str, piece: str) -> None:
        if kind == CALL:
            self._calls.append((piece, []))
        elif kind == ARGUMENTS:
            self._calls[-1][1].append(piece)
        else:
            self._pieces[kind].append(piece)

    def key(self) -> bytes:
        reasoning, text = ("".join(self._pieces[kind]) for kind in (REASONING, TEXT))
        return turn_key(reasoning, text, [(name, "".join(pieces)) for name, pieces in self._calls])


class _Waiting(NamedTuple):
    token: room_pb2.TextToken
    start: int
    end: int


class _Tokens:
    """Tokens, each of which goes out with the last of its text. Positions count characters of the answer."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._waiting: deque[_Waiting] = deque()

    def add(self, token: peer_pb2.SampledToken, start: int, end: int) -> None:
        """A token whose characters lie in [start, end)."""
        data = self._model.token_bytes(token.id)
        if not data:
            return
        top = [
            room_pb2.TextChance(token=self._model.token_spelling(chance.id), logprob=chance.logprob)
            for chance in token.top
        ]
        self._waiting.append(_Waiting(room_pb2.TextToken(token=data, logprob=token.logprob, top=top), start, end))

    def release(self, upto: int, *, last: bool) -> list[room_pb2.TextToken]:
        """The tokens that go out with the text up to `upto`; with the `last` of it, those that began in it too."""
        out = []
        while self._waiting:
            token, start, end = self._waiting[0]
            if (start + 1 if last else end) > upto:
                break
            self._waiting.popleft()
            out.append(token)
        return out
