"""Every promise of docs/promises has a test that ``.ci/run`` runs, or is named as measured only."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from helpers import ci, sources, tiers
from helpers.jobs import load_job

promises = load_job(sources.TESTS / "promises.py")


def test_the_page_is_what_the_script_writes():
    assert promises.PAGE.read_text() == promises.page(), "python tests/promises.py"


def test_every_promise_has_a_test_that_ci_runs():
    problems = list(promises.problems_of_rows(promises.ROWS))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", promises.PARTS)
def test_the_proofs_on_a_page_are_there(page):
    problems = list(promises.problems_of_page((promises.PAGES / f"{page}.md").read_text()))
    assert not problems, "\n".join(problems)


def test_the_parts_are_the_pages():
    listed = re.findall(r"^(\d+)\. \[.*\]\((.*)\.md\)$", promises.PAGE.read_text(), re.MULTILINE)
    assert listed == [(str(number), part) for number, part in enumerate(promises.PARTS, 1)]
    assert {*promises.PARTS, "README"} == {page.stem for page in promises.PAGES.glob("*.md")}


def test_ci_runs_all_tiers_with_every_extra():
    script, readme, makefile = (
        (sources.ROOT / n).read_text() for n in (".ci/run", "README.md", "Makefile")
    )
    assert """command 'tests'""" in script
    assert '-m "not launch"\n' in readme
    assert re.search(r"-m pytest -n \d --dist loadfile --rest$", script, re.MULTILINE)
    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]
    installed = set(re.search(r"^EXTRAS = (.*)$", makefile, re.MULTILINE)[1].split(","))
    needed = {extra for row in promises.ROWS for test in promises.names(row) for extra in ci.extras(test)}
    assert needed <= installed <= set(project["optional-dependencies"])


def test_a_long_test_runs_in_ci_where_its_mark_says_so():
    compiled = "tests/trainer/runtime/test_compilation.py"
    assert ci.why_not_run(f"{compiled}::test_inductor_is_the_same_run_but_for_rounding") == ""
    assert ci.why_not_run("tests/optimizers/test_torchao.py::test_with_inductor_too") == "it is marked soak"


def test_tiers_are_those_that_pytest_finds():
    """Of those tests of the table, and of this file, that were collected."""
    here = Path(__file__)
    named = {f"tests/{here.name}::{name}" for name in sources.read(here).tests}
    named |= {test for row in promises.ROWS for test in promises.names(row)}
    found = {test: tiers.collected[test] for test in named & tiers.collected.keys()}
    assert found
    assert {test: {facts_of(test).tier} for test in found} == found


# -- each problem is found -----------------------------------------------------------------------


GOOD = {"test_promises.py": ["test_the_page_is_what_the_script_writes"]}
SOAKED = "strategies/launch/test_launch.py"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"tests": {"test_frames.py": ["test_gone"]}},
            "tests/test_frames.py::test_gone: there is no such test",
        ),
        ({"tests": {"test_gone.py": ["test_a"]}}, "tests/test_gone.py::test_a: there is no such test"),
        (
            {"tests": GOOD | {SOAKED: ["test_python_c_can_be_started_again"]}},
            f"tests/{SOAKED}::test_python_c_can_be_started_again: it is marked soak",
        ),
        ({"tests": {}}, "has no test, and is not in MEASURED_ONLY"),
        ({"tests": {}, "measured": ("python benchmarks/gone.py",)}, "there is no benchmarks/gone.py"),
        ({"name": "memory"}, "is in MEASURED_ONLY, and has a test"),
    ],
)
def test_a_row_that_nothing_shows_is_named(changed, problem):
    row = promises.Row("frames", 1, "At most 4 frames", GOOD)
    assert [one for one in promises.problems_of_rows([row]) if "part" not in one] == []
    found = list(promises.problems_of_rows([row._replace(**changed)]))
    assert any(problem in one for one in found), found


def test_a_part_without_a_tested_row_is_named():
    rows = [row for row in promises.ROWS if row.part != 6]
    assert "part 6, one-checkpoint, has no row with a test" in promises.problems_of_rows(rows)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| frames | `tests/test_gone.py` |", "there is no tests/test_gone.py"),
        ("| speed | `cd benchmarks && python gone.py --rounds 3` |", "there is no gone.py"),
        ("| frames | [elsewhere](README.md) |", "'frames' names neither a test nor a benchmark"),
        ("| a GPU | `tests/strategies/test_gpu.py` |", "'a GPU' has no test that CI runs"),
    ],
)
def test_a_proof_that_is_none_is_named(row, problem):
    assert problem in promises.problems_of_page(f"| proof | |\n|---|---|\n{row}\n")


# -- what is read from the source ----------------------------------------------------------------

SOURCE = """
import subprocess
import pytest
from helpers.ranks import run_ranks
LONG = pytest.mark.soak
def start(): return subprocess.run([])
@pytest.fixture
def soak(): pass
@pytest.fixture
def job(soak): return start()
@pytest.fixture
def quick(): return run_ranks
@LONG
def test_marked(): pass
def test_by_fixture(job): pass
@pytest.mark.parametrize("a", [pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)])
def test_each_case(a): pass
@pytest.mark.parametrize("a", [1, pytest.param(2, marks=LONG)])
def test_some_cases(a, quick): pass
@pytest.mark.gpu
@pytest.mark.launch
def test_gpu(): pytest.importorskip("lightning.pytorch")
"""


@pytest.mark.parametrize(
    ("name", "tier", "not_run", "packages"),
    [
        ("test_marked", "unit", {"soak"}, set()),
        ("test_by_fixture", "launch", {"soak"}, set()),
        ("test_each_case", "unit", {"soak"}, set()),
        ("test_some_cases", "ranks", set(), set()),
        ("test_gpu", "launch", {"gpu"}, {"lightning"}),
    ],
)
def test_a_test_is_read(tmp_path, name, tier, not_run, packages):
    (file := tmp_path / "test_a.py").write_text(SOURCE)
    assert sources.facts(file, name) == (tier, not_run, packages)


def test_extras():
    assert {ci.extra_of(name) for name in ("pytest", "sklearn", "deepspeed", "pty")} == {""}
    assert ci.extra_of("transformers") == "hf"
    assert ci.extra_of("jupyter_client") == "notebook"
    assert ci.extra_of("no_such_package") is None


def facts_of(test: str) -> sources.Facts:
    file, _, name = test.partition("::")
    return sources.facts(sources.ROOT / file, name)
