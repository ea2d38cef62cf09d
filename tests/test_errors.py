"""``sys.excepthook`` is ours while a run may fail, and not longer; an error of ours changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks

import paceline
from paceline import PacelineError, Trainer, TrainModule
from paceline.errors import is_users_frame, short_tracebacks
from paceline.strategies.launch.job_notes import JOB

QUIET = {"accelerator": "cpu", "progress": False, "checkpoint": False, "loggers": False}


class Line(TrainModule):
    def __init__(self, fails=False):
        super().__init__()
        self.net, self.fails = torch.nn.Linear(2, 1), fails
        self.seen = []

    def training_step(self, batch):
        self.seen.append(sys.excepthook)
        if self.fails:
            raise ArithmeticError("too much")
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(tmp_path, fails=False):
    module = Line(fails)
    Trainer(**QUIET, run_dir=tmp_path).fit(module, [torch.ones(4, 2)])
    return module


@pytest.fixture(autouse=True)
def python_s_own_hook(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


def run_python(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_files_of_all_folders_of_the_package_are_ours_and_recipes_are_the_users():
    root = Path(paceline.__file__).parent
    shown = {p.parent.name for p in root.glob("*/__init__.py") if is_users_frame(str(p))}
    assert shown == {"recipes"}
    assert not is_users_frame(str(root / "errors.py"))
    assert is_users_frame(str(root / "tests" / "test_errors.py"))


def test_an_error_that_is_made_and_caught_changes_nothing():
    with pytest.raises(PacelineError, match="x"):
        raise PacelineError("x")
    assert sys.excepthook is sys.__excepthook__


def test_an_import_changes_nothing_in_a_rank_either(tmp_path):
    script = f"import os, sys; os.environ[{JOB!r}] = {str(tmp_path)!r}; import paceline.strategies\n"
    done = run_python(script + "sys.exit(sys.excepthook is not sys.__excepthook__)")
    assert done.returncode == 0, done.stderr


def test_the_hook_is_ours_inside_a_run_and_put_back_after_it(tmp_path):
    (inside,) = fit(tmp_path).seen
    assert inside is not sys.__excepthook__
    assert sys.excepthook is sys.__excepthook__


def test_an_error_leaves_it_in_place_until_a_run_ends_without_one(tmp_path):
    with pytest.raises(ArithmeticError):
        fit(tmp_path, fails=True)
    assert sys.excepthook is not sys.__excepthook__
    fit(tmp_path)
    assert sys.excepthook is sys.__excepthook__


def test_a_refused_argument_leaves_it_in_place():
    with pytest.raises(PacelineError):
        Trainer(strategy="dpp")
    assert sys.excepthook is not sys.__excepthook__


def test_the_hook_of_a_debugger_or_notebook_is_left_alone(tmp_path, monkeypatch):
    def theirs(*error):
        pass

    monkeypatch.setattr(sys, "excepthook", theirs)
    assert fit(tmp_path).seen == [theirs]
    assert sys.excepthook is theirs


def test_a_hook_that_was_set_inside_is_left_alone():
    def theirs(*error):
        pass

    with short_tracebacks():
        sys.excepthook = theirs
    assert sys.excepthook is theirs


def test_in_a_rank_it_stays_and_the_launcher_is_notified(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(JOB, str(tmp_path))
    Trainer(**QUIET)
    error = RuntimeError("after the run")
    sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err == ""
    assert "after the run" in (tmp_path / "failed-0").read_text()


def test_other_errors_are_printed_as_python_prints_them(capsys):
    with short_tracebacks():
        error = RuntimeError("not ours")
        sys.excepthook(type(error), error, None)
    assert "RuntimeError: not ours" in capsys.readouterr().err


def test_a_configuration_s_error_is_printed_with_the_user_s_frames_only(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from paceline.config.load import load\n"
        'load("paceline.recipes.vit_cifar10", [], ["batch_sizes=3"]).checked()\n'
    )
    done = run_ranks(script, 1, folder=tmp_path, check=False)
    assert done.codes == [1]
    assert "did you mean" in done.stderr
    assert "load.py" not in done.stderr


def test_ipython_is_given_the_users_frames_and_the_message(monkeypatch):
    with pytest.raises(PacelineError) as raised:
        Trainer(max_epochs=-1)
    lines = raised.value._render_traceback_()
    assert lines[-2].startswith("  max_epochs: got -1; ")
    assert lines[-1] == "  more: paceline explain invalid-arguments"
    assert len(lines) <= 12
    assert not any("validation.py" in line for line in lines)
    monkeypatch.setenv("PACELINE_TRACEBACK", "full")
    assert any("validation.py" in line for line in raised.value._render_traceback_())
