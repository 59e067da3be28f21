"""The contract's examples against `pooled host --scripted` and `pooled serve` as people start them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from openai import OpenAI

from tests.cluster import Cluster
from tests.contract.rig import read_stream

pytestmark = pytest.mark.e2e

ANSWER = "A KV cache stores what was read."
SCRIPT = [
    {"tokens": list(ANSWER)},
    {"tokens": ["ha", "lf"], "fault": "error"},
    {"tokens": ["late"], "at_ms": [400]},
    {"tokens": ["<|im_end|>"], "ctx": 64},
    {"tokens": list(ANSWER)},
]


class Scripted(Cluster):
    """The room plays SCRIPT; there are no peers."""

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(entry) for entry in (self.folder / "record.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def scripted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    folder = tmp_path_factory.mktemp("scripted")
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(each) + "\n" for each in SCRIPT))
    host = ["--scripted", str(script), "--record", str(folder / "record.jsonl"), "--model-name", "tiny"]
    with Scripted(tiny, folder, peers=0, host=host, serve=["--keepalive", "0.1"]) as cluster:
        cluster.wait_ready()
        yield cluster


def post(cluster: Cluster, **members: Any) -> tuple[int, str]:
    body = {"messages": [{"role": "user", "content": "hi"}], **members}
    request = Request(
        f"{cluster.base_url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urlopen(request, timeout=60) as reply:
        return reply.status, reply.read().decode()


def test_P1_P5_and_what_a_script_can_do(scripted: Scripted) -> None:
    """One story, since the lines of a script come in order."""
    body = {
        "model": "pooled",
        "messages": [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": "What is a KV cache?"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    curl = ["curl", "-sS", f"{scripted.base_url}/chat/completions", "-H", "content-type: application/json", "-d"]
    stream = subprocess.run([*curl, json.dumps(body)], check=True, capture_output=True, timeout=60).stdout.decode()
    said = read_stream(stream)
    assert (said.content, said.finish) == (ANSWER, "stop")

    status, stream = post(scripted, stream=True)
    assert (status, read_stream(stream).error is not None) == (200, True)

    _, stream = post(scripted, stream=True)
    assert ": keep-alive\n\n" in stream
    assert '"content":"l"' in stream

    long = [{"role": "user", "content": "Z" * 40}]
    client = OpenAI(base_url=scripted.base_url, api_key="pooled", max_retries=0)
    with pytest.raises(Exception, match="maximum context length is 64 tokens"):
        client.chat.completions.create(model="pooled", messages=long)

    text = ""
    for _ in range(2):  # the last line repeats
        chunks = client.chat.completions.create(
            model="pooled", messages=[{"role": "user", "content": "What is a KV cache?"}], stream=True
        )
        for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
    assert text == ANSWER * 2

    entry = scripted.records[0]
    assert entry["turns"][0] == {"role": "system", "content": "Answer in one sentence."}
    assert entry["prompt"].endswith("What is a KV cache?<|im_end|>\n<|im_start|>assistant\n")
    assert entry["prompt_ids"]
    assert (entry["thinking"], entry["grammar"]) == (False, None)
    assert entry["sample"]["temperature"] == 0
    assert len(scripted.records) == 5, "the refused one is not in the record"


def test_nothing_of_what_was_asked_is_in_a_log(scripted: Scripted) -> None:
    for process in scripted.processes:
        assert "KV cache" not in process.said()


def test_P46_P50_greedy_is_the_same_each_time(tiny: Path, tmp_path: Path) -> None:
    """A model really generates here: one with random weights."""
    with Cluster(tiny, tmp_path, peers=1, threads=1) as cluster:
        answers = [
            json.loads(post(cluster, max_tokens=12, **members)[1])["choices"][0]["message"]["content"]
            for members in ({"temperature": 0}, {"temperature": 0}, {"temperature": 0, "top_k": 64}, {"top_k": 1})
        ]
    assert answers[0]
    assert set(answers) == {answers[0]}
