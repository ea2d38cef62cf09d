"""Each finding that a fit shows by default, in a program with that mistake; and none in right programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.environment import clean_environment

ROOT = Path(__file__).parents[3]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "silent_mistakes.json").read_text())["defaults"]
RIGHT = 25


def chosen() -> dict[str, str]:
    """A program that was found for each name, and some right ones: the program, and the name or ""."""
    found = {}
    for program, row in RESULTS.items():
        names = sorted(set(row["expected"]) & set(row["findings"]))
        if names and names[0] not in found.values():
            found[program] = names[0]
    own = [
        name for name, row in RESULTS.items() if not row["expected"] and "repository" not in row["family"]
    ]
    return found | dict.fromkeys(own[:: len(own) // RIGHT], "")


CHOSEN = chosen()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    out = tmp_path_factory.mktemp("findings") / "rows.json"
    programs = [word for name in CHOSEN for word in ("--program", name)]
    command = [sys.executable, ROOT / "benchmarks/silent_mistakes/run.py", *programs, "--json", out]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, env=clean_environment(), cwd=out.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())["defaults"]


@pytest.mark.launch
@pytest.mark.parametrize("program", CHOSEN)
def test_a_program_of_the_benchmark(rows, program):
    row, name = rows[program], CHOSEN[program]
    assert row["failed_checks"] == []
    assert row["error"] == ""
    if name:
        assert name in row["findings"]
    else:
        assert row["state"] in ("quiet", "debatable"), row["findings"]


def test_the_share_that_is_found_by_default_is_that_of_the_docs():
    faulty = [row for row in RESULTS.values() if row["expected"]]
    right = [row for row in RESULTS.values() if not row["expected"]]
    assert len(faulty) >= 90
    assert len(right) >= 90
    assert sum(row["state"] == "found" for row in faulty) >= 0.6 * len(faulty)
    assert [row for row in right if row["state"] == "false alarm"] == []
