"""A follow-up turn is computed only from where it is new, and the usage says so."""

from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types import CompletionUsage

from tests.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client(gguf_room: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=gguf_room.base_url, api_key="any", max_retries=0) as made:
        yield made


def ask(client: OpenAI, messages: list[dict[str, str]], max_tokens: int = 40) -> tuple[str, CompletionUsage]:
    reply = client.chat.completions.create(model="pooled", messages=messages, temperature=0, max_tokens=max_tokens)
    assert reply.usage
    return reply.choices[0].message.content or "", reply.usage


def cached(usage: CompletionUsage) -> int:
    return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0


def test_P97_P98_the_same_request_twice(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me of the sea and of the ships on it. " * 4}]
    first, usage = ask(client, messages)
    assert cached(usage) == 0
    second, again = ask(client, messages)
    assert second == first
    assert cached(again) == usage.prompt_tokens - 1, "the last token is always computed"


def test_P87a_the_next_turn_reuses_the_answer_as_it_was_written(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "What do you see on the hill, and what behind it?"}]
    for _ in range(3):
        answer, usage = ask(client, messages)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        _, after = ask(client, messages, 1)
        assert cached(after) >= usage.prompt_tokens + usage.completion_tokens - 2
        messages[-1]["content"] += " Go on."


def test_P87b_a_changed_answer_is_used_as_sent(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "Name a tree that grows by the river, one that you like."}]
    answer, usage = ask(client, messages)
    follow = [*messages, {"role": "assistant", "content": f"An oak. {answer}"}, {"role": "user", "content": "Why?"}]
    _, after = ask(client, follow, 1)
    assert usage.prompt_tokens - 2 <= cached(after) < usage.prompt_tokens + usage.completion_tokens


def test_P19_a_late_system_message_leaves_the_text_before_it_alone(client: OpenAI) -> None:
    messages = [
        {"role": "system", "content": "You are a careful guide through the old town."},
        {"role": "user", "content": "Which way to the bridge?"},
    ]
    answer, usage = ask(client, messages)
    follow = [
        *messages,
        {"role": "assistant", "content": answer},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "And to the tower?"},
    ]
    _, after = ask(client, follow, 1)
    assert cached(after) >= usage.prompt_tokens - 2


def test_P98_another_beginning_shares_nothing(client: OpenAI) -> None:
    """Only the template's own first tokens are the same, too few to count."""
    system = {"role": "system", "content": "Xylophones are rare, zithers rarer, and nobody plays the ocarina any more."}
    _, usage = ask(client, [system, {"role": "user", "content": "Which is the rarest of the three?"}], 1)
    assert cached(usage) == 0
