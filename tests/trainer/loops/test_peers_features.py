"""What other trainers have under the same names: minimum lengths, thresholds, top-level monitors."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping

DATA = TensorDataset(torch.linspace(0, 1, 12).reshape(12, 1))


class Net(TrainModule):
    """Validates with scripted values, one for each validation."""

    def __init__(self, values=(1.0,), configure=None):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.values, self.configure = nn.Linear(1, 1), list(values), configure

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        self.log("score", self.values[min(self.trainer.epoch, len(self.values) - 1)])

    def predict_step(self, batch):
        return self.net(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return optimizer if self.configure is None else self.configure(optimizer)


def loader():
    return DataLoader(DATA, 4)  # 3 steps an epoch


def fit(module, *callbacks, resume=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None}
    trainer = Trainer(callbacks=callbacks, **(usual | settings))
    trainer.fit(module, loader(), loader(), resume=resume)
    return trainer


# -- min_epochs, min_steps -------------------------------------------------------------------------


class Stops(Callback):
    def on_step_end(self, trainer, outputs):
        if trainer.global_step == 2:
            trainer.stop("enough")


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 2),
        ({"min_steps": 1}, 2),
        ({"min_steps": 5}, 5),
        ({"min_epochs": 2}, 6),
        ({"min_epochs": 2, "min_steps": 8}, 8),
        ({"min_steps": 50}, 12),
    ],
)
def test_a_stop_that_is_asked_for_waits_for_the_minimum(settings, steps):
    trainer = fit(Net(), Stops(), max_epochs=4, **settings)
    assert trainer.global_step == steps
    assert trainer.stop_reason == ("enough" if steps < 12 else "max_epochs=4 reached")


def test_early_stopping_waits_for_the_minimum_and_a_resume_does_too(tmp_path):
    stopping = {"monitor": "val/score", "mode": "max", "patience": 1}
    values = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert fit(Net(values), EarlyStopping(**stopping), max_epochs=6).epoch == 2
    settings = {"max_epochs": 6, "min_epochs": 4}
    assert fit(Net(values), EarlyStopping(**stopping), **settings).epoch == 4
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(values), EarlyStopping(**stopping), Checkpoint(), max_epochs=3, min_epochs=3, **kept)
    resumed = fit(Net(values), EarlyStopping(**stopping), Checkpoint(), resume="latest", **settings, **kept)
    assert resumed.epoch == 4


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(PacelineError, match="min_epochs: got 5, and max_epochs is 3"):
        Trainer(min_epochs=5, max_epochs=3)


# -- the sanity pass -------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "expected"), [(0, 0), (2, 2), (-1, 3)])
def test_the_sanity_pass_can_read_all_batches(batches, expected):
    class Counts(Net):
        seen = 0

        def validation_step(self, batch):
            self.seen += self.global_step == 0
            super().validation_step(batch)

    module = Counts()
    fit(module, sanity_val_batches=batches, max_epochs=1)
    assert module.seen == expected


# -- thresholds of EarlyStopping -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "values", "epochs", "why"),
    [
        ({"mode": "max", "stopping_threshold": 0.9}, [0.1, 0.9, 0.95], 2, "is 0.9, as good as 0.9"),
        ({"mode": "min", "stopping_threshold": 0.2}, [0.5, 0.1], 2, "is 0.1, as good as 0.2"),
        ({"mode": "min", "divergence_threshold": 5.0}, [1.0, 5.0, 5.1], 3, "is 5.1, worse than 5"),
        ({"mode": "max", "divergence_threshold": 0.5}, [0.9, 0.4], 2, "is 0.4, worse than 0.5"),
        ({"mode": "max", "divergence_threshold": 0.5}, [0.9, 0.95, 0.97, 0.99], 4, "max_epochs"),
    ],
)
def test_thresholds_stop_at_once(options, values, epochs, why):
    trainer = fit(Net(values), EarlyStopping("val/score", **options), max_epochs=4)
    assert trainer.epoch == epochs
    assert why in trainer.stop_reason


# -- configure_optimizers --------------------------------------------------------------------------


def test_a_monitor_beside_the_scheduler_is_the_schedulers():
    def configure(optimizer):
        plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.0)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_score", "strict": True}

    trainer = fit(Net([1.0, 1.0, 0.5], configure), max_epochs=3)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1)


def test_its_own_monitor_comes_first():
    def configure(optimizer):
        plateau = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val/score"}
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val/other"}

    assert fit(Net([1.0], configure), max_epochs=1).lr_schedulers[0].best == 1.0


def test_a_missing_value_is_an_error_unless_it_is_not_strict():
    def configure(optimizer, **more):
        plateau = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val/nothing"}
        return {"optimizer": optimizer, "lr_scheduler": plateau | more}

    with pytest.raises(PacelineError, match="which validation does not log"):
        fit(Net(configure=configure), max_epochs=1)
    trainer = fit(Net(configure=lambda o: configure(o, strict=False)), max_epochs=2)
    assert trainer.lr_schedulers[0].num_bad_epochs == 0


def test_a_name_is_what_the_learning_rate_is_logged_as():
    def configure(optimizer):
        return optimizer, {"scheduler": StepLR(optimizer, 1, 0.5), "name": "decay"}

    trainer = fit(Net(configure=configure), max_epochs=1)
    assert "lr/decay" in trainer.metrics
    assert "lr/SGD" not in trainer.metrics


# -- predict(keep=False) ---------------------------------------------------------------------------


def test_predictions_need_not_be_kept():
    class Sums(Callback):
        outputs = ()

        def on_predict_step_end(self, trainer, output, batch, batch_idx):
            self.outputs = (*self.outputs, output.shape[0])

    sums = Sums()
    trainer = Trainer(accelerator="cpu", progress=False, run_dir=None, callbacks=sums)
    assert trainer.predict(Net(), loader(), keep=False) == []
    assert sums.outputs == (4, 4, 4)
    with pytest.raises(PacelineError, match="keep: got 'no'"):
        trainer.predict(Net(), loader(), keep="no")


# -- toggle_optimizer ------------------------------------------------------------------------------


def test_a_toggled_optimizer_is_the_only_one_that_gets_gradients():
    class Two(TrainModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.one, self.other, self.fixed = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
            self.fixed.requires_grad_(False)
            self.seen = []

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.one, self.other)]

        def training_step(self, batch):
            for optimizer in self.optimizers():
                self.toggle_optimizer(optimizer)
                self.seen.append([p.requires_grad for p in self.parameters()])
                self.manual_backward(self.other(self.one(batch[0])).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)
            self.seen.append([p.requires_grad for p in self.parameters()])

    module = Two()
    trainer = Trainer(accelerator="cpu", progress=False, loggers=False, run_dir=None, max_steps=1)
    trainer.fit(module, loader())
    first, second, after = module.seen
    assert first == [True, True, False, False, False, False]
    assert second == [False, False, True, True, False, False]
    assert after == [True, True, True, True, False, False]


# -- sample indices --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_hooks_of_an_evaluation_know_the_samples_of_a_batch(workers):
    class Compares(Callback):
        def __init__(self):
            self.seen, self.outside = [], []

        def on_predict_step_end(self, trainer, output, batch, batch_idx):
            expected = torch.stack([DATA[index][0] for index in trainer.loop.sample_indices])
            assert torch.equal(batch[0], expected)
            self.seen += trainer.loop.sample_indices

        on_validation_step_end = on_predict_step_end

        def on_step_end(self, trainer, outputs):
            self.outside += trainer.loop.sample_indices

        def on_predict_end(self, trainer):
            self.outside += trainer.loop.sample_indices

    compares = Compares()
    trainer = Trainer(
        accelerator="cpu", progress=False, loggers=False, run_dir=None, callbacks=compares, max_epochs=1
    )
    shuffled = DataLoader(DATA, 5, shuffle=True, num_workers=workers)
    trainer.predict(Net(), shuffled)
    assert sorted(compares.seen) == list(range(12))
    assert compares.seen != list(range(12))
    compares.seen.clear()
    trainer.fit(Net(), loader(), shuffled)
    assert sorted(compares.seen[-12:]) == list(range(12))
    assert compares.outside == []


def test_data_without_indices_has_none():
    class Notes(Callback):
        seen = ()

        def on_predict_step_end(self, trainer, output, batch, batch_idx):
            self.seen = (*self.seen, trainer.loop.sample_indices)

    notes = Notes()
    trainer = Trainer(accelerator="cpu", progress=False, run_dir=None, callbacks=notes)
    trainer.predict(Net(), [(torch.zeros(2, 1),)] * 2)
    assert notes.seen == ([], [])
