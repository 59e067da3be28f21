"""An answer goes on when a peer dies in the middle of it, and is the one it would have been."""

from pathlib import Path

import pytest
from openai import OpenAI

from tests.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_killing_a_peer_in_mid_answer_changes_nothing_of_it(tiny: Path, tmp_path: Path) -> None:
    """Either peer could hold all layers: the one that is left is dealt the other's."""
    with (
        Cluster(tiny, tmp_path, threads=1) as cluster,
        OpenAI(base_url=cluster.base_url, api_key="any", max_retries=0, timeout=120) as client,
    ):

        def answer(kill_after: int | None) -> str:
            text = ""
            stream = client.chat.completions.create(
                model="pooled",
                messages=[{"role": "user", "content": "Tell me of the sea."}],
                max_tokens=200,
                temperature=0,
                stream=True,
            )
            for number, chunk in enumerate(stream):
                text += chunk.choices[0].delta.content or ""
                if number == kill_after:
                    cluster.peers[1].popen.kill()
            return text

        undisturbed = answer(None)
        assert answer(20) == undisturbed
        assert answer(None) == undisturbed
