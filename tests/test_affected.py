"""``make check``: which tests a change selects, in this tree and in a small one."""

import json
import subprocess

import affected
import check
import pytest

FILES = {
    "__init__.py": "_HOMES = {'Runner': '.core.runner'}\n__all__ = [*_HOMES]\n",
    "core/__init__.py": "",
    "core/runner.py": "from ..extras import Sum\nclass Runner: pass\n",
    "extras/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from .mean import Mean\n    from .sum import Sum\n"
        "__all__ = ['Mean', 'Sum']\n"
    ),
    "extras/mean.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .sum import Sum\n",
    "extras/sum.py": "class Sum: pass\n",
    "docs/page.md": "text",
    "tests/helpers/__init__.py": "",
    "tests/helpers/made.py": "def made():\n    from paceline.extras.mean import Mean\n",
    "tests/core/test_runner.py": "from paceline import Runner\n",
    "tests/extras/sum_job.py": "import paceline.extras as e\ne.Sum()\n",
    "tests/extras/test_on_ranks.py": "JOB = Path(__file__).with_name('sum_job.py')\n",
    "tests/extras/test_mean.py": "from helpers.made import made\n",
    "tests/extras/conftest.py": "",
    "tests/test_pages.py": "PAGES = ROOT.rglob('*.md')\n",
    "compat/lightning/pytorch/__init__.py": "from .swa import SWA\n",
    "compat/lightning/pytorch/swa.py": "class SWA: pass\n",
    "tests/programs/swa.py": "import lightning.pytorch as pl\npl.SWA()\n",
    "tests/test_programs.py": "(HERE / 'programs').iterdir()\n",
    "tests/core/test_parts.py": "import_module('.parts', OURS)\n",
    "core/parts/__init__.py": "",
    "tests/data/one.json": "{}",
    "tests/test_data.py": "(HERE / 'data').iterdir()\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return affected.Graph(tmp_path, FILES)


@pytest.fixture(scope="module")
def graph():
    return affected.Graph()


@pytest.mark.parametrize(
    ("changed", "distances"),
    [
        # Mirrored; named through the lazy table of the package only for type checkers; a job; an importer.
        ("extras/sum.py", {"extras/test_on_ranks": 1, "core/test_runner": 1.5}),
        ("extras/mean.py", {"extras/test_mean": 0.5}),
        ("core/runner.py", {"core/test_runner": 0.5}),
        ("tests/helpers/made.py", {"extras/test_mean": 1}),
        ("tests/extras/sum_job.py", {"extras/test_on_ranks": 0}),
        ("tests/extras/test_mean.py", {"extras/test_mean": 0}),
        ("tests/extras/conftest.py", {"extras/test_mean": 1, "extras/test_on_ranks": 1}),
        ("docs/page.md", {"test_pages": 1}),
        ("tests/data/one.json", {"test_data": 1}),
        ("core/parts/__init__.py", {"core/test_parts": 1}),
        ("compat/lightning/pytorch/swa.py", {"test_programs": 2}),
        ("LICENSE", {}),
    ],
)
def test_the_distance_of_each_test(tree, changed, distances):
    assert tree.distances([changed]) == {f"tests/{test}.py": d for test, d in distances.items()}


def test_a_file_that_was_deleted_affects_those_that_still_name_it(tree):
    (tree.root / "tests/helpers/made.py").unlink()
    (tree.root / "tests/core/test_runner.py").unlink()
    again = affected.Graph(tree.root, FILES)
    gone = ["tests/helpers/made.py", "tests/core/test_runner.py"]
    assert again.distances(gone) == {"tests/extras/test_mean.py": 1}


def test_the_nearest_tests_that_fit_are_selected(tree):
    seconds = {"tests/core/test_runner.py": 50, "tests/extras/test_on_ranks.py": 10}
    (tree.root / affected.SECONDS[0]).write_text(json.dumps(seconds))
    selection = affected.select(tree, ["extras/sum.py"], budget=20)
    assert selection.run == {"tests/extras/test_on_ranks.py": 1}
    assert selection.left_out == {"tests/core/test_runner.py": 1.5}
    shown = check.report(["extras/sum.py"], selection, 5)
    assert "1 files changed; they can affect 2 of 5 test files" in shown
    assert "left out: 1 that name what changed" in shown
    whole = affected.select(tree, ["core/runner.py"], budget=0)
    assert [*whole.run] == ["tests/core/test_runner.py"]  # what mirrors a change runs in any case


@pytest.mark.launch  # for its length
def test_a_callback(graph):
    found = graph.distances(["callbacks/averages/ema.py"])
    assert found["tests/callbacks/averages/test_ema.py"] == 0.5
    assert found["tests/callbacks/averages/test_averages_on_ranks.py"] == 1  # its job has EMA
    assert "tests/strategies/ranks/test_collectives.py" not in found
    assert "tests/callbacks/monitors/test_timer.py" not in found
    run = affected.select(graph, ["callbacks/averages/ema.py"], budget=60).run
    assert next(iter(run)) == "tests/callbacks/averages/test_ema.py"
    assert (
        "tests/test_architecture.py"
        in affected.select(graph, ["callbacks/averages/ema.py"], budget=1e9).run
    )


@pytest.mark.launch  # for its length
@pytest.mark.parametrize(
    ("changed", "test", "distance"),
    [
        ("callbacks/kept_checkpoints.py", "tests/callbacks/test_checkpoint.py", 1.5),  # of what imports it
        ("strategies/ddp.py", "tests/strategies/test_parity.py", 1),
        ("strategies/deepspeed/engine.py", "tests/strategies/test_checkpoint_matrix.py", 2),  # by its name
        ("trainer/faults/signals.py", "tests/faults/test_signals.py", 1),  # by its name alone it is near
        ("recipes/gan.py", "tests/recipes/test_gan.py", 0.5),
        ("commands/train.py", "tests/test_command_line.py", 2),
        ("docs/guides/devices.md", "tests/test_docs.py", 1),
        ("tests/callbacks/freeze_job.py", "tests/callbacks/test_freeze.py", 0),
        ("tests/helpers/freezing.py", "tests/callbacks/test_freeze.py", 1),
        ("tests/golden/format-1/ddp/state.json", "tests/trainer/checkpoint/test_golden_checkpoints.py", 1),
        ("tests/compat/lightning/programs/gan.py", "tests/compat/lightning/test_programs.py", 1),
    ],
)
def test_a_change_affects_a_test(graph, changed, test, distance):
    assert graph.distances([changed])[test] <= distance


@pytest.mark.launch  # for its length
def test_a_change_of_the_core_says_that_it_affects_nearly_everything(graph):
    changed = ["trainer/loops/training_loop.py"]
    selection = affected.select(graph, changed, budget=100)
    assert next(iter(selection.run)) == "tests/trainer/loops/test_training_loop.py"
    found = {test.split("::")[0] for test in (*selection.run, *selection.left_out)}
    assert len(found) > 0.9 * len(graph.tests)
    shown = check.report(changed, selection, len(graph.tests))
    assert "left out: " in shown
    assert "make check ALL=1" in shown


@pytest.mark.launch  # for its length
def test_every_test_file_but_a_few_is_reached_from_the_package(graph):
    """What the graph does not see would never be selected."""
    product = [path for path in graph.files if affected.is_product(path)]
    missed = set(graph.tests) - set(graph.distances(product))
    assert missed <= {"tests/test_affected.py", "tests/test_mutants.py", "tests/test_kubernetes_files.py"}


@pytest.mark.unit  # git is no interpreter
def test_what_has_changed_since_a_revision(tmp_path):
    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("kept", "changed", "gone"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").write_text("")
    assert affected.changed_files(tmp_path) == ["changed", "gone", "new"]
    git("commit", "-qam", "second")
    assert affected.changed_files(tmp_path) == ["new"]
    assert affected.changed_files(tmp_path, "HEAD~") == ["changed", "gone", "new"]
    assert affected.listed(tmp_path) == ["changed", "kept", "new"]


def test_the_seconds_of_whole_files_are_kept(tmp_path):
    cases = "".join(
        f'<testcase file="tests/test_{n}.py" time="{s}"/>' for n, s in [("a", 1), ("a", 2), ("b", 9)]
    )
    (tmp_path / "junit.xml").write_text(f"<testsuites>{cases}</testsuites>")
    kept = tmp_path / "build" / "seconds.json"
    check.keep(tmp_path / "junit.xml", kept, {"tests/test_a.py"})
    assert json.loads(kept.read_text()) == {"tests/test_a.py": 3.0}
