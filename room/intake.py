"""From a caller's request to a job: template, tokens, limits. The heavy part runs beside the event loop."""

import asyncio

from protos import room_pb2
from room.config import RoomConfig
from room.errors import ContextLengthExceeded, InvalidValue
from room.sampling import resolve, room_setting
from room.session import Job
from room.text.answer import Answer
from room.text.rules import FormMaker, shown_tools
from room.text.tokenizer import TextModel

LEAST_FREE = 32
"""Tokens of context that a prompt must leave free for the answer."""

MAX_STOPS = 16
MAX_STOP_LENGTH = 256


class Intake:
    """Prepares requests for one model."""

    def __init__(self, text: TextModel, config: RoomConfig) -> None:
        self._text = text
        self._forms = FormMaker(text)
        self._own = room_setting(config, text.default_sampling)

    def warm_up(self) -> None:
        """Build what the first request would wait for. Blocks for a second or more: call it in a thread."""
        self._forms.warm_up()

    async def prepare(self, request: room_pb2.GenerateRequest, ctx: int) -> tuple[Job, Answer]:
        """Check a request and turn it into a job for a context of `ctx` tokens.

        Raises InvalidValue, ContextLengthExceeded, InvalidSchema, SchemaTooComplex.
        """
        if not request.turns:
            raise InvalidValue("messages", "messages must hold at least one message")
        if any(
            turn.role == room_pb2.ROLE_UNSPECIFIED or turn.role not in room_pb2.Role.values() for turn in request.turns
        ):
            raise InvalidValue("messages", "each message has a role: system, user, assistant or tool")
        if request.max_new < 1:
            raise InvalidValue("max_tokens", f"max_tokens must be at least 1, got {request.max_new}")
        if len(request.stop) > MAX_STOPS or any(not 0 < len(stop) <= MAX_STOP_LENGTH for stop in request.stop):
            raise InvalidValue("stop", f"stop holds at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters")
        params = resolve(request.sampling, self._own, self._text.vocab_size)
        prompt = await asyncio.to_thread(self._prompt, request)
        if len(prompt) > ctx - LEAST_FREE:
            raise ContextLengthExceeded(ctx, len(prompt), LEAST_FREE)
        form = await self._forms.make(request)
        max_new = min(request.max_new, ctx - len(prompt))
        job = Job(
            request_id=request.request_id,
            client=request.client,
            prompt=tuple(prompt),
            max_new=max_new,
            params=params,
            max_waiting=request.max_waiting,
            landmarks=self._landmarks(prompt, thinking=request.thinking),
        )
        answer = Answer(
            self._text,
            stops=tuple(request.stop),
            max_new=max_new,
            logprobs=params.logprobs,
            thinking=request.thinking,
            tools=form.tools,
            most=form.most,
            rules=form.rules,
        )
        return job, answer

    def _landmarks(self, prompt: list[int], *, thinking: bool) -> tuple[int, ...]:
        """Where later prompts are likely to part from this one: before what only asks for thoughts or none, and at its
        end. One that is the same computes its last token again, at least."""
        traits = self._text.traits
        lead = self._text.encode(traits.on if thinking else traits.off)
        return (len(prompt) - len(lead), len(prompt)) if lead else (len(prompt) - 1,)

    def _prompt(self, request: room_pb2.GenerateRequest) -> list[int]:
        return self._text.render(
            request.turns,
            thinking=request.thinking,
            effort=request.effort,
            tools=[tool.definition for tool in shown_tools(request)],
        )
