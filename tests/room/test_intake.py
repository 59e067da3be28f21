"""From a caller's request to a job: what is checked, capped and refused before anything is computed."""

from typing import Any

import pytest

from protos import room_pb2
from room.config import RoomConfig
from room.errors import BadRequest, ContextLengthExceeded, InvalidSchema, InvalidValue
from room.intake import LEAST_FREE, MAX_STOP_LENGTH, MAX_STOPS, Intake
from tests.room.text.families import model_of

pytestmark = pytest.mark.anyio

CTX = 4096


@pytest.fixture
def intake() -> Intake:
    return Intake(model_of("plain"), RoomConfig("m"))


def request(text: str = "hi", **members: Any) -> room_pb2.GenerateRequest:
    turns = [room_pb2.Turn(role=room_pb2.ROLE_USER, text=text)]
    return room_pb2.GenerateRequest(**{"turns": turns, "max_new": 100, "request_id": "r", "client": "c", **members})


async def test_a_request_becomes_a_job(intake: Intake) -> None:
    asked = request(max_waiting=3, sampling=room_pb2.Sampling(temperature=0.5, seed=7))
    job, answer = await intake.prepare(asked, CTX)
    assert (job.request_id, job.client, job.max_waiting, job.max_new) == ("r", "c", 3, 100)
    assert model_of("plain").tokenizer.decode(job.prompt).count("hi") == 1
    assert (job.params.temperature, job.params.seed) == (0.5, 7)
    assert answer.finished is None
    assert answer.mask() is None


async def test_P37_the_answer_is_capped_by_the_context_left(intake: Intake) -> None:
    job, _ = await intake.prepare(request(max_new=10**6), CTX)
    assert job.max_new == CTX - len(job.prompt)


async def test_P42_a_prompt_leaves_some_room_for_the_answer(intake: Intake) -> None:
    job, _ = await intake.prepare(request(), CTX)
    fits, _ = await intake.prepare(request(max_new=10**6), len(job.prompt) + LEAST_FREE)
    assert fits.max_new == LEAST_FREE
    with pytest.raises(ContextLengthExceeded, match=f"resulted in {len(job.prompt)} tokens") as refused:
        await intake.prepare(request(), len(job.prompt) + LEAST_FREE - 1)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"turns": []}, "messages"),
        ({"turns": [room_pb2.Turn(text="of nobody")]}, "messages"),
        ({"turns": [room_pb2.Turn(role=99, text="of whom?")]}, "messages"),  # type: ignore[arg-type]
        ({"max_new": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x" * (MAX_STOP_LENGTH + 1)]}, "stop"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop"),
        ({"sampling": room_pb2.Sampling(temperature=float("nan"))}, "temperature"),
        ({"tools": room_pb2.Tools(mode=room_pb2.TOOL_MODE_REQUIRED)}, "tool_choice"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(intake: Intake, members: dict[str, Any], param: str) -> None:
    """Whoever calls: a bridge checks the same, and others may not."""
    with pytest.raises(InvalidValue) as refused:
        await intake.prepare(request(**members), CTX)
    assert refused.value.param == param
    assert isinstance(refused.value, BadRequest)


async def test_S6_a_schema_that_cannot_be_enforced_is_refused(intake: Intake) -> None:
    asked = request(format=room_pb2.ANSWER_FORMAT_SCHEMA, schema='{"not": {"type": "string"}}')
    with pytest.raises(InvalidSchema, match="'not' at #"):
        await intake.prepare(asked, CTX)


async def test_S17_the_first_grammar_finds_everything_built(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    intake.warm_up()

    def build(*_: object, **__: object) -> None:
        raise AssertionError("the tokenizer is built once, before any request")

    monkeypatch.setattr("room.text.grammar.LLTokenizer", build)
    _, answer = await intake.prepare(request(format=room_pb2.ANSWER_FORMAT_JSON), CTX)
    assert answer.mask()
