"""Training in the kernel of a notebook: its display, the stop button, and ranks forked from it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.notebooks import Notebook, nbformat
from helpers.ranks import run_ranks
from helpers.sessions import forked_programs
from safetensors.torch import load_file

import paceline

pytestmark = pytest.mark.launch
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}  # its threads do not spin

SETUP = """
import json, os, signal, threading, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, EarlyStopping

class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.BatchNorm1d(16), nn.Linear(16, 1))

    def training_step(self, batch):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch))

    def predict_step(self, batch):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

def loaders():
    x = torch.linspace(-1, 1, 256).reshape(64, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    return DataLoader(data, 4, shuffle=True), DataLoader(data, 16)

def numbers(module):
    return {name: t.double().flatten().tolist() for name, t in module.state_dict().items()}

def facts(trainer, module):
    metrics = {k: v for k, v in trainer.metrics.items() if not k.startswith("perf/")}
    place = [trainer.global_step, trainer.epoch, trainer.counters.samples, trainer.stop_reason]
    place.append(trainer.run.latest.name)
    return {"metrics": metrics, "place": place, "weights": numbers(module)}

class Slow(Callback):
    '''Gives the test time to press the stop button.'''
    def on_step_end(self, trainer):
        if trainer.global_step >= 5:
            Path("at-step-5").touch()
            time.sleep(0.05)

def settings(strategy):
    return {"strategy": strategy, "accelerator": "cpu", "devices": 2, "max_epochs": 2, "name": strategy}
"""

TWO_RANKS = """
module = Net()
trainer = Trainer(**settings({strategy!r}), callbacks=EarlyStopping("val/loss", patience=9))
run = trainer.fit(module, *loaders())
"""


def show(value: str) -> str:
    return f"print('FOUND', json.dumps({value}))"


def found(cell):
    assert cell.error is None, cell.all
    line = next(line for line in cell.printed.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


# -- one device ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    with Notebook(tmp_path_factory.mktemp("alone")).kernel(**WAITING) as notebook:
        notebook.run(SETUP)
        yield notebook


TRAIN = """
module = Net()
trainer = Trainer(max_epochs=4, callbacks={callbacks}, name="one", run_dir={folder!r})
run = trainer.fit(module, *loaders(), resume="auto")
"""
WITHOUT_PICTURES = """
from paceline.callbacks import curves
curves.start_drawing = lambda *arguments: None
"""
HANDLERS = "[str(signal.getsignal(n)) for n in (2, 10, 15, 17)] + [threading.active_count()]"


@pytest.fixture(scope="module")
def whole(alone):
    """A run that nobody interrupts; no later one draws its picture, which takes a second each time."""
    cell = alone.run(TRAIN.format(callbacks=[], folder="whole"))
    alone.run(WITHOUT_PICTURES)
    return cell, found(alone.run(show("facts(trainer, module)")))


@pytest.fixture(scope="module")
def stopped(alone, whole):
    """The same, interrupted and run again."""
    before = found(alone.run(show(HANDLERS)))
    cell = alone.run(TRAIN.format(callbacks="Slow()", folder="stopped"), alone.interrupt_at("at-step-5"))
    after = found(alone.run(show(HANDLERS)))
    step = found(alone.run(show("[trainer.global_step, trainer.stop_reason, trainer.run.latest.name]")))
    again = alone.run(TRAIN.format(callbacks=[], folder="stopped"))
    facts = found(alone.run(show("facts(trainer, module)")))
    return {"cell": cell, "handlers": (before, after), "step": step, "again": again, "facts": facts}


def test_a_fit_is_one_display_in_a_notebook_that_can_be_saved(alone, whole):
    cell, _ = whole
    assert cell.error is None, cell.all
    (display,) = cell.displays
    assert '<progress value="64" max="64"' in display["text/html"]
    assert display["text/html"].count("<tr>") == 5  # the head, and each validation
    assert display["text/plain"].endswith("; ended: max_epochs=4 reached")
    assert "paceline " in cell.printed
    assert "samples/s" not in cell.printed
    assert not {"\x1b", "\r", "\b"} & set(cell.printed + "".join(display.values()))
    assert "whole/one/1" in alone.save().read_text()


def test_the_stop_button_stops_in_order_and_the_same_cell_continues(whole, stopped):
    step, reason, latest = stopped["step"]
    assert 5 <= step < 64
    assert reason == "SIGINT received"
    assert latest == f"step-{step:08d}"
    error = stopped["cell"].error
    assert (error.ename, error.traceback) == ("KeyboardInterrupt", ["KeyboardInterrupt"])
    assert stopped["cell"].printed.count("stopping at the end of this step") == 1
    said = [line for line in stopped["cell"].printed.splitlines() if line.startswith("interrupted ")]
    assert len(said) == 1
    assert f"after step {step}" in said[0]
    assert 'resume="auto"' in said[0]
    assert latest in said[0]
    assert stopped["again"].error is None
    assert stopped["facts"]["weights"] == whole[1]["weights"]
    assert stopped["facts"]["place"] == whole[1]["place"]


def test_the_kernel_has_its_signal_handlers_and_threads_again(stopped):
    before, after = stopped["handlers"]
    assert before == after


def test_a_second_press_ends_the_run_at_once_and_keeps_the_kernel(alone, stopped):
    hanging = """
class Hanging(Callback):
    def on_step_end(self, trainer):
        Path("hangs").touch()
        while not trainer._run.stop.signal:
            time.sleep(0.05)
        time.sleep(0.5)
        Path("hangs-on").touch()
        time.sleep(600)
"""
    pid = alone.pid()
    source = hanging + TRAIN.format(callbacks="Hanging()", folder="hanging")
    cell = alone.run(source, alone.interrupt_at("hangs", "hangs-on"))
    assert cell.error.ename == "KeyboardInterrupt"
    assert alone.pid() == pid
    assert found(alone.run(show("[trainer.stage]"))) == [""]


# -- ranks -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forking(alone, whole):
    """The same kernel, after what it did by itself."""
    alone.run("left = torch.randn(900, 900) @ torch.randn(900, 900)  # OpenMP's threads are there")
    return alone


SCRIPT = """
outputs = trainer.predict(module, loaders()[1])
values = trainer.validate(module, loaders()[1])
folder = trainer.export("exported")
if trainer.rank == 0:
    found = [facts(trainer, nn.Module()), values, torch.cat(outputs).tolist()]
    Path("found.json").write_text(json.dumps(found))
"""
CELL = """
outputs = trainer.predict(module, loaders()[1])
values = trainer.validate(module, loaders()[1])
"""


# Under ddp another test trains here.
@pytest.fixture(scope="module", params=[pytest.param("ddp", marks=pytest.mark.soak), "fsdp"])
def both(request, forking, tmp_path_factory):
    """The same run on two ranks of a script, and on two that the notebook forks."""
    folder, strategy = tmp_path_factory.mktemp("script"), request.param
    train = TWO_RANKS.format(strategy=strategy)
    (folder / "train.py").write_text(SETUP + train + SCRIPT)
    run_ranks(folder / "train.py", 2, folder=folder)
    cells = {"cell": forking.run(train), "facts": found(forking.run(show("facts(trainer, module)")))}
    cells["more"] = found(forking.run(CELL + show("[values, torch.cat(outputs).tolist()]")))
    kinds = (
        "[type(run).__name__, str(run.folder) == str(trainer.folder), type(module.net[0].weight).__name__]"
    )
    cells["kinds"] = found(forking.run(show(kinds)))
    facts, *more = json.loads((folder / "found.json").read_text())
    weights = load_file(folder / "exported" / "model.safetensors")
    facts["weights"] = {name: t.double().flatten().tolist() for name, t in weights.items()}
    return cells | {"script": facts, "script's more": more}


def test_forked_ranks_give_the_numbers_of_a_script_s_ranks(both):
    facts, script = both["facts"], both["script"]
    for part in ("place", "metrics", "weights"):
        assert facts[part] == script[part]
    assert both["more"] == both["script's more"]  # of validate and predict, which are forked too


def test_after_it_the_notebook_has_the_run_and_the_whole_module(both):
    assert both["kinds"] == ["Run", True, "Parameter"]


def test_rank_0_prints_and_displays_in_the_cell(both):
    cell = both["cell"]
    assert "2 devices (cpu), strategy " in cell.printed
    (display,) = cell.displays
    assert '<progress value="16" max="16"' in display["text/html"]
    assert display["text/html"].count("<tr>") == 3
    assert not {"\x1b", "\r"} & set(cell.printed + "".join(display.values()))


FAILING = """
class Failing(Net):
    def training_step(self, batch):
        if self.trainer.rank == 1 and self.global_step == 3:
            raise KeyError("rank 1 has had enough")
        return super().training_step(batch)

module = Failing()
before = numbers(module)
trainer = Trainer(**settings("ddp") | {"name": "failing"})
trainer.fit(module, *loaders())
"""
AFTER = "[before == numbers(module), len(multiprocessing.active_children())]"


def test_a_rank_s_error_is_what_the_cell_shows_last(forking):
    cell = forking.run(FAILING)
    assert cell.error.ename == "RankFailedError"
    shown = cell.error.traceback
    assert "KeyError: 'rank 1 has had enough'" in shown[-5:]  # notes follow it
    assert any("in training_step" in line for line in shown)
    assert any(line.startswith("  rank 1 ended with exit code 1 first: KeyError") for line in shown)
    assert not any("paceline/" in line for line in shown)
    assert cell.outputs[-1] is cell.error
    is_as_before, left = found(forking.run("import multiprocessing\n" + show(AFTER)))
    assert is_as_before
    assert left == 0
    assert forking.is_alone()


MISTAKEN = """
trainer = Trainer(**settings("ddp") | {"name": "mistaken"}, callbacks=EarlyStopping("val/lost", mode="min"))
trainer.fit(Net(), *loaders())
"""


def test_a_mistake_is_shown_as_everywhere(forking):
    error = forking.run(MISTAKEN).error
    assert error.ename == "PacelineError"
    assert error.evalue.startswith("EarlyStopping watches 'val/lost', which validation does not log\n")
    assert "did you mean: val/loss?" in error.traceback[-3]
    assert error.traceback[-1] == "  more: paceline explain metric-not-logged"


INTERRUPTED = """
module = Net()
trainer = Trainer(**settings("ddp") | {{"name": "interrupted"}}, callbacks={callbacks})
run = trainer.fit(module, *loaders(), resume="auto")
"""


def test_the_stop_button_stops_all_ranks_in_order_and_the_cell_continues(forking):
    whole = forking.run(INTERRUPTED.format(callbacks=[]).replace('"interrupted"', '"uninterrupted"'))
    assert whole.error is None
    expected = found(forking.run(show("facts(trainer, module)")))
    (forking.folder / "at-step-5").unlink(missing_ok=True)
    cell = forking.run(INTERRUPTED.format(callbacks="Slow()"), forking.interrupt_at("at-step-5"))
    assert (cell.error.ename, cell.error.traceback) == ("KeyboardInterrupt", ["KeyboardInterrupt"])
    assert 'fit(..., resume="auto") continues from' in cell.printed
    ends = "trainer.global_step, trainer.stop_reason, trainer.run.latest.name"
    same = "numbers(Net.load_from_checkpoint(trainer.run.latest)) == numbers(module)"
    step, reason, latest, same = found(forking.run(show(f"[{ends}, {same}]")))
    assert 5 <= step < 16
    assert reason.startswith("SIGINT received")
    assert latest == f"step-{step:08d}"
    assert same
    assert forking.is_alone()
    assert forking.run(INTERRUPTED.format(callbacks=[])).error is None
    facts = found(forking.run(show("facts(trainer, module)")))
    assert facts["weights"] == expected["weights"]
    assert facts["place"] == expected["place"]


def test_the_page_about_notebooks_runs_in_one(forking, tmp_path):
    """In the kernel of the tests above, which has forgotten all names."""
    page = (Path(paceline.__file__).parent / "docs" / "guides" / "notebook.md").read_text()
    assert forking.run(f"%reset -f\n%cd {tmp_path}").error is None
    assert forking.run("Trainer").error.ename == "NameError"
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        cell = forking.run(block)
        assert cell.error is None, cell.all
    assert "2 devices (cpu), strategy fsdp" in (tmp_path / "runs/line/2/log.txt").read_text()


TUTORIALS = load_job(Path(paceline.__file__).parent / "tests" / "make_notebooks.py").notebooks()


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in TUTORIALS])
def test_a_notebook_of_the_tutorials_is_its_page_and_runs(path, forking, tmp_path):
    assert path.read_text() == TUTORIALS[path], "python tests/make_notebooks.py"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    programs = forked_programs(tmp_path / "programs")
    forking.run(f"%reset -f\n%cd {tmp_path}\n%env PATH={programs}:{os.environ['PATH']}")
    forking.run("import torch\ntorch.set_num_threads(1)")  # else MKL chooses, and rounds otherwise
    printed = ""
    for one in notebook.cells:
        if one.cell_type == "code":
            cell = forking.run(one.source)
            assert cell.error is None, cell.all
            printed += cell.printed.replace("\r", "")  # a command of a cell has a terminal
    said, times = {"own-loop": ("the same\n", 4)}.get(path.stem, ("every compared step is the same\n", 3))
    assert printed.count(said) == times, printed
