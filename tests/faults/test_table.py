"""docs/evidence/reliability.md says what the marks on the tests say, and no fault is without a test."""

import ast
from pathlib import Path

import pytest
from helpers import ci
from helpers.jobs import load_job

table = load_job(Path(__file__).with_name("table.py"))


@pytest.mark.fit  # for its length
def test_the_page_is_what_the_script_writes():
    assert table.PAGE.read_text() == table.page(), "python tests/faults/table.py"


def test_every_fault_has_a_test():
    numbers, found = [row.number for row in table.ROWS], table.marked()
    assert numbers == list(range(1, 56))
    assert set(found) <= set(numbers)
    assert [n for n in numbers if not found[n]] == []


def test_every_fault_has_a_test_that_ci_runs():
    for number, tests in table.marked().items():
        not_run = [f"{test}: {why}" for test in tests if (why := ci.why_not_run(test))]
        assert len(not_run) < len(tests), f"fault {number}: " + "; ".join(not_run)


def test_marks_are_read_from_the_source():
    text = "@pytest.mark.fault(3, 5)\ndef test_a(): pass\n@pytest.mark.gpu\ndef test_b(): pass\n"
    assert list(table.marks_of(ast.parse(text))) == [("test_a", [3, 5])]
