"""The `llm` command, which knows the bridge from extra-openai-models.yaml in its user directory."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kit import QUESTIONS, run, until_queue

COUNT, WEATHER, PERSON, AGENT = (QUESTIONS[each] for each in ("count", "weather", "person", "agent"))
MOST = "400"
"""Tokens of an answer, so that a model that errs comes to an end."""

MODELS = """
- model_id: room
  model_name: pooled
  api_base: {base_url}
  reasoning: true
  supports_schema: true
  supports_tools: true
"""

FUNCTIONS = f"""
def get_weather(city: str) -> str:
    "Get the weather in a city."
    assert {{"city": city}} == {WEATHER["arguments"]!r}
    return {WEATHER["result"]!r}

def take_note(text: str) -> str:
    "Write something down."
    assert {{"text": text}} == {AGENT["note"]!r}
    return {AGENT["noted"]!r}
"""

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


class Command:
    """`llm` with a user directory of its own. Use as a context manager."""

    def __init__(self, base_url: str) -> None:
        self._home = tempfile.TemporaryDirectory()
        Path(self._home.name, "extra-openai-models.yaml").write_text(MODELS.format(base_url=base_url))

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self._home.cleanup()

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        program = str(Path(sys.executable).parent / "llm")
        options = ["-m", "room", "-o", "temperature", "0", "-o", "max_tokens", MOST, *arguments]
        env = {**os.environ, "LLM_USER_PATH": self._home.name}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [program, "prompt", *options],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            preexec_fn=_heed_ctrl_c,
        )

    def failed(self, *arguments: str) -> tuple[str, str]:
        """What it wrote to stdout and stderr before it ended with a failure."""
        with self.start(*arguments) as process:
            out, err = process.communicate()
        assert process.returncode == 1, (process.returncode, out, err)
        assert "Traceback" not in err
        return out, err

    def __call__(self, *arguments: str) -> str:
        with self.start(*arguments) as process:
            out, err = process.communicate()
        assert process.returncode == 0, (process.returncode, out, err)
        return out.strip()


def stream(base_url: str) -> Any:
    with Command(base_url) as llm:
        said = llm(COUNT["ask"])
        assert said == COUNT["answer"], said
        return {"answer": said}


def whole(base_url: str) -> Any:
    with Command(base_url) as llm:
        said = llm(COUNT["ask"], "--no-stream")
        assert said == COUNT["answer"], said
        following = llm("--continue", COUNT["ask"])
        assert following
        return {"answer": said, "continued": following}


def tools(base_url: str) -> Any:
    with Command(base_url) as llm:
        for more in ([], ["--no-stream"]):
            said = llm(WEATHER["ask"], "--functions", FUNCTIONS, *more)
            assert WEATHER["result"] in said, said
        return {"answer": said}


def agent(base_url: str) -> Any:
    with Command(base_url) as llm:
        said = llm(AGENT["ask"], "--functions", FUNCTIONS, "-o", "reasoning_effort", "low")
        assert said == AGENT["answer"], said
        return {"answer": said}


def structured(base_url: str) -> Any:
    with Command(base_url) as llm:
        for more in ([], ["--no-stream"]):
            said = json.loads(llm(PERSON["ask"], "--schema", json.dumps(SCHEMA), *more))
            assert said == PERSON["answer"], said
        return {"parsed": said}


def thinking(base_url: str) -> Any:
    with Command(base_url) as llm:
        said = json.loads(llm(COUNT["ask"], "-o", "reasoning_effort", "low", "--json"))
        (entry,) = said if isinstance(said, list) else [said]
        assert entry["response"] == COUNT["answer"], entry
        details = json.loads(entry["token_details"] or "{}")
        tokens = details["completion_tokens_details"]["reasoning_tokens"]
        assert tokens > 0
        return {"reasoning_tokens": tokens}


def _heed_ctrl_c() -> None:
    """Tests that run in a shell's background are started with it ignored, and so would be what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def cancelled(base_url: str) -> Any:
    with Command(base_url) as llm, llm.start("hi") as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == QUESTIONS["hanging"]["text"][0]
        until_queue(base_url, 1)
        process.send_signal(signal.SIGINT)
        process.communicate()
        until_queue(base_url, 0)
        return {"exit": process.returncode}


def broken(base_url: str) -> Any:
    with Command(base_url) as llm:
        out, err = llm.failed("hi")
        assert out.strip() == QUESTIONS["broken"]["text"], out
        assert QUESTIONS["broken"]["message"] in err, err
        return {"error": err.strip()}


def full(base_url: str) -> Any:
    with Command(base_url) as llm:
        _, err = llm.failed("hi")
        assert QUESTIONS["full"]["message"] in err, err
        return {"error": err.strip()}


run(
    {
        "stream": stream,
        "whole": whole,
        "tools": tools,
        "agent": agent,
        "structured": structured,
        "thinking": thinking,
        "cancelled": cancelled,
        "broken": broken,
        "full": full,
    }
)
