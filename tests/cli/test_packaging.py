"""The package's own description is true: what is imported is declared, and what is declared is pinned."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
HOUSES = {"protos": ["room"], "bridge": [], "cli": [], "room": ["room"], "peer": ["host", "room"]}
"""Each house and the extras that bring what it imports. Of protos, only rooms and peers import what needs one."""


def names(requirements: list[str]) -> set[str]:
    """The normalised names in a list of requirements, without this project's own."""
    found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {match[0].lower().replace("_", "-") for match in found if match} - {"pooled"}


def imported(house: str) -> Iterator[str]:
    """Top-level names of what a house's own files import, generated ones left out."""
    for path in (ROOT / house).rglob("*.py"):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0]


@pytest.mark.parametrize("house", HOUSES)
def test_what_a_house_imports_is_declared(house: str) -> None:
    declared = names(PROJECT["dependencies"]).union(*(names(EXTRAS[extra]) for extra in HOUSES[house]))
    owners = packages_distributions()
    foreign = set(imported(house)) - set(sys.stdlib_module_names) - set(HOUSES)
    undeclared = {module for module in foreign if not names(owners.get(module, [module])) & declared}
    assert not undeclared


def test_what_is_declared_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert names([*PROJECT["dependencies"], *(name for extra in EXTRAS.values() for name in extra)]) <= names(pins)


@pytest.mark.parametrize("name", HOUSES)
def test_no_other_distribution_owns_our_names(name: str) -> None:
    assert set(packages_distributions().get(name, [])) <= {"pooled"}
