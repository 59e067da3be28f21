"""What goes wrong at a start says so in one sentence, with the right exit code, and disturbs nobody."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protos.invite import Invite
from tests.cluster import COMMAND, Cluster
from tests.e2e.rpc import Caller

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

OTHER_PROTOCOL = "import protos; protos.PROTOCOL = {number}; from cli.main import main; main()"


@pytest.fixture(scope="module")
def cluster(tiny_room: Cluster) -> Iterator[Cluster]:
    yield tiny_room
    with Caller(tiny_room.client_invite) as caller:
        assert caller.tokens("Are you well?", 4, temperature=0.0), "the room was disturbed"


def run(*arguments: str, command: tuple[str, ...] = COMMAND, home: Path) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240, env=env, check=False)


def fails(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """One sentence, the words in it, no traceback."""
    said = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert [word for word in words if word not in said[-1]] == [], done.stderr
    assert "this is a bug" not in done.stderr


def with_key(invite: Invite) -> Invite:
    return replace(invite, key="wrong")


def with_code(invite: Invite) -> Invite:
    return replace(invite, code="AAAAAA" if invite.code != "AAAAAA" else "BBBBBB")


@pytest.mark.parametrize("command", ["join", "serve", "chat", "status"])
@pytest.mark.parametrize(("spoil", "word"), [(with_key, "key"), (with_code, "no room")])
def test_an_invite_that_does_not_open_the_room(cluster: Cluster, tmp_path: Path, command, spoil, word) -> None:
    more = {"chat": ["hello"], "serve": ["--port", "0"]}.get(command, [])
    invite = cluster.invite if command == "join" else cluster.client_invite
    done = run(command, str(spoil(invite)), *more, home=tmp_path)
    fails(done, word, "fresh invite")
    assert invite.key not in done.stderr


@pytest.mark.parametrize("command", ["join", "serve", "chat", "status"])
def test_nobody_at_the_address(tmp_path: Path, command: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        invite = Invite("127.0.0.1", free.getsockname()[1], "ABCDEF", "k")
    fails(run(command, str(invite), *(["hello"] if command == "chat" else []), home=tmp_path), "nobody answers")


@pytest.mark.parametrize("command", ["join", "serve", "status"])
@pytest.mark.parametrize(("number", "older"), [(0, "yours is the older"), (99, "the room's is the older")])
def test_two_builds_with_different_protocols(cluster: Cluster, tmp_path: Path, command, number, older) -> None:
    build = (sys.executable, "-c", OTHER_PROTOCOL.format(number=number))
    fails(run(command, str(cluster.invite), command=build, home=tmp_path), older, "upgrade it: git pull")


def test_a_port_that_is_taken(cluster: Cluster, tiny: Path, tmp_path: Path) -> None:
    taken = f"127.0.0.1:{cluster.invite.port}"
    fails(run("host", str(tiny), "--no-lend", "--listen", taken, home=tmp_path), taken, "--listen")
    port = cluster.origin.rpartition(":")[2]
    fails(run("serve", str(cluster.client_invite), "--port", port, home=tmp_path), port, "--port")
    fails(run("demo", "--model", str(tiny), "--port", port, home=tmp_path), port, "--port")


def test_memory_too_small_for_one_layer(cluster: Cluster, tmp_path: Path) -> None:
    fails(run("join", str(cluster.invite), "--memory", "20KB", home=tmp_path), "one layer", "--memory")


@pytest.mark.parametrize(
    ("model", "words"),
    [("/no/such/model", ["/no/such/model"]), ("no-such.gguf", ["no-such.gguf"]), ("not a model", ["not a model"])],
)
def test_a_model_that_is_not_there(tmp_path: Path, model: str, words: list[str]) -> None:
    fails(run("host", model, "--no-lend", "--listen", "127.0.0.1:0", home=tmp_path), *words)


def test_a_model_that_is_no_causal_lm(tmp_path: Path) -> None:
    model = tmp_path / "bert"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    fails(run("host", str(model), "--no-lend", "--listen", "127.0.0.1:0", home=tmp_path), "bert")


@pytest.mark.model
@pytest.mark.parametrize("share", [0.0001, 0.5, 0.999])
def test_a_gguf_that_is_cut_off(gguf: Path, tmp_path: Path, share: float) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[: int(gguf.stat().st_size * share)])
    fails(run("host", str(cut), "--no-lend", "--listen", "127.0.0.1:0", home=tmp_path), "cut.gguf")


def test_a_safetensors_file_that_is_cut_off(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "cut"
    model.mkdir()
    for file in tiny.iterdir():
        content = file.read_bytes()
        (model / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    fails(run("host", str(model), "--no-lend", "--listen", "127.0.0.1:0", home=tmp_path), "safetensors")


@pytest.mark.parametrize(
    "arguments",
    [
        ["join", "http://127.0.0.1/ABCDEF#k=1"],
        ["join", "pooled://127.0.0.1:1/ABCDEF"],
        ["serve", "pooled://127.0.0.1:99999/ABCDEF#k=1"],
        ["host"],
        ["host", "model", "--devices", "0"],
        ["host", "model", "--listen", "nowhere"],
        ["host", "model", "--layers", "1,x"],
        ["join", "pooled://127.0.0.1:1/ABCDEF#k=1&f=none", "--memory", "lots"],
        ["no-such-command"],
    ],
)
def test_wrong_use_is_told_apart_from_failure(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_garbage_on_the_rooms_port_disturbs_nobody(cluster: Cluster) -> None:
    for garbage in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 0xFFFFFFFF) * 10):
        with socket.create_connection((cluster.invite.host, cluster.invite.port)) as connection:
            connection.sendall(garbage)
    with Caller(cluster.client_invite) as caller:
        assert caller.tokens("Still there?", 4, temperature=0.0)


def test_layers_that_are_not_the_models(tiny: Path, tmp_path: Path) -> None:
    done = run("host", str(tiny), "--no-lend", "--listen", "127.0.0.1:0", "--layers", "1,1", home=tmp_path)
    fails(done, "--layers deals 2 layers", "has 4")


def test_bytes_that_are_no_text_do_not_end_a_chat(cluster: Cluster, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [*COMMAND, "chat", str(cluster.client_invite)],
        input=b"\xff\xfe\n",
        capture_output=True,
        timeout=240,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_peer_with_another_transformers_is_taken_when_it_computes_the_same(cluster: Cluster, tmp_path: Path) -> None:
    code = "import transformers; transformers.__version__ = '99.0'; from cli.main import main; main()"
    command = [sys.executable, "-c", code, "join", str(cluster.invite), "--name", "newer", "--memory", "1GB"]
    env = {**os.environ, "HOME": str(tmp_path)}
    with (
        Caller(cluster.client_invite) as caller,
        subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as newer,
    ):
        try:
            deadline = time.monotonic() + 240
            while "newer spare" not in (states := {f"{peer.name} {peer.state}" for peer in caller.state().peers}):
                assert "newer failed" not in states
                assert newer.poll() is None
                assert time.monotonic() < deadline, states
                time.sleep(0.2)
        finally:
            newer.terminate()
            newer.wait(120)
