"""Writes docs/evidence/reliability.md: the faults of rows.py, each with the tests marked as showing it.

python tests/faults/table.py
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from helpers import ci
from rows import ROWS

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "evidence" / "reliability.md"

_INTRODUCTION = """# Reliability: faults, and the tests that inject them

Every promise about failures has a test that injects the failure, on a CPU, with two real ranks where ranks
matter. A test has a deadline for everything it starts, and fails if a process survives it. *Exact* means
bit-identical weights, optimizer state, metrics and order of samples, compared with a run without the fault.

How the faults are injected:

- **A kill at every file operation.** The calls of a save that change files (create a folder, open, write,
  sync, rename, unlink) are counted; then, for each k, one run gets SIGKILL at call k: before, during or
  after it. Each is resumed and compared with an undisturbed run. The default tests take a
  call of each kind, by the last rank that does it, and for each sort of file where a save replaces another;
  `pytest --soak` takes all of them, on one device and on two.
- **A kill at every step**, and a signal at a named point: to a rank, to the launcher or to all processes at
  once, once or twice.
- **System limits.** A file system of 1 MB, a limit on file size, a folder owned by another user.
- **Damage.** Bytes flipped; files truncated, emptied, exchanged or removed; manifests and pickles as an
  attacker would write them.

What this does not show: after a power failure, a disk can lose data that it reported as written, which
SIGKILL cannot simulate; the tests check the order of the calls instead (each file is synced before the
rename, its folder after it). Two machines are simulated by two processes. Failures of an accelerator are
not injected.
"""


def page() -> str:
    """The text of docs/evidence/reliability.md."""
    found = marked()
    lines = ["| # | fault | what happens | shown by, and its tier |", "|---|---|---|---|"]
    for row in ROWS:
        shown = [f"`{test}`, {ci.where(test)}" for test in found[row.number]]
        lines.append(f"| {row.number} | {row.fault} | {row.outcome} | {'<br>'.join(shown)} |")
    made = (
        "`python tests/faults/table.py` writes this table from the marks on the tests. Tiers: `unit` and\n"
        "`fit`, in one process; `ranks`, on forked ranks; `launch`, with real commands; `soak`, long, run\n"
        "by `pytest --soak`. CI runs at least one test of each row.\n"
    )
    return "\n".join([_INTRODUCTION, made, *lines]) + "\n"


@functools.cache
def marked() -> dict[int, list[str]]:
    """By row, the tests that are marked with its number: ``tests/file.py::function``."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        place = path.relative_to(TESTS.parent).as_posix()
        for name, numbers in marks_of(ast.parse(path.read_text())):
            for number in numbers:
                found[number].append(f"{place}::{name}")
    return found


def marks_of(tree: ast.Module) -> Iterator[tuple[str, list[int]]]:
    """The tests of a module, and the rows that each is marked with."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    yield node.name, [ast.literal_eval(number) for number in mark.args]


if __name__ == "__main__":
    PAGE.write_text(page())
