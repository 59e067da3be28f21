"""Guesses under a grammar, among thoughts and before stop strings: the answer is the one without guesses."""

import hashlib
from typing import Any

import pytest

from protos import peer_pb2, room_pb2
from room.drafts import NOTHING
from room.session import Job, Session
from room.text.answer import Answer
from room.text.grammar import Grammars
from room.text.guide import Rules
from tests.room.text.families import ids_of, model_of
from tests.room.text.test_guided import AUTO, REQUIRED, WEATHER, answer_to, asked

pytestmark = pytest.mark.anyio

REPEATED = '{"city": "Rome", "unit": "c", "days": 12, "deep": {"x": true}}'
CALLED = '<tool_call>\n{"name": "weather", "arguments": ' + REPEATED + "}\n</tool_call>"
QUOTED = "<think>\nsome thoughts\n</think>\n\n" + CALLED


class Play:
    """A model that mostly says what its prompt said, drawn with masks and by place alone, as the last peer draws."""

    def __init__(self, family: str, answer: Answer, seed: int, max_new: int = 200) -> None:
        prompt = tuple(ids_of(family, QUOTED + REPEATED) * 2)
        job = Job("r", "a", prompt, max_new, peer_pb2.SamplingParams(repetition_penalty=1), 0, ())
        self.session = Session(1, job, answer)
        self.session.keep_in(list(range(200)))
        self.seed = seed
        self.said = {prompt[at - 3 : at]: prompt[at] for at in range(3, len(prompt))}
        self.frames = 0

    def run(self, guesses: int) -> tuple[list[int], list[room_pb2.GenerateEvent]]:
        session = self.session
        session.begin()
        while session.answer.finished is None:
            draft = session.draft(guesses) if guesses else NOTHING
            masks = draft.masks or (session.mask,)
            fed = [*session.tokens, *draft.ids]
            upto = range(len(session.tokens), len(fed) + 1)
            session.sent = len(session.tokens)
            drawn = [self.draw(fed[:end], mask) for end, mask in zip(upto, masks, strict=True)]
            session.take([peer_pb2.SampledToken(id=token) for token in drawn], draft)
            assert session.sent < len(session.tokens) or session.answer.finished, "there is a token to draw from"
            self.frames += 1
        return session.tokens, list(session.outbox._items)

    def draw(self, ids: list[int], mask: bytes | None) -> int:
        noise = hashlib.sha256(f"{self.seed} {len(ids)} {ids[-3:]}".encode()).digest()
        said = self.said.get(tuple(ids[-3:]))
        favourites = [said] if said is not None and noise[0] > 20 else []
        wild = int.from_bytes(noise[:4], "little")
        size = 8 * len(mask) if mask is not None else max(self.session.job.prompt) + 1
        for token in (*favourites, *((wild + step) % size for step in range(size))):
            if mask is None or (token < 8 * len(mask) and mask[token // 8] >> token % 8 & 1):
                return token
        raise AssertionError("no token is allowed")


def heard(events: list[room_pb2.GenerateEvent]) -> list[room_pb2.GenerateEvent]:
    return [event for event in events if not event.HasField("queued")]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "schema": ("plain", {"mode": 0, "schema": WEATHER}),
    "schema after thoughts": ("qwen3", {"mode": 0, "schema": WEATHER, "thinking": True}),
    "calls at will": ("qwen3", {"mode": AUTO}),
    "calls required": ("qwen35", {"mode": REQUIRED, "thinking": True}),
    "nothing": ("plain", {"mode": 0}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("guesses", [1, 5, 24])
async def test_the_answer_is_the_one_without_guesses(case: str, guesses: int) -> None:
    family, request = CASES[case]
    saved = 0
    for seed in range(4):
        plain = Play(family, await answer_to(family, asked(**request), 200), seed)
        guessed = Play(family, await answer_to(family, asked(**request), 200), seed)
        tokens, events = plain.run(0)
        guessed_tokens, guessed_events = guessed.run(guesses)
        assert guessed_tokens == tokens
        assert heard(guessed_events) == heard(events)
        saved += plain.frames - guessed.frames
    assert saved > 5, "some guesses were right"


async def test_no_stop_string_and_no_length_is_gone_beyond() -> None:
    for seed in range(8):
        outcomes = []
        for guesses in (0, 9):
            answer = Answer(model_of("plain"), ["days", "deep"], 50, False)
            outcomes.append(Play("plain", answer, seed, 50).run(guesses))
        assert outcomes[0] == outcomes[1]


def test_where_a_right_guess_changes_what_may_follow_there_is_still_a_token_to_draw_from() -> None:
    text = model_of("qwen3")
    (trigger,), said = ids_of("qwen3", "<tool_call>"), ids_of("qwen3", "so")
    grammar = Grammars(text).compile_now(f"start: <[{trigger}]> /[a-z]+/")
    answer = Answer(text, [], 200, False, rules=Rules(grammar, trigger))
    job = Job("r", "a", tuple(said), 200, peer_pb2.SamplingParams(repetition_penalty=1), 0, ())
    session = Session(1, job, answer)
    session.keep_in([0, 1])
    session.begin()
    session.sent = len(session.tokens)
    guess = answer.ahead([*said, trigger, *said])
    session.take([peer_pb2.SampledToken(id=token) for token in (*guess.ids, *said)], guess)
    assert session.tokens == [*said, *said, trigger], "what follows was drawn under another mask"
    assert session.unsent == 1
