#!/usr/bin/env python3
"""Lists the statements of the API's contract that no test names, and ids in test names that are no statement's.

scripts/statements.py        exit code 1 when there are any
scripts/statements.py P42    the tests that name one
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATEMENTS = ROOT / "tests" / "contract" / "statements.txt"
ID = re.compile(r"[PTSCMB]\d+[a-e]?")


def statements() -> dict[str, str]:
    """Id -> summary."""
    lines = (line.partition(" ") for line in STATEMENTS.read_text().splitlines() if line and not line.startswith("#"))
    return {name: summary.strip() for name, _, summary in lines}


def tests() -> Iterator[tuple[str, str]]:
    """The id of a statement, and a test that names it."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if any(part.startswith(".") for part in file.relative_to(ROOT).parts):
            continue  # an environment of the tests' own, which holds other projects' tests
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for word in node.name.split("_"):
                    if ID.fullmatch(word):
                        yield word, f"{file.relative_to(ROOT)}::{node.name}"


def main(wanted: list[str]) -> int:
    known, named = statements(), defaultdict(list)
    for name, test in tests():
        named[name].append(test)
    if wanted:
        print("\n".join(test for name in wanted for test in named[name]))
        return 0
    missing = [name for name in known if name not in named]
    strange = sorted(set(named) - set(known))
    for name in missing:
        print(f"no test names {name:5} {known[name]}")
    for name in strange:
        print(f"no statement is called {name}: {named[name][0]}")
    print(f"{len(known) - len(missing)} of {len(known)} statements have a test that names them")
    return 1 if missing or strange else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
