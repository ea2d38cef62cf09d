"""What a run writes down: metrics.jsonl, TensorBoard's event files, curves.png."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers.loggers import NO_DEFAULTS
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint, Curves, JSONLogger, Logger, TensorBoard
from paceline.callbacks.loggers.json_lines import keep_rows_until
from paceline.callbacks.loggers.series import read_rows


class Module(TrainModule):
    def __init__(self, odd=False, breaks_at=None):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(2, 1)
        self.odd, self.breaks_at = odd, breaks_at

    def training_step(self, batch):
        if self.global_step == self.breaks_at:
            raise RuntimeError("broken")
        if self.odd:
            self.log_dict({"nothing": math.nan, "endless": math.inf, "below": -math.inf})
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        return {"accuracy": (self.epoch + 1) / 4}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def loader(samples=12):
    x = torch.linspace(-1, 1, 2 * samples).reshape(samples, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def fit(loggers, module=None, callbacks=(), resume=None, **settings):
    settings = {"progress": False, "checkpoint": False, "max_epochs": 2, "log_every": 1} | settings
    if not isinstance(loggers, bool):  # those alone
        loggers = [*([loggers] if isinstance(loggers, Logger) else loggers), *NO_DEFAULTS]
    trainer = Trainer(loggers=loggers, callbacks=callbacks, name="r", **settings)
    return trainer.fit(module or Module(), loader(), loader(), resume=resume)


def lines(run):
    return read_rows(run.folder / "metrics.jsonl")


def scalars(run):
    """Tag -> [(step, value)], as TensorBoard itself reads the folder."""
    events = EventAccumulator(str(run.folder / "tb"), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


# -- metrics.jsonl -------------------------------------------------------------------------------


def test_metrics_jsonl_is_one_flat_object_a_line():
    run = fit([JSONLogger()])
    rows = lines(run)
    for row in rows:
        assert list(row)[:4] == ["step", "epoch", "time", "samples"]
        assert all(isinstance(value, (int, float)) for value in row.values())
    trained = [row for row in rows if "train/loss" in row]
    assert [row["step"] for row in trained] == [1, 2, 3, 4, 5, 6]
    assert [row["samples"] for row in trained] == [4, 8, 12, 16, 20, 24]
    assert [row["epoch"] for row in trained] == [0, 0, 0, 1, 1, 1]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert [(r["step"], r["val/accuracy"]) for r in rows if "val/accuracy" in r] == [(3, 0.25), (6, 0.5)]
    assert all(row["lr/SGD"] == 0.25 for row in trained)


def test_values_that_are_not_finite_stay_readable_json():
    run = fit([JSONLogger()], Module(odd=True))
    row = next(row for row in lines(run) if "train/nothing" in row)
    assert row["train/nothing"] == "nan"
    assert (row["train/endless"], row["train/below"]) == ("inf", "-inf")
    assert math.isnan(run.metrics["train/nothing"].values[0])
    assert run.metrics["train/endless"].values[0] == math.inf


def test_rows_are_on_disk_while_the_run_continues():
    seen = []

    class Reads(JSONLogger):
        def on_step_boundary(self, trainer):
            seen.append(len((trainer.folder / "metrics.jsonl").read_text().splitlines()))

    fit([Reads()], max_epochs=1)
    assert seen[0] >= 1
    assert seen == sorted(seen)


def test_an_evaluation_by_itself_writes_no_row():
    run = fit([JSONLogger()], max_epochs=1)
    before = (run.folder / "metrics.jsonl").read_text()
    trainer = Trainer(loggers=["-tensorboard", "-curves"], progress=False, name="r")
    trainer.validate(Module(), loader())
    assert (run.folder / "metrics.jsonl").read_text() == before


def test_all_rows_of_a_long_run_are_kept():
    rows = lines(fit([JSONLogger()], max_epochs=100, validate_every="5ep"))
    assert [row["step"] for row in rows if "train/loss" in row and "train/loss_epoch" not in row] == list(
        range(1, 301)
    )


HISTORY = "".join(json.dumps({"step": step, "train/loss": step / 4}) + "\n" for step in range(1, 10))
KEPT = HISTORY[: HISTORY.index('{"step": 7')]


def interrupt(monkeypatch, operation, after, how):
    """Let ``how`` happen before or after the first call of an operation on files."""
    real = getattr(os, operation)

    def interrupted(*arguments, **options):
        if not after:
            how()
        result = real(*arguments, **options)
        if after:
            how()
        return result

    monkeypatch.setattr(os, operation, interrupted)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_resume_that_is_killed_loses_no_row(operation, after, tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text(HISTORY + '{"step": 10, "train/l')  # as a killed run leaves it
    before = path.read_text()
    child = os.fork()
    if not child:
        interrupt(monkeypatch, operation, after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        keep_rows_until(path, 6)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert path.read_text() == (KEPT if (operation, after) == ("replace", True) else before)
    keep_rows_until(path, 6)  # whatever the killed one left is no hindrance
    assert path.read_text() == KEPT
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_full_disk_on_resume_loses_no_row(operation, tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text(HISTORY)

    def full():
        raise OSError(28, "No space left on device")

    interrupt(monkeypatch, operation, False, full)
    with pytest.raises(OSError, match="No space left"):
        keep_rows_until(path, 6)
    assert path.read_text() == HISTORY
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


# -- TensorBoard ---------------------------------------------------------------------------------


def test_tensorboard_reads_what_was_logged():
    run = fit([TensorBoard(), JSONLogger()])
    found = scalars(run)
    assert set(found) == {*run.metrics, "position/epoch", "position/samples"}
    assert [value for _, value in found["position/samples"]] == [row["samples"] for row in run.rows]
    for name, series in run.metrics.items():
        assert [step for step, _ in found[name]] == series.steps, name
        assert [value for _, value in found[name]] == pytest.approx(series.values, rel=1e-6), name


def test_tensorboard_takes_values_that_are_not_finite():
    found = scalars(fit([TensorBoard()], Module(odd=True), max_epochs=1))
    assert math.isnan(found["train/nothing"][0][1])
    assert found["train/endless"][0][1] == math.inf


def test_tensorboard_forgets_what_lies_after_the_loaded_step():
    keeps = Checkpoint(every=2)
    first = fit([TensorBoard(), JSONLogger()], callbacks=keeps)
    shutil.rmtree(first.checkpoints[-1])  # as if it had been killed before this one was written
    run = fit([TensorBoard(), JSONLogger()], callbacks=Checkpoint(every=2), max_epochs=3, resume="latest")
    assert run.folder == first.folder
    found = scalars(run)
    assert [step for step, _ in found["train/loss"]] == list(range(1, 10))
    assert [step for step, _ in found["val/accuracy"]] == [3, 6, 9]
    assert [value for _, value in found["train/loss"]] == pytest.approx(
        run.metrics["train/loss"].values, rel=1e-6
    )


def test_two_fits_of_one_trainer_write_two_folders():
    trainer = Trainer(loggers=["-curves"], progress=False, checkpoint=False, max_steps=2, log_every=1)
    runs = [trainer.fit(Module(), loader()) for _ in range(2)]
    assert runs[0].folder != runs[1].folder
    for run in runs:
        assert [step for step, _ in scalars(run)["train/loss"]] == [1, 2]
        assert run.metrics["train/loss"].steps == [1, 2]


def test_every_row_of_a_long_run_is_one_event():
    run = fit([TensorBoard()], max_epochs=100, validate_every="5ep")
    (file,) = (run.folder / "tb").iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]
    events = [event for event in events if event.summary.value[0].tag.startswith("position/")]
    assert len({event.step for event in events}) == 300
    assert any(len(event.summary.value) > 1 for event in events)
    assert [step for step, _ in scalars(run)["train/loss"]] == list(range(1, 301))


def test_loader_workers_forked_while_its_locks_are_held_are_not_disturbed(tmp_path):
    tensorboard = TensorBoard()
    trainer = SimpleNamespace(folder=tmp_path, is_global_zero=True, global_step=0, config={}, metrics={})
    tensorboard.on_fit_start(trainer)
    tensorboard.write({"step": 1, "x": 0.5})
    asynchronous = tensorboard._writer._async_writer
    rows = TensorDataset(torch.arange(8.0))
    with asynchronous._lock, asynchronous._byte_queue.mutex:
        read = DataLoader(rows, 4, num_workers=2, multiprocessing_context="fork", timeout=30)
        assert torch.cat([batch for (batch,) in read]).tolist() == list(range(8))
    tensorboard.write({"step": 2, "x": 0.25})
    tensorboard.on_teardown(trainer, "fit")
    assert scalars(trainer)["position/x"] == [(1, 0.5), (2, 0.25)]


def test_tensorboard_is_not_imported_before_the_first_row():
    script = (
        "import sys; from paceline.callbacks import TensorBoard; TensorBoard();"
        "sys.exit(any(name.split('.')[0] == 'tensorboard' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# -- curves.png ----------------------------------------------------------------------------------


def is_picture(path):
    picture = imread(path)
    return path.read_bytes().startswith(b"\x89PNG") and picture.ndim == 3 and picture.std() > 0


@pytest.mark.usefixtures("pictures")
def test_curves_are_drawn_at_the_end():
    run = fit([JSONLogger()], callbacks=Curves())
    assert is_picture(run.folder / "curves.png")


@pytest.mark.usefixtures("pictures")
def test_curves_are_drawn_after_an_error_too(tmp_path):
    with pytest.raises(RuntimeError, match="broken"):
        fit([JSONLogger()], Module(breaks_at=4), callbacks=Curves())
    assert is_picture(tmp_path / "runs" / "r" / "1" / "curves.png")


@pytest.mark.usefixtures("pictures")
def test_curves_of_values_that_are_not_finite():
    run = fit([JSONLogger()], Module(odd=True), callbacks=Curves(dpi=40))
    assert is_picture(run.folder / "curves.png")


@pytest.mark.usefixtures("pictures")
def test_no_rows_no_picture():
    run = fit(False, callbacks=Curves())
    assert not (run.folder / "curves.png").exists()


# -- which ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pictures")
def test_all_of_them_are_there_by_default():
    run = fit(True, max_epochs=1)
    written = {path.name for path in run.folder.iterdir()}
    assert written >= {"config.yaml", "env.json", "log.txt", "metrics.jsonl", "tb", "curves.png"}
    assert run.metrics["val/accuracy"].values == [0.25]


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("off", [False, ()])
def test_all_of_them_can_be_off(off):
    run = fit(off, max_epochs=1)
    assert not {"metrics.jsonl", "tb", "curves.png"} & {path.name for path in run.folder.iterdir()}
    assert run.rows == []


def test_a_logger_of_ones_own():
    class Keeps(Logger):
        def __init__(self):
            self.rows = []

        def write(self, row):
            self.rows.append(row)

    keeps = Keeps()
    run = fit(keeps, max_epochs=1)
    assert [row["step"] for row in keeps.rows if "train/loss" in row] == [1, 2, 3]
    assert not (run.folder / "metrics.jsonl").exists()


def test_something_else_is_refused():
    with pytest.raises(PacelineError, match=r"loggers(.|\n)*paceline\.callbacks\.Logger"):
        Trainer(loggers=["tensorbord"])


# -- which loggers a run has ---------------------------------------------------------------------


class Mine(Logger):
    def write(self, row):
        pass


class OwnJSON(JSONLogger):
    """In place of the default one."""


DEFAULTS = {JSONLogger, TensorBoard, Curves}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, DEFAULTS),
        (False, set()),
        ([], DEFAULTS),
        (Mine(), {Mine, *DEFAULTS}),
        ([Mine()], {Mine, *DEFAULTS}),
        ([OwnJSON(), Mine()], {OwnJSON, Mine, TensorBoard, Curves}),
        ("-tensorboard", {JSONLogger, Curves}),
        ([Mine(), "-tensorboard", "-curves"], {Mine, JSONLogger}),
        ([Mine(), *NO_DEFAULTS], {Mine}),
        (["-jsonl", OwnJSON()], {OwnJSON, TensorBoard, Curves}),
    ],
    ids=range(10),
)
def test_a_list_adds_to_the_defaults_and_names_switch_them_off(given, expected):
    found = [type(c) for c in Trainer(loggers=given).callbacks if isinstance(c, (Logger, Curves))]
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.usefixtures("pictures")
def test_a_logger_of_ones_own_costs_none_of_the_usual_files():
    trainer = Trainer(loggers=[Mine()], progress=False, checkpoint=False, max_epochs=1, name="r")
    folder = trainer.fit(Module(), loader()).folder
    for name in ("metrics.jsonl", "tb", "curves.png"):
        assert (folder / name).exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["loggers"] == ["Mine"]


@pytest.mark.usefixtures("pictures")
def test_what_is_switched_off_is_recorded():
    trainer = Trainer(loggers="-curves", progress=False, checkpoint=False, max_epochs=1, name="r")
    folder = trainer.fit(Module(), loader()).folder
    assert not (folder / "curves.png").exists()
    assert (folder / "tb").exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["loggers"] == ["-curves"]


def test_a_default_logger_that_is_none_is_refused():
    with pytest.raises(PacelineError) as raised:
        Trainer(loggers=["-tensorbord"])
    assert "loggers: there is no default logger 'tensorbord'" in str(raised.value)
    assert "did you mean: -tensorboard?" in str(raised.value)
