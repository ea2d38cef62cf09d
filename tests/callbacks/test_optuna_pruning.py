"""OptunaPruning: what a trial gets, where a run ends, and studies that continue after a kill."""

import json
import sys
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, OptunaPruning

optuna = pytest.importorskip("optuna")
JOB = Path(__file__).with_name("optuna_job.py")


class Scripted(TrainModule):
    """Validates with the next value of a script, whatever it learned."""

    def __init__(self, values):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.values = values

    def training_step(self, batch):
        return self.weight * batch[0].mean()

    def validation_step(self, batch):
        self.log("loss", self.values[self.epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Trial:
    """One of Optuna that is asked nothing of a storage: it prunes above a limit."""

    def __init__(self, limit=1e9):
        self.reported, self.limit = [], limit

    def report(self, value, step):
        self.reported.append((step, value))

    def should_prune(self):
        return self.reported[-1][1] > self.limit


def fit(trial, values, monitor="val/loss", resume=None, callbacks=(), **settings):
    settings = {"max_epochs": len(values), "checkpoint": False, "name": "n"} | settings
    callbacks = [OptunaPruning(trial, monitor), *callbacks]
    trainer = Trainer(callbacks=callbacks, progress=False, loggers=False, **settings)
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)
    try:
        trainer.fit(Scripted(values), loader, loader, resume=resume)
    except optuna.TrialPruned as error:
        return trainer, error
    return trainer, None


def test_a_trial_gets_the_value_of_each_validation():
    trial = Trial()
    _, error = fit(trial, [3.0, 2.0, 1.0])  # the sanity pass before them is none
    assert error is None
    assert trial.reported == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_it_reports_training_values_after_epochs():
    trial = Trial()
    fit(trial, [1.0, 1.0], "train/loss_epoch", validate_every=None)
    assert [step for step, _ in trial.reported] == [1, 2]


def test_a_pruned_run_ends_with_its_checkpoint():
    trial = Trial(limit=5)
    trainer, error = fit(trial, [3.0, 7.0, 1.0], checkpoint=True)
    assert str(error) == "val/loss at report 2"
    assert trial.reported == [(1, 3.0), (2, 7.0)]
    assert trainer.stop_reason == "pruned by the study: val/loss is 7 at report 2"
    assert trainer.run.latest.name == f"step-{trainer.global_step:08d}" == "step-00000004"


def test_a_resumed_run_continues_to_count():
    fit(Trial(), [3.0, 2.0, 1.0], max_epochs=2, checkpoint=True)
    trial = Trial()
    fit(trial, [3.0, 2.0, 1.0], checkpoint=True, resume="auto")
    assert trial.reported == [(3, 1.0)]


def test_a_run_that_was_pruned_ends_again():
    fit(Trial(limit=5), [3.0, 7.0, 1.0], checkpoint=True)
    trial = Trial()
    trainer, error = fit(trial, [3.0, 7.0, 1.0], checkpoint=True, resume="auto")
    assert (trial.reported, trainer.global_step) == ([], 4)
    assert str(error) == "val/loss at report 2"


def test_a_complete_run_that_is_resumed_has_its_value():
    """A study was killed between the end of the run and the trial's."""
    fit(Trial(), [3.0, 2.0], checkpoint=True)
    trainer, _ = fit(Trial(), [3.0, 2.0], checkpoint=True, resume="auto")
    assert trainer.metrics["val/loss"] == 2.0


def test_an_error_after_the_decision_is_what_the_run_ends_with():
    class Fails(Callback):
        def on_fit_end(self, trainer):
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fit(Trial(limit=1), [3.0], callbacks=[Fails()])


def test_min_epochs_come_before_pruning():
    trial = Trial(limit=1)
    trainer, error = fit(trial, [3.0, 2.0, 1.0], min_epochs=2)
    assert (trainer.epoch, trial.reported, str(error)) == (2, [(1, 3.0)], "val/loss at report 1")


def test_what_is_no_trial_is_refused():
    with pytest.raises(PacelineError, match="takes the trial that Optuna gives the objective"):
        OptunaPruning(optuna.create_study())


def test_rank_0_needs_the_trial():
    with pytest.raises(PacelineError, match="no trial on rank 0"):
        fit(None, [1.0])


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(PacelineError, match="OptunaPruning needs optuna") as error:
        OptunaPruning(Trial())
    assert "pip install 'paceline[optuna]'" in str(error.value)


def study(folder, storage, ranks, *kill):
    """What became of the trials, and how runs ended on each rank."""
    folder.mkdir(exist_ok=True)
    done = run_ranks(JOB, ranks, storage, *kill, folder=folder, check=not kill, after_a_failure=5)
    if kill:
        assert -9 in done.codes, done.output
        return [], []
    ends = [[json.loads(line) for line in (folder / f"ends-{r}").open()] for r in range(ranks)]
    return json.loads((folder / "trials").read_text()), ends


@pytest.mark.ranks
@pytest.mark.parametrize(("storage", "ranks"), [("journal", 2), ("sqlite", 1)])
def test_a_killed_study_continues_the_run_of_its_trial(tmp_path, storage, ranks):
    whole, ends = study(tmp_path / "whole", storage, ranks)
    assert [trial["state"] for trial in whole] == ["COMPLETE", "PRUNED", "COMPLETE"]
    for rank in ends:  # of every rank
        assert [(end["step"], end["pruned"]) for end in rank] == [(18, False), (6, True), (18, False)]

    study(tmp_path / "killed", storage, ranks, 2, 11)
    again, continued = study(tmp_path / "killed", storage, ranks)
    assert [trial["state"] for trial in again] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert again[-1] == whole[-1]  # its name, its value and each value it has reported
    for rank in range(ranks):
        end = continued[rank][-1]
        assert end.pop("resumed")
        assert end == {k: v for k, v in ends[rank][-1].items() if k != "resumed"}
