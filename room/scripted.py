"""A room that plays a script: all of it is real but the model, in whose place a peer in this process says given tokens.

The peer sits on the other side of the room's outboxes, as a real one does at the far end of its streams. So queue,
admission, schedule, text, limits and finish are those of any room. docs/testing.md describes script and record.
"""

import asyncio
import json
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, TextIO, get_args
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskGroup

from protos import peer_pb2, room_pb2
from protos.lanes import LANES, Lane
from protos.machine import machine_id
from room.errors import StartError
from room.intake import Intake
from room.members import Member
from room.room import Room
from room.session import Job, Session
from room.text.answer import Answer
from room.text.template import ROLES
from room.text.tokenizer import TextModel

log = logging.getLogger("pooled.room")

Fault = Literal["error", "hang", "drop"]

MEMORY = 1 << 50
"""Bytes the peer says it lends: no model is too large to be played."""


@dataclass(frozen=True)
class Script:
    """What the model says to one request."""

    tokens: tuple[int, ...] = ()
    due: tuple[float, ...] = ()
    """Seconds from the start until each token comes, then the end; those beyond the last come with it."""
    ctx: int | None = None
    """Tokens of context for this request; None: the room's."""
    fault: Fault | None = None
    """What comes after the tokens; None: the end of the turn."""


@dataclass(frozen=True)
class ScriptedJob(Job):
    """A job that knows what will be said, and what was asked."""

    script: Script
    request: room_pb2.GenerateRequest


@asynccontextmanager
async def playing(room: Room, text: TextModel, intake: Intake) -> AsyncIterator[Intake]:
    """Play the script of the room's config until the block ends; gives the intake that hands out its lines.

    Raises StartError for a script that cannot be read and a record that cannot be written.
    """
    config = room.config
    assert config.scripted is not None
    scripts = await asyncio.to_thread(read_scripts, config.scripted, text)
    with _opened(config.record) as record:
        peer = ScriptedPeer(room, text, record).start()
        try:
            yield ScriptedIntake(intake, scripts)
        finally:
            peer.cancel()


class ScriptedIntake(Intake):
    """Gives each request that arrives the script's next line, also one that is then refused. The last line repeats."""

    def __init__(self, intake: Intake, scripts: Sequence[Script]) -> None:
        self._intake = intake
        self._scripts = scripts
        self._arrived = 0

    async def prepare(self, request: room_pb2.GenerateRequest, ctx: int) -> tuple[Job, Answer]:
        script = self._scripts[min(self._arrived, len(self._scripts) - 1)]
        self._arrived += 1
        job, answer = await self._intake.prepare(request, min(ctx, script.ctx or ctx))
        own = {each.name: getattr(job, each.name) for each in fields(job)}
        return ScriptedJob(**own, script=script, request=request), answer


# ---------------------------------------------------------------- one request's play


class Play:
    """How far an answer has come in its script, which is measured in bytes.

    The room may write tokens itself (a closing tag, what a grammar leaves no choice in) and may forbid what the script
    says next. What the room writes uses nothing of the script up unless it is what comes next there, in these tokens
    or others; a token that is forbidden is left out, as is all before a control token that the room writes.
    """

    def __init__(self, script: Script, speller: "Speller", end: int, started_at: float) -> None:
        self._script = script
        self._speller = speller
        self._end = end
        """The token that ends a turn."""
        self._started_at = started_at
        self._data = b"".join(map(speller.spelling, script.tokens))
        self._starts = [0, *accumulate(len(speller.spelling(token)) for token in script.tokens)]
        self._reached = [0]
        """[n]: how far the script has been said after n tokens of the answer."""
        self._settled = 0
        """Of these, how many do not rest on a draft."""
        self._given: dict[int, tuple[int, int]] = {}
        """Place in the answer -> the token given there, and how far the script has been said with it."""

    def follow(self, answer: Sequence[int], surely: int) -> int:
        """How far the script has been said. Of `answer` the first `surely` tokens are settled, the rest is a draft."""
        del self._reached[min(surely, self._settled) + 1 :]
        self._settled = surely
        for place in range(len(self._reached) - 1, len(answer)):
            self._reached.append(self._after(place, answer[place]))
        return self._reached[len(answer)]

    def _after(self, place: int, token: int) -> int:
        at = self._reached[place]
        given, after = self._given.get(place, (-1, at))
        if token == given:
            return after
        if token in self._speller.controls:
            # The script could not say what comes before its own one: that is left out.
            return next((after for token_there, after in self._next(at) if token_there == token), at)
        spelling = self._speller.spelling(token)
        return at + len(spelling) if self._data.startswith(spelling, at) else at

    def fault(self, at: int) -> Fault | None:
        """What comes instead of a token when the script has been said up to `at`."""
        return self._script.fault if at == len(self._data) else None

    def due(self, at: int) -> float:
        """When what follows `at` comes."""
        due, number = self._script.due, bisect_right(self._starts, at) - 1
        return self._started_at + (due[min(number, len(due) - 1)] if due else 0.0)

    def say(self, at: int, place: int, mask: bytes) -> int:
        """The token for `place` in the answer: the script's first one from `at` on that `mask` allows."""
        for token, after in self._next(at):
            if not mask or _allows(mask, token):
                self._given[place] = token, after
                return token
        return next(token for token in range(len(mask) * 8) if _allows(mask, token))

    def _next(self, at: int) -> Iterator[tuple[int, int]]:
        """What the script has from `at` on: tokens, and how far it has been said with each."""
        number = bisect_left(self._starts, at)
        if self._starts[number] != at:  # the room has written the beginning of a token
            token = self._speller.longest(self._data[at : self._starts[number]])
            yield token, at + len(self._speller.spelling(token))
        yield from zip(self._script.tokens[number:], self._starts[number + 1 :], strict=True)
        yield self._end, len(self._data)


def _allows(mask: bytes, token: int) -> bool:
    return token < len(mask) * 8 and bool(mask[token // 8] >> token % 8 & 1)


# ---------------------------------------------------------------- the peer


@dataclass(frozen=True)
class Waiting:
    """A frame that is not due yet."""

    frame: peer_pb2.Frame
    scope: anyio.CancelScope


class ScriptedPeer:
    """Holds all layers and answers each frame when it is due. After it has left it comes back at once."""

    def __init__(self, room: Room, text: TextModel, record: TextIO | None) -> None:
        if not text.eos_ids:
            raise StartError("this model names no token that ends a turn, so no script could end; choose another")
        self._room = room
        self._text = text
        self._record = record
        self._speller = Speller(text)
        self._end = min(text.eos_ids)
        self._plays: WeakKeyDictionary[Session, Play] = WeakKeyDictionary()
        self._masks: dict[bytes, bytes] = {}
        self._plans: dict[int, peer_pb2.SamplingPlan] = {}
        self._waiting: list[Waiting] = []

    def start(self) -> "asyncio.Task[None]":
        """Join the room, and stay in it until the task is cancelled."""
        task = asyncio.create_task(self._run())
        task.add_done_callback(_tell_bug)
        return task

    async def _run(self) -> None:
        while True:
            await self._lend()

    async def _lend(self) -> None:
        """One membership, from its start to its end."""
        for kept in (self._masks, self._plans, self._waiting):
            kept.clear()
        hello = room_pb2.Hello(
            peer_id="script", name="script", device="none", dtype="float32", memory=MEMORY, machine=machine_id()
        )
        member = self._room.join(hello)
        try:
            async with anyio.create_task_group() as group:
                for lane in LANES:
                    group.start_soon(self._work, member, lane, group)
                async for message in member.outbox:
                    self._hear(member, message)
                group.cancel_scope.cancel()
        finally:
            self._room.leave(member, "it stopped")

    def _hear(self, member: Member, message: room_pb2.ToMember) -> None:
        if message.HasField("assignment"):
            self._keep_apart()
            ready = room_pb2.SliceReady(epoch=message.assignment.epoch, pages=message.assignment.pages)
            self._room.heard(member, room_pb2.FromMember(ready=ready))
        elif message.HasField("heartbeat"):
            self._room.heard(member, room_pb2.FromMember(heartbeat=room_pb2.Heartbeat()))
            self._let_go()

    def _keep_apart(self) -> None:
        """Requests travel in frames of their own, so that one which hangs or is not due yet holds up no other."""
        self._room.chains[0].tuning.fix(self._room.config.max_running, ahead=0)  # it looks at what the room has

    def _let_go(self) -> None:
        """Frames that wait for nobody any more come back: until they do, their pages stay taken."""
        awaited = {session.number for session in self._room.running}
        for waiting in self._waiting:
            if not any(segment.session in awaited for segment in waiting.frame.segments):
                waiting.scope.cancel()

    async def _work(self, member: Member, lane: Lane, group: TaskGroup) -> None:
        async for message in member.lanes[lane]:
            if message.HasField("mask"):
                self._masks[message.mask.hash] = message.mask.bits
            elif message.HasField("plan"):
                self._plans[message.plan.step] = message.plan
            else:
                group.start_soon(self._answer, member, message.frame)

    async def _answer(self, member: Member, frame: peer_pb2.Frame) -> None:
        plan = self._plans.pop(frame.step, peer_pb2.SamplingPlan())
        positions = [self._position(segment) for segment in frame.segments]
        sampled = [position for position in positions if position.sampled]
        fault = next((each.fault for each in sampled if each.fault), None)
        due = max((each.due for each in sampled), default=0.0)
        if await self._let_go_before(math.inf if fault == "hang" else due, frame) or fault is None:
            self._room.arrived(member, peer_pb2.FromPeer(result=self._result(frame, sampled, plan)))
        elif fault == "drop":
            self._room.leave(member, "the script says so")
        else:
            failed = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="the script says so")
            self._room.arrived(member, peer_pb2.FromPeer(fault=failed))

    async def _let_go_before(self, due: float, frame: peer_pb2.Frame) -> bool:
        """Wait until `due`; True when nobody waits for the frame any more before that."""
        if due <= anyio.current_time():
            return False
        waiting = Waiting(frame, anyio.CancelScope(deadline=due))
        self._waiting.append(waiting)
        with waiting.scope:
            await anyio.sleep_forever()
        self._waiting.remove(waiting)
        return anyio.current_time() < due

    def _result(
        self, frame: peer_pb2.Frame, sampled: "Sequence[Position]", plan: peer_pb2.SamplingPlan
    ) -> peer_pb2.FrameResult:
        result = peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step)
        for position, spec in zip(sampled, plan.specs, strict=True):
            masks = [self._masks[name] if name else b"" for name in spec.masks]
            result.segments.add(tokens=[peer_pb2.SampledToken(id=token) for token in position.say(masks)])
        return result

    def _position(self, segment: peer_pb2.Segment) -> "Position":
        session = next((each for each in self._room.running if each.number == segment.session), None)
        if session is None:  # given up since the frame was sent
            return Position(Play(Script(), self._speller, self._end, 0.0), [], segment.sampled)
        answer = [*session.tokens[: segment.start], *segment.ids][len(session.job.prompt) :]
        return Position(self._play(session), answer, segment.sampled)

    def _play(self, session: Session) -> Play:
        play = self._plays.get(session)
        if play is None:
            job = session.job
            assert isinstance(job, ScriptedJob)
            play = self._plays[session] = Play(job.script, self._speller, self._end, anyio.current_time())
            if self._record is not None:
                self._record.write(json.dumps(entry(job, self._text), ensure_ascii=False) + "\n")
                self._record.flush()
        return play


def _tell_bug(peer: "asyncio.Task[None]") -> None:
    if not peer.cancelled():
        log.error("the scripted peer broke", exc_info=peer.exception())


class Position:
    """Where one frame finds an answer: `sampled` tokens are asked for, the last of them after all of `answer`."""

    def __init__(self, play: Play, answer: Sequence[int], sampled: int) -> None:
        self.sampled = sampled
        self._play = play
        self._answer = answer
        self._first = max(len(answer) - sampled + 1, 0) if sampled else len(answer)
        self._at = play.follow(answer[: self._first], self._first)

    @property
    def due(self) -> float:
        return self._play.due(self._at)

    @property
    def fault(self) -> Fault | None:
        return self._play.fault(self._at)

    def say(self, masks: Sequence[bytes]) -> Iterator[int]:
        """A token for each position asked for; a draft's later ones as if all before it had been accepted."""
        for number in range(self.sampled):
            place = self._first + number
            at = self._play.follow(self._answer[:place], self._first)
            yield self._play.say(at, place, masks[number] if masks else b"")


# ---------------------------------------------------------------- the record


def entry(job: ScriptedJob, text: TextModel) -> dict[str, Any]:
    """What the record says of a request."""
    request, params = job.request, job.params
    return {
        "turns": [_turn(turn) for turn in request.turns],
        "prompt": b"".join(map(text.token_spelling, job.prompt)).decode("utf-8", "replace"),
        "prompt_ids": list(job.prompt),
        "sample": {
            # float32 on the way, so that 0.8 would read 0.800000012
            "temperature": round(params.temperature, 6),
            "top_k": params.top_k,
            "top_p": round(params.top_p, 6),
            "min_p": round(params.min_p, 6),
            "repetition_penalty": round(params.repetition_penalty, 6),
            "max_new": job.max_new,
            "stop": list(request.stop),
        },
        "thinking": request.thinking,
        "effort": request.effort,
        "grammar": _grammar(request),
    }


_MODES = {room_pb2.TOOL_MODE_AUTO: "auto", room_pb2.TOOL_MODE_REQUIRED: "required"}
_FORMATS = {room_pb2.ANSWER_FORMAT_JSON: "json_object", room_pb2.ANSWER_FORMAT_SCHEMA: "json_schema"}


def _turn(turn: room_pb2.Turn) -> dict[str, Any]:
    """As a message of the API; what is empty is left out."""
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in turn.calls]
    more = {"reasoning_content": turn.reasoning, "tool_calls": calls, "tool_call_id": turn.call_id}
    return {"role": ROLES[turn.role], "content": turn.text} | {name: value for name, value in more.items() if value}


def _grammar(request: room_pb2.GenerateRequest) -> dict[str, Any] | None:
    """What the answer is held to; None: to nothing."""
    mode, form = _MODES.get(request.tools.mode), _FORMATS.get(request.format)
    if mode is None and form is None:
        return None
    tools = request.tools
    return {
        "mode": mode,
        "tools": [tool.name for tool in tools.tools],
        "allowed": list(tools.allowed),
        "most": tools.most,
        "format": form,
        "schema": json.loads(request.schema) if request.schema else None,
    }


def _opened(record: Path | None) -> AbstractContextManager[TextIO | None]:
    try:
        return record.open("w", encoding="utf-8") if record else nullcontext()
    except OSError as error:
        raise StartError(f"cannot write the record to {record}: {error.strerror}; name another file") from error


# ---------------------------------------------------------------- the script


def read_scripts(path: Path, text: TextModel) -> list[Script]:
    """The lines of a script, at least one. Raises StartError naming what is wrong with which line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartError(f"cannot read the script {path}: {why}") from error
    speller = Speller(text)
    scripts = [_script(line, f"line {number} of {path}", speller) for number, line in enumerate(lines, 1) if line]
    if not scripts:
        raise StartError(f"the script {path} has no line; write one JSON object for each request")
    return scripts


def _script(line: str, where: str, speller: "Speller") -> Script:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise StartError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict) or not set(found) <= {"tokens", "at_ms", "ctx", "fault"}:
        raise StartError(f"{where} must be an object with tokens, at_ms, ctx and fault, and nothing else")
    pieces, at_ms, ctx, fault = (found.get(name) for name in ("tokens", "at_ms", "ctx", "fault"))
    pieces, at_ms = pieces or [], at_ms or []
    for fine, wanted in (
        (_all(pieces, (str, int)), "tokens is a list of strings and token ids"),
        (_all(at_ms, (int, float)) and all(ms >= 0 for ms in at_ms), "at_ms is a list of milliseconds"),
        (ctx is None or (_all([ctx], (int,)) and ctx >= 1), "ctx is a number of tokens, 1 or more"),
        (fault is None or fault in get_args(Fault), f"fault is null or one of {', '.join(get_args(Fault))}"),
    ):
        if not fine:
            raise StartError(f"{where}: {wanted}")
    spelled = [speller.ids(piece) for piece in pieces]
    if () in spelled:
        raise StartError(f"{where}: {pieces[spelled.index(())]!r} is no token of this model, nor several")
    times = [ms / 1000 for ms in at_ms]
    due = [time for time, ids in zip(times, spelled, strict=False) for _ in ids] + times[len(spelled) :]
    return Script(tuple(chain.from_iterable(spelled)), tuple(due), ctx, fault)


def _all(values: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(values, list) and all(isinstance(each, kinds) and not isinstance(each, bool) for each in values)


class Speller:
    """Finds the tokens for a piece of a script, and the bytes of tokens; control tokens go by their names."""

    def __init__(self, text: TextModel) -> None:
        self.spelling = text.token_spelling
        self.controls = frozenset(text.controls)
        self._size = text.vocab_size
        self._tokens = {
            spelling: token for token in reversed(range(self._size)) if (spelling := text.token_spelling(token))
        }
        self._longest = max(map(len, self._tokens))

    def ids(self, piece: str | int) -> tuple[int, ...]:
        """An id as it is; a text as the one token with its bytes, else as the longest tokens that spell it.

        Nothing for what is no token.
        """
        if isinstance(piece, int):
            return (piece,) if 0 <= piece < self._size and self.spelling(piece) else ()
        data, ids = piece.encode("utf-8", "surrogatepass"), []
        while data:
            token = self.longest(data)
            if token < 0:
                return ()
            ids.append(token)
            data = data[len(self.spelling(token)) :]
        return tuple(ids)

    def longest(self, data: bytes) -> int:
        """The longest token that `data` begins with; -1 where there is none."""
        lengths = range(min(len(data), self._longest), 0, -1)
        return next((self._tokens[data[:length]] for length in lengths if data[:length] in self._tokens), -1)
