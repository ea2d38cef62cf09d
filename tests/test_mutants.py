"""``make mutants``: the list of faults, and what its runner says of them."""

import ast
import runpy
import sys
import tomllib
from collections import Counter

import mutants
import pytest

SEVERAL = ("data order", "resume", "checkpoints", "gradients", "metrics", "signals", "launchers")
GROUPED = ("compat/lightning/fabric", "compat/lightning/pytorch")  # many small folders each
FAULTS = mutants.read()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}-{fault.file}")
def test_each_fault_can_be_made_in_one_place(fault):
    text = (mutants.ROOT / fault.file).read_text()
    faulty = fault.applied(text)
    assert not fault.first or (mutants.ROOT / fault.first).is_file()
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(text))


def test_every_folder_has_a_fault_and_what_users_rely_on_has_several():
    assert len(FAULTS) >= 60
    places = Counter(fault.file.rpartition("/")[0] for fault in FAULTS)
    named = tomllib.loads((mutants.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {"/".join(name.split(".")[1:]) for name in named}
    for group in GROUPED:
        folders -= {folder for folder in folders if folder.startswith(f"{group}/")}
        assert any(place.startswith(group) for place in places)
    empty = {folder for folder in folders if not has_code(folder)}
    assert folders - empty - set(places) - set(GROUPED) == set()
    assert min(Counter(fault.area for fault in FAULTS)[area] for area in SEVERAL) >= 4


def has_code(folder):
    return any(path.name != "__init__.py" for path in (mutants.ROOT / folder).glob("*.py"))


LIST = """# a comment

calc.py [sums]: the sign is wrong
- return a + b
+ return a - b
= tests/test_sums.py

calc.py: the last one is left out
- range(n):
-         yield
+ range(n - 1):
+         yield
"""
CALC = "def add(a, b):\n    return a + b\n\n\ndef up_to(n):\n    for i in range(n):\n        yield i\n"


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "calc.py").write_text(CALC)
    (root / "tests" / "test_calc.py").write_text(
        "from paceline.calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    )
    (root / "__init__.py").write_text("")
    (root / "faults.txt").write_text(LIST)
    return root


def add_is_right(tree, tests, seconds):
    """A test of ``add`` alone."""
    assert 0 < seconds <= 9
    return "" if runpy.run_path(str(tree / "calc.py"))["add"](2, 3) == 5 else tests[0]


def verdicts(root, run, tests=("tests/test_calc.py",), seconds=9):
    files = ["calc.py", "__init__.py", "tests/test_calc.py"]
    faults = mutants.read(root / "faults.txt")
    return [mutants.examine(fault, root, files, tests, seconds, run) for fault in faults]


def test_what_no_test_notices_is_reported(project):
    found = verdicts(project, add_is_right)
    assert [v.noticed_by for v in found] == ["tests/test_calc.py", ""]
    shown = mutants.report(found)
    assert "noticed by tests/test_calc.py" in shown
    assert "calc.py: the last one is left out" in shown
    assert "NOT NOTICED: 1 files ran" in shown
    assert shown.endswith("1 of 2 noticed")
    assert (project / "calc.py").read_text() == CALC


def test_a_test_that_fails_in_any_case_has_noticed_nothing(project):
    found = verdicts(project, lambda tree, tests, seconds: tests[0])
    assert {v.note for v in found} == {"1 files ran; tests/test_calc.py fails without it too"}
    assert mutants.report(found).endswith("0 of 2 noticed")


def test_tests_after_one_that_fails_in_any_case_run_too(project):
    def run(tree, tests, seconds):
        return tests[0] if tests[0] == "first" else add_is_right(tree, tests, seconds)

    assert [v.noticed_by for v in verdicts(project, run, ["first", "second"])] == ["second", ""]


def test_a_deadline_and_the_lack_of_tests_are_reported(project):
    def waits(tree, tests, seconds):
        raise TimeoutError

    assert {v.note for v in verdicts(project, waits)} == {"no test failed in 9 s"}
    assert {v.note for v in verdicts(project, waits, tests=())} == {"no test can see it"}


def test_a_text_that_is_not_there_once_is_an_error(project):
    (project / "calc.py").write_text(CALC * 2)
    with pytest.raises(ValueError, match=r"fault 1: calc\.py has its text 2 times: return a \+ b"):
        verdicts(project, add_is_right)


def test_a_fault_may_name_the_tests_to_run_first(project):
    assert [fault.first for fault in mutants.read(project / "faults.txt")] == ["tests/test_sums.py", ""]


def test_faults_are_chosen_by_number_and_folder():
    assert [fault.number for fault in mutants.chosen(FAULTS, "3,1", "")] == [1, 3]
    assert {fault.file.split("/")[0] for fault in mutants.chosen(FAULTS, "", "callbacks")} == {"callbacks"}


@pytest.mark.launch
def test_pytest_runs_on_the_copy(project, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--an-option-of-another-project")
    found = verdicts(project, mutants.run_pytest, seconds=120)
    assert [v.noticed_by for v in found] == ["tests/test_calc.py::test_add", ""]
    with pytest.raises(TimeoutError):
        mutants.run_pytest(project, ["tests/test_calc.py"], 0)
    assert sys.executable
