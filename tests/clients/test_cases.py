"""Real clients over the real bridge: each script in a client's folder asks, and asserts on what its client makes of it.

Run by `make test-clients`. The cases of generation run on a real room, those of faults on scripted ones.
"""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.clients.environments import HERE, NoEnvironment, interpreter
from tests.clients.rooms import Server

pytestmark = pytest.mark.timeout(400)

SERVERS = {
    "stream": "real",
    "whole": "real",
    "tools": "real",
    "agent": "real",
    "structured": "real",
    "thinking": "real",
    "calls": "calling",
    "cancelled": "hanging",
    "broken": "broken",
    "full": "full",
}
"""Each case, and the fixture that serves it."""

CLIENTS = {
    "openai_python": "cases.py",
    "openai_node": "cases.mjs",
    "ai_sdk": "cases.mjs",
    "langchain": "cases.py",
    "llm_command": "cases.py",
}

NOT_EXPRESSIBLE = {("llm_command", "calls")}
"""`llm` makes its calls itself and asks again, so that a room which always calls never comes to an end."""

ATTEMPTS = 3
"""How often each of these clients tries before it tells its user that the line is full."""


def environment(client: str) -> str:
    """The program for `client`'s scripts."""
    try:
        return str(interpreter(client))
    except NoEnvironment as error:
        pytest.fail(str(error), pytrace=False)


def ran(client: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `client`'s interpreter, with nothing in its surroundings that names another server."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "LANGCHAIN_", "LANGSMITH_", "LLM_"))
    }
    env = {**ours, "PYTHONPATH": str(HERE / "kit"), "NO_PROXY": "127.0.0.1"}
    command = [environment(client), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def see(client: str, case: str, server: Server) -> dict[str, Any]:
    """What `client`'s script saw."""
    done = ran(client, str(HERE / client / CLIENTS[client]), case, server.base_url)
    if done.returncode:
        pytest.fail(f"{client}, {case}:\n{done.stdout}{done.stderr}", pytrace=False)
    seen = json.loads(done.stdout)
    print(json.dumps(seen, ensure_ascii=False))
    return dict(seen)


@pytest.mark.parametrize("case", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_case(client: str, case: str, request: pytest.FixtureRequest) -> None:
    if (client, case) in NOT_EXPRESSIBLE:
        pytest.skip("this client cannot express it")
    environment(client)
    server: Server = request.getfixturevalue(SERVERS[case])
    before = server.refusals()
    see(client, case, server)
    assert server.refusals() - before == (ATTEMPTS if case == "full" else 0)


def test_llm_comply(real: Server) -> None:
    """All of its tests of Chat Completions but the one that wants an absent model refused (P31)."""
    options = ["--format", "openai-chat", "-u", real.base_url, "-k", "pooled", "-m", "gpt-5", "--json"]
    done = ran("llm_comply", "-m", "llm_comply.cli", *options)
    suite = json.loads(done.stdout)
    failed = {result["id"]: result["errors"] for result in suite["results"] if result["status"] == "failed"}
    assert set(failed) == {"chat-error-handling"}, failed
    assert {result["status"] for result in suite["results"]} == {"passed", "failed"}
