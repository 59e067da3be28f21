"""A hybrid model's next turn goes on from a snapshot of its recurrent state."""

import os
from pathlib import Path

import pytest
from openai import OpenAI

from tests.cluster import Cluster
from tests.e2e.test_caching import ask, cached
from tests.tiny_model import save_tiny, save_tiny_tokenizer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    # tests/peer/test_planned.py asks the same of slices without processes.
    pytest.mark.skipif("POOLED_SOAK" not in os.environ, reason="asked by make soak"),
]


def test_a_conversation_with_a_hybrid_model_is_computed_once(tmp_path: Path) -> None:
    model = save_tiny("qwen3_5", tmp_path / "model", vocab_size=320)
    save_tiny_tokenizer(model)
    with (
        Cluster(model, tmp_path) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0) as client,
    ):
        messages = [{"role": "user", "content": "What do you see on the hill, and what behind it?"}]
        answer, usage = ask(client, messages, 20)
        again, repeated = ask(client, messages, 20)
        assert again == answer
        assert cached(repeated) == usage.prompt_tokens - 1
        follow = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        _, after = ask(client, follow, 5)
        assert cached(after) == usage.prompt_tokens + usage.completion_tokens - 1
        parted = [*messages, {"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "And then?"}]
        _, other = ask(client, parted, 5)
        assert cached(other) >= usage.prompt_tokens - 1
