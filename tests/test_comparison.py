"""The page that compares trainers is what its script makes of the committed results."""

import json
import re
from pathlib import Path

import pytest
from helpers.jobs import load_job

FOLDER = Path(__file__).parents[1] / "benchmarks" / "comparison"
program, mistakes, rows, page, run = (
    load_job(FOLDER / f"{name}.py") for name in ("program", "mistakes", "rows", "page", "run")
)
RESULTS = json.loads(run.RESULTS.read_text())


def test_the_page_is_what_the_script_makes_of_the_results():
    assert page.PAGE.read_text() == page.page(RESULTS)
    readme = page.README.read_text()
    assert "| killed in the middle of an epoch and resumed |" in readme
    assert readme == page.readme(RESULTS), "python benchmarks/comparison/run.py --page"


def test_each_cell_was_run_and_its_command_names_a_row_and_a_program():
    text = page.PAGE.read_text()
    assert set(re.findall(r"--row (\w+)`", text)) == set(RESULTS["rows"]) == set(rows.ROWS)
    assert re.findall(r"--trainer ([a-z_]+)`", text) == list(program.PROGRAMS)
    for found in RESULTS["rows"].values():
        assert list(found) == list(program.PROGRAMS)
    for name in re.findall(r"`(benchmarks/[\w/]+\.\w+)", text):
        assert (FOLDER.parents[1] / name).exists(), name


def test_no_result_has_a_path_of_the_machine_it_was_measured_on():
    paths = re.compile(r"""(?<=[ "'(=])/\w[\w.-]*/\w[\w.-]*/.*""")
    files = sorted((FOLDER.parent / "results").glob("*.json"))
    assert run.RESULTS in files
    assert {f.name: found for f in files if (found := paths.findall(f.read_text()))} == {}


def test_each_mistake_can_be_made_in_the_programs_as_they_are(tmp_path):
    for trainer in program.PROGRAMS:
        source = program.Program(trainer, tmp_path, "mistakes").source
        made = [
            mistakes.edited(source, trainer, name)
            for name in mistakes.EDITS
            if trainer in mistakes.EDITS[name]
        ]
        assert source not in made
        for text in made:
            compile(text, trainer, "exec")


@pytest.mark.parametrize("trainer", program.PROGRAMS)
@pytest.mark.parametrize("row", rows.ROWS)
def test_a_program_without_the_lines_marked_for_a_row_is_a_program(row, trainer, tmp_path):
    compile(program.Program(trainer, tmp_path, row).source, trainer, "exec")


@pytest.mark.launch
def test_a_fault_in_a_program_changes_what_is_said_of_it(tmp_path):
    read = program.Program("by_hand", tmp_path)
    before = "range(rank, len(data), world)"
    assert read.source.count(before) == 1
    read.source = read.source.replace(before, "[*range(rank, len(data), world), *[0] * rank]")
    found = rows.evaluation(read)
    assert found["computed"] == 8
    assert page.evaluation(found).startswith("accuracy 0.375 instead of 0.286, loss")
