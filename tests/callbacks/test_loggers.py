"""What a run writes down: metrics.jsonl, TensorBoard's event files, curves.png."""

from __future__ import annotations

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, Curves, JSONLogger, Logger, TensorBoard
from paceline.callbacks.jsonl import thinned


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
    trainer = Trainer(loggers=loggers, callbacks=callbacks, name="r", **settings)
    return trainer.fit(module or Module(), loader(), loader(), resume=resume)


def lines(run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


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


def test_rows_are_on_disk_while_the_run_goes_on():
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
    trainer = Trainer(loggers=[JSONLogger()], progress=False, name="r")
    trainer.validate(Module(), loader())
    assert (run.folder / "metrics.jsonl").read_text() == before


# -- TensorBoard ---------------------------------------------------------------------------------


def test_tensorboard_reads_what_was_logged():
    run = fit([TensorBoard(), JSONLogger()])
    found = scalars(run)
    assert set(found) == set(run.metrics)
    for name, series in run.metrics.items():
        assert [step for step, _ in found[name]] == series.steps, name
        assert [value for _, value in found[name]] == pytest.approx(series.values, rel=1e-6), name


def test_tensorboard_takes_values_that_are_not_finite():
    found = scalars(fit([TensorBoard()], Module(odd=True), max_epochs=1))
    assert math.isnan(found["train/nothing"][0][1])
    assert found["train/endless"][0][1] == math.inf


def test_tensorboard_forgets_what_lies_behind_the_loaded_step():
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
    trainer = Trainer(
        loggers=[TensorBoard(), JSONLogger()], progress=False, checkpoint=False, max_steps=2, log_every=1
    )
    runs = [trainer.fit(Module(), loader()) for _ in range(2)]
    assert runs[0].folder != runs[1].folder
    for run in runs:
        assert [step for step, _ in scalars(run)["train/loss"]] == [1, 2]
        assert run.metrics["train/loss"].steps == [1, 2]


# -- curves.png ----------------------------------------------------------------------------------


def is_picture(path):
    picture = imread(path)
    return path.read_bytes().startswith(b"\x89PNG") and picture.ndim == 3 and picture.std() > 0


def test_curves_are_drawn_at_the_end():
    run = fit([JSONLogger()], callbacks=Curves())
    assert is_picture(run.folder / "curves.png")


def test_curves_are_drawn_after_an_error_too(tmp_path):
    with pytest.raises(RuntimeError, match="broken"):
        fit([JSONLogger()], Module(breaks_at=4), callbacks=Curves())
    assert is_picture(tmp_path / "runs" / "r" / "1" / "curves.png")


def test_curves_of_values_that_are_not_finite():
    run = fit([JSONLogger()], Module(odd=True), callbacks=Curves(dpi=40))
    assert is_picture(run.folder / "curves.png")


def test_no_rows_no_picture():
    run = fit(False, callbacks=Curves())
    assert not (run.folder / "curves.png").exists()


# -- which ---------------------------------------------------------------------------------------


def test_all_of_them_are_there_by_default():
    run = fit(True, max_epochs=1)
    written = {path.name for path in run.folder.iterdir()}
    assert written >= {"config.yaml", "env.json", "log.txt", "metrics.jsonl", "tb", "curves.png"}
    assert run.metrics["val/accuracy"].values == [0.25]


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
        Trainer(loggers=["tensorboard"])


# -- long runs -------------------------------------------------------------------------------------

write = Path.write_text
LONG = {"max_epochs": 100, "validate_every": "5ep"}  # 300 rows of steps


def test_metrics_of_a_long_run_stay_below_a_size_evenly_spread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    most = 12_000
    whole = lines(fit([JSONLogger()], **LONG))
    run = fit([JSONLogger(most_bytes=most)], **LONG)
    rows = lines(run)
    assert len(json.dumps(whole)) > 3 * most
    assert most / 4 < (run.folder / "metrics.jsonl").stat().st_size <= most
    assert not list(run.folder.glob("*.part"))
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)
    for name in ("train/loss", "val/accuracy", "train/loss_epoch"):
        all_of_them = [row["step"] for row in whole if name in row]
        kept = [row["step"] for row in rows if name in row]
        assert set(kept) <= set(all_of_them)
        assert kept[0] == all_of_them[0]
        assert kept[-1] == all_of_them[-1]
        gaps = [b - a for a, b in pairwise(kept)]
        assert max(gaps) <= 3 * (kept[-1] - kept[0]) / len(gaps)
    by_step = {(row["step"], tuple(row)): row for row in whole}
    for row in rows:
        expected = by_step[row["step"], tuple(row)]
        assert {k: v for k, v in row.items() if k != "time" and "perf" not in k} == {
            k: v for k, v in expected.items() if k != "time" and "perf" not in k
        }


def test_a_resumed_run_counts_the_rows_it_finds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    most = 12_000
    fit([JSONLogger(most_bytes=most)], max_epochs=12, checkpoint=True)
    run = fit([JSONLogger(most_bytes=most)], max_epochs=100, checkpoint=True, resume="latest")
    assert (run.folder / "metrics.jsonl").stat().st_size <= most
    rows = lines(run)
    assert (rows[0]["step"], rows[-1]["step"]) == (1, 300)


def test_rows_that_all_have_other_names_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger, rewritten = JSONLogger(most_bytes=1000), []
    thin = JSONLogger._thin
    monkeypatch.setattr(JSONLogger, "_thin", lambda self, path: rewritten.append(path) or thin(self, path))

    class Names(Callback):
        def on_train_epoch_start(self, trainer):
            for number in range(400):
                logger.write({"step": number, f"value {number}": 1.0})

    run = fit([logger], callbacks=[Names()], max_epochs=1)
    assert [row["step"] for row in lines(run)][:400] == list(range(400))
    assert 1 < len(rewritten) < 10  # not at every row


def test_rare_rows_stay_and_rows_of_one_step_are_halved():
    many = [{"step": step, "a": 1.0} for step in range(1000)]
    rare = [{"step": step, "b": 1.0} for step in range(0, 1000, 10)]
    kept = thinned([*many, *rare])
    assert [row for row in kept if "b" in row] == rare
    assert len(kept) - len(rare) == pytest.approx(500, abs=2)
    assert thinned([{"step": 7, "a": 1.0}] * 1000) == [{"step": 7, "a": 1.0}] * 2
    backwards = [{"step": step, "a": 1.0} for step in (*range(500, 1000), *range(500))]
    assert thinned(backwards)[0] == backwards[0]
    assert thinned(backwards)[-1] == backwards[-1]
    assert len(thinned(backwards)) < 600


def test_a_full_disk_while_a_file_is_thinned_costs_no_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tries = []

    def full(self, *_):
        tries.append(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        Path, "write_text", lambda self, *a, **k: (full if self.suffix == ".part" else write)(self, *a, **k)
    )
    run = fit([JSONLogger(most_bytes=4000)], max_epochs=40)
    assert [
        row["step"] for row in lines(run) if "train/loss_epoch" not in row and "train/loss" in row
    ] == list(range(1, 121))
    assert 1 <= len(tries) < 8  # not at every row
    assert not list(run.folder.glob("*.part"))


def test_event_files_of_a_long_run_grow_more_and_more_slowly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensorboard = TensorBoard(most_bytes=3000)
    run = fit([tensorboard], **LONG)
    found = scalars(run)
    (file,) = (run.folder / "tb").iterdir()
    assert file.stat().st_size < 6 * 3000
    steps = [step for step, _ in found["train/loss"]]
    gaps = [b - a for a, b in pairwise(steps)]
    assert gaps[0] == 1
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 4
    assert len(found["val/accuracy"]) > 5  # these are counted by themselves
    again = fit([tensorboard], max_epochs=2)  # and another run begins anew
    assert [step for step, _ in scalars(again)["train/loss"]][:4] == [1, 2, 3, 4]
