"""The base install is light and the houses stay apart: seen in fresh processes, where nothing is loaded yet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIGHT = ["cli.start", "cli.main", "bridge.app", "bridge.client"]
HEAVY = ["torch", "transformers", "accelerate", "safetensors", "numpy", "room", "peer"]


def modules_after(statement: str) -> set[str]:
    """Top-level modules that are loaded once `statement` has run in a fresh interpreter."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", LIGHT)
def test_the_base_install_needs_nothing_heavy(module: str) -> None:
    assert modules_after(f"import {module}").isdisjoint(HEAVY)


def test_help_loads_no_house() -> None:
    loaded = modules_after("from cli.main import run; run(['host', '--help'])")
    assert loaded.isdisjoint({*HEAVY, "bridge", "starlette", "uvicorn"})
