"""An environment for each client, made from its pinned list of packages when it is first needed and then kept.

A folder with a requirements.txt becomes a virtual environment, one with a package-lock.json gets its node_modules.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"

NODE = 20
"""The oldest major version of Node.js that all pinned packages run on."""

_PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")
"""The lists are complete, so that nothing is left to resolve; and most modules are never imported."""


class NoEnvironment(Exception):
    """A client's environment cannot be made; the message says what to do."""


def interpreter(client: str) -> Path:
    """The program that runs `client`'s scripts, in an environment that is ready. Raises NoEnvironment."""
    if (HERE / client / "requirements.txt").exists():
        return _python(client)
    return _node(client)


def _python(client: str) -> Path:
    folder, requirements = ENVIRONMENTS / client, HERE / client / "requirements.txt"
    python = folder / "bin" / "python"
    stamp = _Stamp(folder / ".made", sys.version, requirements.read_text())
    if not stamp.fresh:
        shutil.rmtree(folder, ignore_errors=True)
        _do([sys.executable, "-m", "venv", "--without-pip", folder], HERE)
        # This interpreter's own pip, so that none has to be installed first.
        _do([sys.executable, "-m", "pip", "--python", python, *_PIP, "-r", requirements], HERE)
        stamp.put()
    return python


def _node(client: str) -> Path:
    folder = HERE / client
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NoEnvironment(f"node and npm are not there; install Node.js {NODE} or later")
    version = _do([node, "--version"], folder).strip()
    if int(version.lstrip("v").split(".")[0]) < NODE:
        raise NoEnvironment(f"Node.js is {version}; install {NODE} or later")
    stamp = _Stamp(folder / "node_modules" / ".made", version, (folder / "package-lock.json").read_text())
    if not stamp.fresh:
        _do([npm, "ci", "--ignore-scripts", "--prefer-offline", "--loglevel=error"], folder)
        stamp.put()
    return Path(node)


class _Stamp:
    """Says of an environment what it was made from. Written last, so one that was left half made is made anew."""

    def __init__(self, file: Path, *recipe: str) -> None:
        self._file = file
        self._recipe = hashlib.sha256("\0".join(recipe).encode()).hexdigest()

    @property
    def fresh(self) -> bool:
        return self._file.exists() and self._file.read_text() == self._recipe

    def put(self) -> None:
        self._file.write_text(self._recipe)


def _do(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(map(str, command))
        raise NoEnvironment(f"'{said}' ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
