"""A hub of our own on loopback: what `inspect` asks of the real one, and what it makes of refusals."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from protos.manifest import Manifest, digest
from tests.room.checkpoints import LAYER_PARAMS, save_checkpoint, split_checkpoint

COMMIT = "c" * 40
PARAMS = 2 * LAYER_PARAMS + 2 * 320 * 32 + 32

PROGRAM = """
import json, sys
sys.modules["torch"] = None
from pathlib import Path
from room.model import ModelError, inspect
told = []
for source, revision in json.loads(sys.argv[1]):
    try:
        model = inspect(source, revision, Path(sys.argv[2]))
        told.append([model.source, model.revision, model.slug, model.shape.params, str(model.text_dir)])
    except ModelError as error:
        told.append([type(error).__name__, str(error)])
print(json.dumps(told))
"""


class Hub(ThreadingHTTPServer):
    """Serves the directories in `repositories` as the hub's HTTP API does."""

    repositories: dict[str, Path]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = {}
        self.fetched: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for name, directory in self.server.repositories.items():
            if re.fullmatch(f"/api/models/{name}(/revision/(main|{COMMIT}))?", path):
                files = [file.name for file in directory.iterdir()] + ["onnx/config.json"]
                return self._json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]})
            if path.startswith(f"/api/models/{name}/revision/"):
                return self._refuse("RevisionNotFound")
            if path.startswith(f"/api/models/{name}/tree/"):
                return self._json([_entry(file) for file in sorted(directory.iterdir())])
            if found := re.fullmatch(f"/{name}/resolve/(?:main|{COMMIT})/(.+)", path):
                return self._file(directory / found[1])
        return self._refuse("GatedRepo" if "gated" in path else "RepoNotFound")

    do_HEAD = do_GET

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self._refuse("EntryNotFound")
            return
        content = file.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted and self.command == "GET":
            self.server.fetched.add(file.name)
        body = content[int(wanted[1]) : int(wanted[2]) + 1] if wanted else content
        self._send(206 if wanted else 200, body, {"ETag": f'"{_hash(content)}"', "X-Repo-Commit": COMMIT})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: str) -> None:
        status = 403 if code == "GatedRepo" else 404
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _entry(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(content), "oid": _hash(content)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def look(endpoint: str, home: Path, *asked: tuple[str, str | None]) -> list[list[Any]]:
    """`inspect` in a process of its own: the hub's library reads its settings once."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked), str(home)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    told: list[list[Any]] = json.loads(done.stdout)
    return told


def test_models_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    single, sharded, pickled = (tmp_path / name for name in ("single", "sharded", "pickled"))
    save_checkpoint(single)
    split_checkpoint(save_checkpoint(sharded))
    (save_checkpoint(pickled) / "model.safetensors").rename(pickled / "pytorch_model.bin")
    hub.repositories = {"Org/Single-1B": single, "org/sharded": sharded, "org/pickled": pickled}
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    told = look(
        endpoint,
        tmp_path / "home",
        ("Org/Single-1B", None),
        ("org/sharded", "main"),
        ("org/pickled", None),
        ("org/nowhere", None),
        ("org/gated", None),
        ("org/sharded", "no-such-branch"),
    )
    assert [each[:4] for each in told[:2]] == [
        ["Org/Single-1B", COMMIT, "single-1b", PARAMS],
        ["org/sharded", COMMIT, "sharded", PARAMS],
    ]
    text_dir = Path(told[0][4])
    assert {file.name for file in text_dir.iterdir()} >= {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert not any(name.endswith((".safetensors", ".bin")) for name in hub.fetched)
    assert [name for name, _ in told[2:]] == ["UnusableWeights", "ModelNotFound", "ModelNotFound", "ModelNotFound"]
    assert "only kind Pooled loads" in told[2][1]
    assert "there is no directory or file" in told[3][1]
    assert "accept its terms" in told[4][1]
    assert "has no revision no-such-branch" in told[5][1]


def test_an_unreachable_hub_is_one_sentence_unless_the_model_is_here(hub: Hub, tmp_path: Path) -> None:
    hub.repositories = {"org/single": save_checkpoint(tmp_path / "single")}
    home = tmp_path / "home"
    ((_, _, _, _, text_dir),) = look(f"http://127.0.0.1:{hub.server_port}", home, ("org/single", None))
    nobody = "http://127.0.0.1:9"
    told = look(nobody, home, ("org/other", None), ("org/single", None))
    assert [name for name, _ in told] == ["HubUnreachable"] * 2
    assert told[0][1].startswith(
        "there is no directory or file org/other here, and the Hugging Face hub cannot be reached"
    )
    (Path(text_dir) / "model.safetensors").write_bytes((tmp_path / "single" / "model.safetensors").read_bytes())
    assert look(nobody, home, ("org/single", None)) == [["org/single", COMMIT, "single", PARAMS, text_dir]]


def test_the_manifest_of_a_model_on_the_hub_is_that_of_its_files(hub: Hub, tmp_path: Path) -> None:
    """Its weights are read and not kept."""
    directory, home = save_checkpoint(tmp_path / "sharded"), tmp_path / "home"
    split_checkpoint(directory)
    hub.repositories = {"org/sharded": directory}
    environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home)}
    made = {}
    for source in ("org/sharded", str(directory)):
        program = [sys.executable, "-m", "cli.start", "manifest", source, "-o", str(tmp_path / "made.json")]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        made[source] = Manifest.parse((tmp_path / "made.json").read_bytes())
        assert done.stdout.strip() == digest((tmp_path / "made.json").read_bytes())
    theirs, ours = made.values()
    assert (theirs.repository, theirs.commit) == ("org/sharded", COMMIT)
    assert (theirs.weights, theirs.texts) == (ours.weights, ours.texts)
    assert not list(home.rglob("*.safetensors"))
