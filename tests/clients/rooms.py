"""The servers the clients talk to: real processes, as `pooled` starts them."""

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clients.environments import HERE
from tests.cluster import Cluster

WREN = HERE.parents[1] / "models" / "wren"
QUESTIONS: dict[str, Any] = json.loads((HERE / "kit" / "questions.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Server:
    base_url: str
    access_log: Path
    """A line for each request that has ended."""

    def refusals(self) -> int:
        """Requests answered 429 so far."""
        return self.access_log.read_text().count("POST /v1/chat/completions (status 429")

    @contextmanager
    def asked(self) -> Iterator[http.client.HTTPResponse]:
        """A stream that has begun, or waits, until the block ends."""
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True})
        url = urlsplit(self.base_url)
        assert url.hostname is not None
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        try:
            connection.request("POST", f"{url.path}/chat/completions", body, {"Content-Type": "application/json"})
            with connection.getresponse() as reply:
                assert reply.status == 200
                yield reply
        finally:
            connection.close()


@contextmanager
def real(folder: Path) -> Iterator[Server]:
    """A model that thinks and calls tools, on two peers."""
    with Cluster(WREN, folder, peers=2, threads=1, serve=["-v"]) as cluster:
        yield Server(cluster.base_url, cluster.bridge.err)


@contextmanager
def scripted(
    folder: Path,
    tokens: Sequence[str],
    *,
    fault: str | None = None,
    host: Sequence[str] = (),
    serve: Sequence[str] = (),
) -> Iterator[Server]:
    """A room that says the same to everybody."""
    script = folder / "script.jsonl"
    script.write_text(json.dumps({"tokens": list(tokens), "fault": fault}) + "\n")
    with Cluster(WREN, folder, peers=0, host=["--scripted", str(script), *host], serve=["-v", *serve]) as cluster:
        cluster.wait_ready()
        yield Server(cluster.base_url, cluster.bridge.err)


@contextmanager
def filled(server: Server) -> Iterator[Server]:
    """A server whose one place to run and one place to wait are taken until the block ends."""
    with ExitStack() as stack:
        running = stack.enter_context(server.asked())
        said = json.dumps(QUESTIONS["hanging"]["text"][0])[:-1]
        while f'"content":{said}' not in (line := running.readline().decode()):
            assert line, "the answer ended"
        stack.enter_context(server.asked())
        yield server


def two_calls() -> list[str]:
    """Tokens that say a text and make two calls."""
    wanted = QUESTIONS["two_calls"]
    calls = [f"\n{json.dumps(call, ensure_ascii=False)}\n" for call in wanted["calls"]]
    first, second = (["<tool_call>", call, "</tool_call>"] for call in calls)
    return [wanted["text"], "\n", *first, "\n", *second]
