"""Checkpoint: when one is written, which are kept, and how a run resumes from them."""

import json
import shutil
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, JSONLogger
from paceline.trainer.state import Clock
from paceline.trainer.utils.paths import shown_path


class Scripted(TrainModule):
    """Learns a line; validates with the next value of a script."""

    def __init__(self, values=(1.0,)):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(2, 1)
        self.values = list(values)

    def training_step(self, batch):
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("score", self.values[min(self.epoch, len(self.values) - 1)])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader(samples=12, batch_size=4):
    x = torch.linspace(-1, 1, 2 * samples).reshape(samples, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size, shuffle=True)


@pytest.fixture
def fit(tmp_path):
    """Three steps an epoch into ``runs/r``; gives the trainer and the run."""

    def run(*callbacks, values=(1.0,), resume=None, **settings):
        settings = {"progress": False, "loggers": False, "name": "r"} | settings
        settings["run_dir"] = tmp_path / "runs"
        trainer = Trainer(callbacks=callbacks, **settings)
        done = trainer.fit(Scripted(values), loader(), loader(), resume=resume)
        return trainer, done

    return run


def steps(run):
    return [int(path.name.removeprefix("step-")) for path in run.checkpoints]


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# -- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "limits", "expected"),
    [
        ("1ep", {"max_epochs": 3}, [3, 6, 9]),
        ("2ep", {"max_epochs": 4}, [6, 12]),
        (2, {"max_steps": 6}, [2, 4, 6]),
        ("4st", {"max_epochs": 3}, [4, 8, 9]),  # and always the state at the end
        ("0.5ep", {"max_epochs": 2}, [2, 3, 5, 6]),
        ("1h", {"max_epochs": 2}, [6]),
    ],
)
def test_every(fit, every, limits, expected):
    _, run = fit(Checkpoint(every=every, keep=None), **limits)
    assert steps(run) == expected
    assert run.latest == run.checkpoints[-1]


def test_every_so_many_seconds(fit, monkeypatch):
    # A step is an eighth of a second on this clock.
    monkeypatch.setattr(Clock, "seconds", lambda self: self._state.global_step / 8)
    _, run = fit(Checkpoint(every="0.5s", keep=None), max_steps=10)
    assert steps(run) == [4, 8, 10]


def test_the_default_is_the_end_of_each_epoch(fit):
    _, run = fit(max_epochs=2)
    assert steps(run) == [3, 6]
    _, run = fit(max_epochs=2, checkpoint=False)
    assert steps(run) == []


def test_a_stop_that_was_asked_for_saves_the_end(fit):
    class Stops(Callback):
        def on_step_end(self, trainer):
            if trainer.global_step == 2:
                trainer.stop("enough")

    _, run = fit(Stops(), max_epochs=5)
    assert steps(run) == [2]


def test_an_error_saves_nothing_that_was_not_due(fit, tmp_path):
    class Breaks(Callback):
        def on_step_end(self, trainer):
            if trainer.global_step == 5:
                raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fit(Breaks(), max_epochs=5)
    assert steps(Run(tmp_path / "runs" / "r" / "1")) == [3]


# -- which ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(fit, keep):
    _, run = fit(Checkpoint(every=1, keep=keep), max_steps=6)
    assert steps(run) == list(range(7 - keep, 7))
    leftovers = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert leftovers == {*(path.name for path in run.checkpoints), "latest"}


def test_the_best_is_kept_beside_the_newest(fit):
    best = Checkpoint(monitor="score", mode="max", keep=2)
    trainer, run = fit(best, values=[1.0, 5.0, 2.0, 3.0, 4.0], max_epochs=5)
    assert steps(run) == [6, 12, 15]
    assert run.best.name == "step-00000006"
    assert run.latest.name == "step-00000015"
    assert (trainer.run.best, trainer.run.latest, best.best_score) == (run.best, run.latest, 5.0)


def test_a_best_that_is_beaten_is_let_go(fit):
    _, run = fit(Checkpoint(monitor="score", mode="min", keep=1), values=[3.0, 4.0, 2.0, 5.0], max_epochs=4)
    assert steps(run) == [9, 12]
    assert run.best.name == "step-00000009"


def test_a_better_value_is_saved_though_nothing_is_due(fit):
    saves = Checkpoint(every="1h", monitor="score", mode="max", keep=None)
    _, run = fit(saves, values=[1.0, 2.0, 0.0, 3.0, 1.0], max_epochs=5)
    assert steps(run) == [3, 6, 12, 15]
    assert run.best.name == "step-00000012"


def test_a_nan_is_never_the_best(fit):
    best = Checkpoint(monitor="score", mode="min")
    _, run = fit(best, values=[float("nan"), 2.0, float("nan")], max_epochs=3)
    assert (best.best_score, run.best.name) == (2.0, "step-00000006")


def test_a_training_value_can_be_monitored(fit):
    best = Checkpoint(monitor="train/loss_epoch")
    _, run = fit(best, max_epochs=3)
    manifests = [json.loads((path / "manifest.json").read_text()) for path in run.checkpoints]
    values = [manifest["metrics"]["train/loss_epoch"] for manifest in manifests]
    assert best.best_score == min(values)
    assert run.best == run.checkpoints[values.index(min(values))]


def test_pointers_name_checkpoints(fit):
    _, run = fit(Checkpoint(monitor="score", mode="max"), values=[2.0, 1.0], max_epochs=2)
    folder = run.folder / "checkpoints"
    assert (folder / "latest").read_text().strip() == "step-00000006"
    assert (folder / "best").read_text().strip() == "step-00000003"


def test_the_first_of_two_monitors_has_the_pointer_best(fit):
    first = Checkpoint(monitor="score", mode="max")
    second = Checkpoint(monitor="score", mode="min", name="lowest")
    _, run = fit(first, second, values=[2.0, 1.0], max_epochs=2)
    folder = run.folder / "checkpoints"
    assert (folder / "best").read_text().strip() == run.best.name == "step-00000003"
    assert (folder / "best-lowest").read_text().strip() == "step-00000006"


def test_no_best_where_nothing_is_monitored(fit):
    trainer, run = fit(max_epochs=1)
    assert run.best is None
    assert trainer.run.best is None


def test_two_of_them_do_not_delete_each_others(fit):
    often = Checkpoint(every=1, keep=1, name="often")
    rarely = Checkpoint(every="1ep", keep=None, name="rarely")
    _, run = fit(often, rarely, max_epochs=3)
    assert steps(run) == [3, 6, 9]


@pytest.mark.parametrize(
    "arguments", [{"keep": 0}, {"keep": True}, {"every": "often"}, {"monitor": "score"}]
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(PacelineError, match="Checkpoint"):
        Checkpoint(**arguments)


def test_save_checkpoint_by_hand(fit, tmp_path):
    class Saves(Callback):
        def on_step_boundary(self, trainer):
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "mine")
                self.weights = weights(trainer.module)

    saves = Saves()
    trainer, _ = fit(saves, max_epochs=1, checkpoint=False)
    assert same(weights(Scripted.load_from_checkpoint(tmp_path / "mine")), saves.weights)
    with pytest.raises(PacelineError, match="there is none"):
        trainer.save_checkpoint(tmp_path / "late")


def test_saving_does_not_make_the_clock_run_faster(fit):
    clocks = []

    class Reads(Callback):
        def on_step_start(self, trainer):
            time.sleep(0.005)

        def on_step_boundary(self, trainer):
            clocks.append(trainer.counters.seconds())

    begun = time.perf_counter()
    trainer, _ = fit(Reads(), Checkpoint(every=1), max_steps=9)
    assert trainer._run.state.elapsed <= time.perf_counter() - begun
    assert clocks == sorted(clocks)


# -- resuming -----------------------------------------------------------------------------------


def test_latest_continues_in_its_own_folder_and_equals_a_run_that_never_stopped(fit):
    whole, _ = fit(max_epochs=4, name="whole")
    _, first = fit(max_epochs=2)
    trainer, second = fit(max_epochs=4, resume="latest")
    assert second.folder == first.folder
    assert trainer.global_step == 12
    assert same(weights(whole.module), weights(trainer.module))
    assert steps(second) == [6, 9, 12]  # what was kept before counts on


def test_latest_must_exist_and_auto_need_not(fit, capsys):
    with pytest.raises(PacelineError, match="no checkpoint to resume from") as raised:
        fit(resume="latest")
    assert 'resume="auto"' in str(raised.value)
    _, first = fit(max_epochs=1, resume="auto")
    assert "starts fresh" in capsys.readouterr().out
    trainer, second = fit(max_epochs=2, resume="auto")
    assert f"resumes from {shown_path(first.folder)}/checkpoints/step-00000003" in capsys.readouterr().out
    assert second.folder == first.folder
    assert trainer.global_step == 6


def test_latest_is_the_newest_runs(fit):
    fit(max_epochs=3)
    _, newer = fit(max_epochs=1)
    trainer, run = fit(max_epochs=2, resume="latest")
    assert run.folder == newer.folder
    assert trainer.global_step == 6


def test_best_starts_the_next_run_with_its_parent_noted(fit):
    best = Checkpoint(monitor="score", mode="max")
    _, first = fit(best, values=[1.0, 5.0, 2.0], max_epochs=3)
    again = Checkpoint(monitor="score", mode="max")
    trainer, second = fit(again, values=[1.0, 5.0, 2.0, 7.0], max_epochs=4, resume="best")
    assert [first.folder.name, second.folder.name] == ["1", "2"]
    assert second.config["parent"] == str(first.folder / "checkpoints" / "step-00000006")
    assert "parent" not in first.config
    assert trainer.global_step == 12
    assert steps(first) == [3, 6, 9]  # the parent is left as it was
    assert second.best.name == "step-00000012"


def test_best_must_exist(fit):
    fit(max_epochs=1)
    with pytest.raises(PacelineError, match="no checkpoint to resume from"):
        fit(max_epochs=2, resume="best")


def test_a_path_starts_the_next_run_and_latest_continues(fit):
    _, first = fit(max_epochs=3)
    trainer, second = fit(max_epochs=2, resume=first.checkpoints[0])
    assert second.folder.name == "2"
    assert trainer.global_step == 6
    trainer, third = fit(max_epochs=4, resume=str(first.checkpoints[-1]))
    assert third.folder.name == "3"
    assert trainer.global_step == 12
    trainer, fourth = fit(max_epochs=5, resume="latest")
    assert fourth.folder == third.folder
    assert trainer.global_step == 15


def test_a_run_from_an_older_path_keeps_no_count_of_its_parents_checkpoints(fit):
    _, first = fit(max_epochs=3)
    _, second = fit(Checkpoint(every=1, keep=2), max_steps=5, resume=first.checkpoints[0])
    assert steps(second) == [4, 5]
    assert steps(first) == [3, 6, 9]


def test_a_path_that_is_no_checkpoint_is_reported(fit, tmp_path):
    with pytest.raises(PacelineError, match="no checkpoint at this path"):
        fit(resume=tmp_path)


@pytest.mark.parametrize("limit", [{"max_epochs": 2}, {"max_steps": 6}, {"max_epochs": 1}])
def test_a_run_already_at_its_limit_does_nothing_and_says_so(fit, limit, capsys):
    trainer, first = fit(JSONLogger(), max_epochs=2)
    before = (weights(trainer.module), (first.folder / "metrics.jsonl").read_text())

    class Never(Callback):
        def on_step_start(self):
            raise AssertionError("a step was made")

        def on_fit_start(self):
            raise AssertionError("training was begun")

    capsys.readouterr()
    again, second = fit(Never(), JSONLogger(), resume="latest", **limit)
    assert "nothing to do: the run is at its limit already" in capsys.readouterr().out
    assert second.folder == first.folder
    assert same(before[0], weights(again.module))
    assert (second.folder / "metrics.jsonl").read_text() == before[1]
    assert steps(second) == [3, 6]


def test_rows_after_the_loaded_step_are_cut(fit):
    _, first = fit(Checkpoint(every=2), JSONLogger(), max_epochs=2, log_every=1)
    assert [row["step"] for row in first.rows if "train/loss" in row][-1] == 6
    shutil.rmtree(first.checkpoints[-1])  # as if it had been killed before this one was written
    values = first.metrics["train/loss"].values
    _, second = fit(Checkpoint(every=2), JSONLogger(), max_epochs=2, log_every=1, resume="latest")
    assert second.folder == first.folder
    assert second.metrics["train/loss"].steps == sorted(set(second.metrics["train/loss"].steps))
    assert second.metrics["train/loss"].values == values


def test_a_half_written_last_row_is_dropped_at_a_resume(fit):
    _, first = fit(JSONLogger(), max_epochs=1, log_every=1)
    with (first.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/lo')
    _, second = fit(JSONLogger(), max_epochs=2, log_every=1, resume="latest")
    assert second.metrics["train/loss"].steps == [1, 2, 3, 4, 5, 6]


def test_a_damaged_newest_is_set_aside_and_the_one_before_taken(fit, capsys):
    _, first = fit(max_epochs=3)
    newest = first.checkpoints[-1]
    (newest / "state.json").write_text("{}")
    trainer, second = fit(max_epochs=3, resume="latest")
    assert "skipped a damaged checkpoint" in capsys.readouterr().out
    assert second.folder == first.folder
    assert trainer.global_step == 9
    assert newest.with_name(newest.name + ".damaged").is_dir()
    assert steps(second)[-1] == 9


def test_the_best_score_continues_over_a_resume(fit):
    values = [4.0, 2.0, 3.0, 1.0]

    def best():
        return Checkpoint(monitor="score", mode="min", keep=1)

    fit(best(), values=values, max_epochs=2)
    middle = best()
    _, run = fit(middle, values=values, max_epochs=3, resume="latest")
    assert (middle.best_score, run.best.name) == (2.0, "step-00000006")
    _, run = fit(best(), values=values, max_epochs=4, resume="latest")
    assert run.best.name == "step-00000012"


def test_a_second_fit_of_one_trainer_has_checkpoints_of_its_own(fit):
    best = Checkpoint(monitor="score", mode="max")
    trainer, first = fit(best, values=[5.0, 1.0], max_epochs=2)
    second = trainer.fit(Scripted([1.0, 2.0]), loader(), loader())
    assert second.folder != first.folder
    assert steps(first) == steps(second) == [3, 6]
    assert (first.best.name, second.best.name) == ("step-00000003", "step-00000006")
    assert best.best_score == 2.0


# -- several best ones -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "keep_best", "expected"),
    [
        (1, 1, [6, 15]),
        (1, 2, [6, 12, 15]),
        (1, 3, [3, 6, 12, 15]),
        (2, 2, [6, 12, 15]),
        (1, 9, [3, 6, 9, 12, 15]),
        (None, 2, [3, 6, 9, 12, 15]),
    ],
)
def test_so_many_of_the_best_are_kept_beside_the_newest(fit, keep, keep_best, expected):
    values = [3.0, 1.0, 5.0, 2.0, 4.0]  # after steps 3, 6, 9, 12 and 15
    kept = Checkpoint(monitor="val/score", mode="min", keep=keep, keep_best=keep_best)
    _, run = fit(kept, values=values, max_epochs=5)
    assert steps(run) == expected
    assert run.best.name == "step-00000006"
    assert kept.best_score == 1.0


def test_the_best_ones_are_the_same_over_a_resume(fit):
    values = [3.0, 1.0, 5.0, 2.0, 4.0]

    def checkpoint():
        return Checkpoint(monitor="val/score", mode="min", keep=1, keep_best=2)

    fit(checkpoint(), values=values, max_epochs=3)
    _, run = fit(checkpoint(), values=values, max_epochs=5, resume="latest")
    assert steps(run) == [6, 12, 15]


def test_a_value_that_is_no_number_is_never_among_the_best(fit):
    kept = Checkpoint(monitor="val/score", mode="min", keep=1, keep_best=2)
    _, run = fit(kept, values=[float("nan"), 2.0, 1.0], max_epochs=3)
    assert steps(run) == [6, 9]


def test_the_state_of_an_earlier_version_is_read():
    saved = {"best_score": 0.5, "best": "step-00000003", "saved": ["step-00000003"]}
    kept = Checkpoint(monitor="val/loss", keep_best=2)
    kept.load_state_dict(saved | {"watched": ["val/loss", "min"]})
    assert kept.best_score == 0.5


def test_keep_best_without_a_monitor_is_refused():
    with pytest.raises(PacelineError, match="keep_best is given without monitor"):
        Checkpoint(keep_best=2)


def test_each_callback_has_paths_of_its_own():
    first = Checkpoint(monitor="val/score", mode="max", keep=1)
    other = Checkpoint(monitor="val/score", mode="min", keep=1, name="least")
    assert first.best is first.latest is None
    trainer = Trainer(max_epochs=3, callbacks=[first, other], progress=False, loggers=False)
    run = trainer.fit(Scripted([2.0, 5.0, 1.0]), loader(), loader())
    assert first.best == run.best
    assert [first.best.name, other.best.name] == ["step-00000006", "step-00000009"]
    assert first.latest == other.latest == run.latest
