"""Writes the table of docs/promises/README.md and names the promises that CI does not test.

python tests/promises.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from helpers import ci
from promise_rows import MEASURED_ONLY, PARTS, ROWS, Row

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "promises"
PAGE = PAGES / "README.md"
_BEGIN, _END = "<!-- python tests/promises.py -->\n", "<!-- end -->"
_NAMED = re.compile(r"\b(?:tests|benchmarks)/[\w/.]*[\w/]|(?<=cd benchmarks && python )\w+\.py")
PROOFS_ELSEWHERE = (
    "every fault that was thought of, with the test that injects it",  # in reliability.md
    "what differs on a GPU",  # CI has none
)
"""Rows of the tables of proofs that name neither a test nor a benchmark."""


def page() -> str:
    """The text of docs/promises/README.md."""
    lines = ["| part | promise | tested or measured by | tier |", "|---|---|---|---|"]
    for row in ROWS:
        shown = [f"`{one}`" for one in [*(f"tests/{file}" for file in row.tests), *row.measured]]
        note = f" ({row.note})" if row.note else ""
        where = [*ci.sorted_tiers(names(row)), *(["measured"] if row.measured else [])]
        lines.append(f"| {row.part} | {row.promise} | {', '.join(shown)}{note} | {', '.join(where)} |")
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"{PAGE.name} has no place for the table"
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def names(row: Row) -> list[str]:
    """The tests of a row: ``tests/file.py::function``."""
    return [f"tests/{file}::{name}" for file, tests in row.tests.items() for name in tests]


def problems_of_rows(rows: list[Row]) -> Iterator[str]:
    """What is wrong with these rows, in sentences."""
    for row in rows:
        for test in names(row):
            if why := ci.why_not_run(test):
                yield f"promise {row.name!r}: {test}: {why}"
        if not names(row) and row.name not in MEASURED_ONLY:
            yield f"promise {row.name!r} has no test, and is not in MEASURED_ONLY"
        if names(row) and row.name in MEASURED_ONLY:
            yield f"promise {row.name!r} is in MEASURED_ONLY, and has a test"
        if not names(row) and not row.measured:
            yield f"promise {row.name!r} is neither tested nor measured"
        yield from (f"promise {row.name!r}: there is no {one}" for one in _absent(" ".join(row.measured)))
    for number, part in enumerate(PARTS, 1):
        if not any(names(row) for row in rows if row.part == number):
            yield f"part {number}, {part}, has no row with a test"


def problems_of_page(text: str) -> Iterator[str]:
    """What is wrong with the tests that a page of a promise names."""
    yield from (f"there is no {one}" for one in _absent(text))
    proofs = re.search(r"^\| proof \| \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    for line in proofs[1].splitlines() if proofs else ():
        what, _, shown = line.strip("| ").partition(" | ")
        named = [one for one in _NAMED.findall(shown) if one.startswith("tests/") and ci.exists(one)]
        if not _NAMED.search(shown) and what not in PROOFS_ELSEWHERE:
            yield f"{what!r} names neither a test nor a benchmark"
        if named and all(ci.why_not_run(test) for one in named for test in ci.tests_of(one)):
            yield f"{what!r} has no test that CI runs"
    if not proofs:
        yield "there is no table of proofs"


def _absent(text: str) -> list[str]:
    """The files that are named in a text and are not there."""
    places = [ROOT, ROOT / "benchmarks"]
    return [one for one in _NAMED.findall(text) if not any((place / one).exists() for place in places)]


if __name__ == "__main__":
    PAGE.write_text(page())
