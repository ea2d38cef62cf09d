"""Corners of Lightning code, a function each; run as a program, it writes what they found under a package.

python corners.py PACKAGE OUT   (PACKAGE: lightning or what takes its place)
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import inspect
import io
import json
import logging
import os
import sys
import tempfile
import traceback
import types
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from helpers.arithmetic import made_with
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric, MeanSquaredError


def data(size=32, seed=0):
    inputs = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 4)


def room(package):
    """The names of a package, with a module and a trainer of it."""
    L, callbacks = import_module(package), import_module(package + ".pytorch.callbacks")

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layer = nn.Linear(3, 1)

        def forward(self, inputs):
            return self.layer(inputs)

        def training_step(self, batch, batch_idx):
            loss = nn.functional.mse_loss(self(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

        def predict_step(self, batch, batch_idx):
            return self(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    def trainer(**options):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        return L.Trainer(
            **{"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1} | quiet | options
        )

    return SimpleNamespace(L=L, package=package, callbacks=callbacks, Net=Net, trainer=trainer)


def loggers_of(package):
    return import_module(package + ".pytorch.loggers")


def norm(module):
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.stack([g.norm() for g in gradients]).norm()) if gradients else None


def plain(values):
    return {name: float(value) for name, value in sorted(values.items())}


# -- gradients and modes ---------------------------------------------------------------------------


def gradients_after_a_batch(at):
    found = []

    class Watch(at.L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            found.append(norm(pl_module))

    for more in ({}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}):
        at.trainer(max_epochs=1, callbacks=[Watch()], **more).fit(at.Net(), data(16))
    return found


def gradients_before_they_are_cleared(at):
    found = []

    class Watches(at.Net):
        def on_before_zero_grad(self, optimizer):
            found.append(norm(self))

    module = Watches()
    at.trainer(max_epochs=1).fit(module, data(16))
    return found, module.layer.weight.tolist()


def eval_mode_is_kept(at):
    class Drops(at.Net):
        def training_step(self, batch, batch_idx):
            found.append((self.training, self.layer.training))
            return super().training_step(batch, batch_idx)

    found, module = [], Drops()
    module.eval()
    at.trainer(max_epochs=1).fit(module, data(8), data(4))
    return found, module.training


# -- how far it is ---------------------------------------------------------------------------------


def last_batch_with_accumulation(at):
    class Looks(at.Net):
        def training_step(self, batch, batch_idx):
            found.append((batch_idx, self.trainer.is_last_batch, self.trainer.num_training_batches))
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            found.append(self.trainer.is_last_batch)

    found = []
    at.trainer(accumulate_grad_batches=3).fit(Looks(), data())
    return found


def quick_run(at):
    class Looks(at.Net):
        def training_step(self, batch, batch_idx):
            run = self.trainer
            found.append((run.is_last_batch, run.max_epochs, run.max_steps, run.limit_val_batches))
            return super().training_step(batch, batch_idx)

    found = []
    run = at.trainer(fast_dev_run=2, max_epochs=5)
    run.fit(Looks(), data(), data())
    return found, run.global_step


class Stream(IterableDataset):
    def __iter__(self):
        yield from data(12).dataset


def validation_counted_over_the_run(at):
    class Looks(at.Net):
        def on_validation_end(self):
            found.append((self.trainer.global_step, self.current_epoch))

    found = []
    for interval in (2, 4):
        options = {"val_check_interval": interval, "check_val_every_n_epoch": None, "max_steps": 9}
        run = at.trainer(max_epochs=-1, num_sanity_val_steps=0, **options)
        run.fit(Looks(), DataLoader(Stream(), 4), data(8))
    return found


def steps_of_data_without_length(at):
    class Looks(at.Net):
        def configure_optimizers(self):
            found.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    found = []
    for options in ({}, {"max_steps": 4}):
        at.trainer(**options).fit(Looks(), DataLoader(Stream(), 4))
    return found


def nothing_is_trained(at):
    found = []
    for options in ({"max_epochs": 0}, {"max_steps": 0}):
        module = at.Net()
        run = at.trainer(**options)
        run.fit(module, data(), data())
        found.append((run.global_step, run.current_epoch, module.layer.weight.tolist()))
    return found


def state(at):
    class Looks(at.L.Callback):
        def look(self, trainer):
            found.append(
                (str(trainer.state.fn.value), str(trainer.state.stage.value), trainer.state.finished)
            )

        def on_train_start(self, trainer, pl_module):
            self.look(trainer)

        def on_validation_start(self, trainer, pl_module):
            self.look(trainer)

    found = []
    run = at.trainer(callbacks=[Looks()])
    run.fit(at.Net(), data(8), data(4))
    return found, run.state.finished, str(run.state.fn.value), run.fit_loop.max_epochs


def an_error(at):
    class Watch(at.L.Callback):
        def on_exception(self, trainer, pl_module, exception):
            found.append(("exception", str(exception)))

        def teardown(self, trainer, pl_module, stage):
            found.append("teardown")

    class Fails(at.Net):
        def training_step(self, batch, batch_idx):
            raise ValueError("in a step")

    found = []
    run = at.trainer(callbacks=[Watch()])
    with contextlib.suppress(ValueError):
        run.fit(Fails(), data())
    return found, run.interrupted


# -- monitors --------------------------------------------------------------------------------------


def counting(at, values, phase="validation"):
    """A module that logs ``v``, a value of this list in each epoch."""

    class Counts(at.Net):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if phase == "validation":
                self.log("v", float(values[self.current_epoch]))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if phase == "training":
                self.log("v", float(values[(self.global_step - 1) % len(values)]))

    return Counts()


def best(at, keeps, module, **options):
    run = at.trainer(callbacks=[keeps], **options)
    run.fit(module, data(), data(8, 1))
    weights = type(module).load_from_checkpoint(keeps.best_model_path).layer.weight.tolist()
    scores = sorted(float(v) for v in keeps.best_k_models.values())
    return [float(keeps.best_model_score), scores, float(keeps.current_score), weights]


def checkpoints_of_every_second_epoch(at):
    keeps = at.callbacks.ModelCheckpoint(monitor="v", mode="max", every_n_epochs=2)
    return best(at, keeps, counting(at, [0.9, 0.5, 0.8, 0.6, 0.7, 0.1]), max_epochs=6)


def checkpoints_at_steps(at):
    keeps = at.callbacks.ModelCheckpoint(monitor="v", mode="max", every_n_train_steps=4)
    return best(at, keeps, counting(at, [1, 8, 2, 9, 3, 4, 5, 7, 1, 6], "training"))


def checkpoints_at_steps_of_a_validation(at):
    keeps = at.callbacks.ModelCheckpoint(monitor="val_loss", every_n_train_steps=4, save_top_k=-1)
    return best(at, keeps, at.Net(), val_check_interval=4)


def checkpoints_of_several_validations(at):
    found = []
    for at_end in (None, True, False):
        keeps = at.callbacks.ModelCheckpoint(
            monitor="val_loss", save_top_k=-1, save_on_train_epoch_end=at_end
        )
        found.append(best(at, keeps, at.Net(), val_check_interval=0.5))
    return found


def all_checkpoints(at):
    keeps = at.callbacks.ModelCheckpoint(monitor="v", save_top_k=-1)
    return best(at, keeps, counting(at, [0.3, 0.1, 0.2, 0.4]), max_epochs=4)


def two_checkpoints(at):
    keeps = at.callbacks.ModelCheckpoint(monitor="v", save_top_k=2)
    found = best(at, keeps, counting(at, [0.3, 0.1, 0.2, 0.4]), max_epochs=4)
    return found, float(keeps.kth_value), keeps.state_key


def files_of_checkpoints(at):
    found = []
    for number, options in enumerate(
        (
            {},
            {"monitor": "v"},
            {"monitor": "v", "save_top_k": 2},
            {"monitor": "v", "save_top_k": -1, "filename": "{epoch:02d}-{v:.2f}"},
            {"monitor": "v", "save_top_k": -1, "filename": "best", "mode": "max"},
            {"filename": "e={epoch}-of-{step:05d}-{missing}", "auto_insert_metric_name": False},
            {"monitor": "v", "save_last": True, "every_n_epochs": 2},
            {"monitor": "v", "filename": "one", "enable_version_counter": False, "save_last": True},
            {"every_n_train_steps": 3, "save_top_k": -1, "filename": "at-{step}"},
            {"save_top_k": 0},
            {"save_top_k": -1},
            {"every_n_epochs": 3},
        )
    ):
        folder = Path(f"kept-{number}")
        keeps = at.callbacks.ModelCheckpoint(dirpath=folder, **options)
        run = at.trainer(callbacks=[keeps], max_epochs=4)
        run.fit(counting(at, [0.3, 0.1, 0.2, 0.4]), data(8), data(4))
        names = sorted(one.name for one in folder.glob("*")) if folder.exists() else []
        best_path = os.path.relpath(keeps.best_model_path) if keeps.best_model_path else ""
        ranked = sorted(os.path.basename(path) for path in keeps.best_k_models)
        last = os.path.basename(keeps.last_model_path) if "save_last" in options else None
        found.append([names, best_path, ranked, last, os.path.relpath(keeps.dirpath)])
        assert all(os.path.exists(folder / name) for name in names)
    return found


def files_of_a_second_run(at):
    found = []
    for _ in range(2):
        keeps = at.callbacks.ModelCheckpoint(
            dirpath="shared", filename="{epoch}", save_last=True, monitor="val_loss"
        )
        run = at.trainer(callbacks=[keeps], max_epochs=2)
        run.fit(at.Net(), data(8), data(4))
        found.append([os.path.basename(keeps.best_model_path), os.path.basename(keeps.last_model_path)])
    return found, sorted(os.listdir("shared"))


def files_that_a_resumed_run_keeps(at):
    folder = Path("resumed")

    def fit(epochs, path=None):
        keeps = at.callbacks.ModelCheckpoint(
            dirpath=folder, filename="{epoch}-{v}", monitor="v", save_top_k=2, save_last=True
        )
        run = at.trainer(callbacks=[keeps], max_epochs=epochs)
        run.fit(counting(at, [0.3, 0.2, 0.1, 0.4]), data(8), data(4), ckpt_path=path)
        names = sorted(one.name for one in folder.glob("*"))
        return names, os.path.basename(keeps.best_model_path), os.path.basename(keeps.last_model_path)

    return fit(2), fit(4, "last")


def folders_of_loggers(at):
    loggers = import_module(at.L.__name__ + ".pytorch.loggers")
    root, found = Path("of-loggers").resolve(), []

    def look(run):
        log_dir = os.path.relpath(run.log_dir)
        own = [os.path.relpath(one.log_dir) for one in run.loggers]
        versions = [one.version for one in run.loggers]
        names = [one.name for one in run.loggers]
        exist = [os.path.isdir(one.log_dir) for one in run.loggers]
        kept = run.checkpoint_callback and os.path.relpath(run.checkpoint_callback.dirpath)
        found.append([log_dir, own, versions, names, exist, kept])

    for options in (
        {"logger": True, "default_root_dir": str(root)},
        {"logger": True, "default_root_dir": str(root)},
        {"logger": loggers.CSVLogger(str(root), name="mine", version=3)},
        {"logger": loggers.CSVLogger(str(root), name="mine")},
        {"logger": loggers.CSVLogger(str(root), name="")},
        {"logger": loggers.TensorBoardLogger(str(root), name="mine", version="named", sub_dir="deep")},
        {"logger": [loggers.TensorBoardLogger(str(root), "two"), loggers.CSVLogger(str(root), "two")]},
        {"logger": False, "default_root_dir": str(root / "none")},
    ):
        keeps = at.callbacks.ModelCheckpoint()
        run = at.trainer(**{"callbacks": [keeps], "max_epochs": 1} | options)
        run.fit(at.Net(), data(8))
        look(run)
    return found


def early_stopping(at):
    found = []
    nan = float("nan")
    for values, options in (
        ([5, 4, 3, 2, 1], {"stopping_threshold": 2.5}),
        ([5, 4, 30, 2, 1], {"divergence_threshold": 10}),
        ([5, 5, 5, 5, 5], {"patience": 2}),
        ([5, 4, 4, 5, 5], {"patience": 0}),
        ([1, 2, 3, 3, 3, 3], {"mode": "max", "patience": 1, "min_delta": 0.5}),
        ([5, 4, nan, 2, 1], {}),
        ([5, 4, nan, 2, 1], {"check_finite": False}),
        ([5, 4, 5, 5, 5], {"patience": 1, "check_on_train_epoch_end": False}),
    ):
        stops = at.callbacks.EarlyStopping("v", **options)
        run = at.trainer(max_epochs=len(values), callbacks=[stops], num_sanity_val_steps=0)
        run.fit(counting(at, values), data(8), data(4))
        ended = run.current_epoch, stops.stopped_epoch, stops.wait_count, stops.patience
        found.append([*ended, float(stops.best_score), stops.state_dict()["wait_count"], stops.state_key])
    return found


def subclasses_of_early_stopping(at):
    class Warm(at.callbacks.EarlyStopping):
        def _evaluate_stopping_criteria(self, current):
            self.seen = [*getattr(self, "seen", []), float(current)]
            return (False, "warm") if len(self.seen) <= 2 else super()._evaluate_stopping_criteria(current)

    class Itself(at.callbacks.EarlyStopping):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                self._run_early_stopping_check(trainer)

        def on_train_epoch_end(self, trainer, pl_module):
            pass

    class Asks(at.callbacks.EarlyStopping):
        def _run_early_stopping_check(self, trainer):
            if self._validate_condition_metric(trainer.callback_metrics):
                trainer.should_stop = float(trainer.callback_metrics[self.monitor]) < 3

    class Decides(at.callbacks.EarlyStopping):
        def _should_skip_check(self, trainer):
            return trainer.current_epoch < 3 or super()._should_skip_check(trainer)

    found = []
    for kind in (Warm, Itself, Asks, Decides):
        stops = kind("v", patience=1, min_delta=0.5)
        run = at.trainer(max_epochs=7, callbacks=[stops])
        run.fit(counting(at, [5, 5, 4, 3, 2, 2, 2]), data(8), data(4))
        kept = stops.state_dict() | {"best_score": float(stops.best_score)}
        said = bool(kept.pop("stopping_reason_message"))
        seen = getattr(stops, "seen", None), stops.stopping_reason.name, stops.min_delta
        found.append([run.current_epoch, sorted(kept.items()), said, *seen])
    return found


def early_stopping_of_a_second_fit_and_a_resumed_one(at):
    def fit(stops, epochs, **options):
        run = at.trainer(max_epochs=epochs, callbacks=[stops])
        run.fit(counting(at, [5, 4, 4, 4, 4, 4, 4]), data(8), data(4), **options)
        found.append((run.current_epoch, stops.wait_count, float(stops.best_score), stops.stopped_epoch))
        return run

    found = []
    stops = at.callbacks.EarlyStopping("v", patience=3)
    run = fit(stops, 3)
    fit(at.callbacks.EarlyStopping("v", patience=3), 9, ckpt_path=run.checkpoint_callback.best_model_path)
    run.fit_loop.max_epochs = 9
    run.fit(counting(at, [5, 4, 4, 4, 4, 4, 4]), data(8), data(4))
    return found, run.current_epoch, stops.wait_count


def a_value_that_a_callback_sets(at):
    class Sets(at.L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.callback_metrics["mine"] = torch.tensor(1.0)

    stops = at.callbacks.EarlyStopping("mine", patience=1)
    run = at.trainer(max_epochs=5, callbacks=[Sets(), stops])
    run.fit(at.Net(), data(8))
    return run.current_epoch, plain(run.callback_metrics)


# -- logged values ---------------------------------------------------------------------------------


def results_of_several_loaders(at):
    class Logs(at.Net):
        def test_step(self, batch, batch_idx, dataloader_idx):
            self.log("a", float(batch_idx + dataloader_idx))
            self.log(f"b{dataloader_idx}", float(batch_idx), add_dataloader_idx=False)

        def on_test_epoch_end(self):
            self.log("end", 1.0)

    return [plain(one) for one in at.trainer().test(Logs(), [data(8), data(8, 1)])]


def values_of_single_steps_of_a_validation(at):
    class Logs(at.Net):
        def validation_step(self, batch, batch_idx):
            self.log("step", float(batch_idx), on_step=True, on_epoch=False)
            self.log("both", float(batch_idx), on_step=True, on_epoch=True)

    run = at.trainer()
    return [plain(one) for one in run.validate(Logs(), data(8))], plain(run.callback_metrics)


def rows_of_single_steps_of_a_validation(at):
    def rounded(values):  # an object's own arithmetic depends on where tensors lie
        return {name: round(value, 5) for name, value in plain(values).items()}

    class Logs(at.Net):
        def __init__(self):
            super().__init__()
            self.error = MeanSquaredError()

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("both", float(batch_idx), on_step=True, on_epoch=True, prog_bar=True)
            self.log("step", float(batch_idx), on_step=True, on_epoch=False)
            if not several:
                self.error(self(batch[0]), batch[1])
                self.log("object", self.error, on_step=True, on_epoch=True)
            if batch_idx == 1:
                self.log("later", 1.0, on_step=True, on_epoch=False, logger=False)
            seen.append(rounded(self.trainer.logged_metrics))

        test_step = validation_step

        def on_validation_end(self):
            self.seen = rounded(self.trainer.logged_metrics), plain(self.trainer.progress_bar_metrics)

    loggers, found = import_module(at.package + ".pytorch.loggers"), []
    for several in (False, True):
        seen, module = [], Logs()
        run = at.trainer(logger=[loggers.CSVLogger("csv"), loggers.TensorBoardLogger("tb")])
        val = [data(12), data(8, 1)] if several else data(12)
        run.fit(module, data(8), val)
        found.append([module.seen, seen[-1], rounded(run.callback_metrics)])
        run.validate(module, val, verbose=False)
        found[-1].append(rounded(run.logged_metrics))
        with open(f"{run.log_dir}/metrics.csv") as file:
            rows = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
        rows = [sorted((name, round(float(value), 4)) for name, value in row.items()) for row in rows]
        events = EventAccumulator(run.loggers[1].log_dir).Reload()
        tags = [tag for tag in events.Tags()["scalars"] if tag != "hp_metric"]
        scalars = {tag: sorted((e.step, round(e.value, 4)) for e in events.Scalars(tag)) for tag in tags}
        found[-1] += [sorted(rows), dict(sorted(scalars.items()))]
    return found


def values_of_the_start_of_an_epoch(at):
    class Logs(at.Net):
        def on_train_epoch_start(self):
            self.log("start", 2.0 * self.current_epoch)
            found.append(plain(self.trainer.callback_metrics) if self.reads else {})

        def on_train_batch_end(self, outputs, batch, batch_idx):
            value = self.trainer.callback_metrics.get("start")
            found.append(None if value is None else float(value))

    found = []
    for reads in (False, True):
        module = Logs()
        module.reads = reads
        at.trainer().fit(module, data(8))
    return found


def metric_objects_of_steps(at):
    class Counts(at.Net):
        def __init__(self):
            super().__init__()
            self.error, self.mean, self.both = MeanSquaredError(), MeanMetric(), MeanMetric()

        def training_step(self, batch, batch_idx):
            self.error(self(batch[0]), batch[1])
            self.log("error", self.error)
            self.mean(float(batch_idx))
            self.log("mean", self.mean, on_step=False, on_epoch=True)
            self.both(float(batch_idx))
            self.log("both", self.both, on_step=True, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            found.append(plain(self.trainer.callback_metrics))

    found = []
    run = at.trainer()
    run.fit(Counts(), data(12))
    return found, plain(run.callback_metrics), plain(run.logged_metrics)


def where_nothing_can_be_logged(at):
    hooks = ("on_fit_start", "on_validation_end", "on_train_end", "on_fit_end", "on_sanity_check_end")
    found = []
    for hook in hooks:
        logs = {hook: lambda self, trainer, pl_module: pl_module.log("x", 1.0)}
        watch = type("Logs", (at.L.Callback,), logs)()
        errors = import_module(at.package + ".pytorch.utilities.exceptions")
        try:
            at.trainer(callbacks=[watch]).fit(at.Net(), data(4), data(4))
        except errors.MisconfigurationException as error:
            found.append((hook, hook in str(error)))
    return found


def types_of_values(at):
    run = at.trainer(logger=True)
    run.fit(at.Net(), data(8), data(4))
    metrics = run.callback_metrics, run.logged_metrics
    nothing = run.predict(at.Net(), data(4), return_predictions=False)
    return [
        sorted((name, isinstance(v, torch.Tensor)) for name, v in one.items()) for one in metrics
    ], nothing


# -- saved and loaded ------------------------------------------------------------------------------


def arguments_of_a_command_line(at):
    class Built(at.Net):
        def __init__(self, options):
            super().__init__()
            self.save_hyperparameters(options)

    run = at.trainer(max_epochs=1)
    run.fit(Built(argparse.Namespace(rate=0.1, names=["a", "b"])), data(8))
    run.save_checkpoint("saved.ckpt")
    return sorted(Built.load_from_checkpoint("saved.ckpt").hparams.items())


def some_of_the_weights(at):
    class Larger(at.Net):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 2)

    class Other(at.Net):
        def __init__(self):
            super().__init__()
            torch.manual_seed(9)
            self.more = nn.Linear(1, 1)

    run, module = at.trainer(max_epochs=1), Larger()
    run.fit(module, data(8))
    run.save_checkpoint("saved.ckpt")
    loaded = Other.load_from_checkpoint("saved.ckpt", strict=False)
    return loaded.layer.weight.tolist() == module.layer.weight.tolist(), loaded.more.weight.tolist()


def weights_that_state_dict_skips(at):
    class Skips(at.Net):
        def __init__(self, value=1.0):
            super().__init__()
            self.save_hyperparameters()
            self.frozen = nn.Linear(3, 1, bias=False)
            nn.init.constant_(self.frozen.weight, value)
            self.frozen.requires_grad_(False)
            self.more = nn.Linear(3, 1)
            self.set_up()

        def set_up(self):
            self.strict_loading = False

        def state_dict(self, *args, **kwargs):
            return {n: v for n, v in super().state_dict(*args, **kwargs).items() if "frozen" not in n}

        def configure_optimizers(self):  # "more" is in no optimizer
            return torch.optim.Adam(self.layer.parameters(), lr=0.05)

    class ByClass(Skips):
        strict_loading = False

        def set_up(self):
            pass

    class Renames(Skips):
        def state_dict(self, *args, **kwargs):
            return {f"net.{n}": v for n, v in super().state_dict(*args, **kwargs).items()}

        def load_state_dict(self, state_dict, strict=True):
            names = {n.removeprefix("net."): v for n, v in state_dict.items()}
            return super().load_state_dict(names, strict=False)

    found = []
    for kind in (Skips, ByClass, Renames):
        run, module = at.trainer(max_epochs=2), kind()
        run.fit(module, data(8))
        path, resumed = run.checkpoint_callback.best_model_path, kind()
        at.trainer(max_epochs=3).fit(resumed, data(8), ckpt_path=path)
        found.append([sorted(module.state_dict()), module.layer.weight.tolist()])
        found[-1] += [resumed.layer.weight.tolist(), resumed.frozen.weight.tolist()]
        if kind is not Renames:
            loaded = kind.load_from_checkpoint(path, value=2.0)
            found[-1] += [loaded.layer.weight.tolist(), loaded.frozen.weight.tolist()]
    return found


def state_of_two_callbacks_of_a_class(at):
    class Counts(at.L.Callback):
        def __init__(self, name):
            self.name, self.count = name, 0

        @property
        def state_key(self):
            return self._generate_state_key(name=self.name)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.count += 1 + (self.name == "b")

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state_dict):
            self.count = state_dict["count"]

    run = at.trainer(callbacks=[Counts("a"), Counts("b")])
    run.fit(at.Net(), data(8))
    run.save_checkpoint("saved.ckpt")
    both = [Counts("a"), Counts("b")]
    at.trainer(callbacks=[*both], max_epochs=3).fit(at.Net(), data(8), ckpt_path="saved.ckpt")
    return [(one.state_key, one.count) for one in both]


# -- callbacks -------------------------------------------------------------------------------------


def written_predictions(at):
    class Writes(at.callbacks.BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, indices, batch, batch_idx, loader):
            found.append((float(prediction), list(indices), batch_idx, loader))

        def write_on_epoch_end(self, trainer, module, predictions, indices):
            found.append(([float(one) for one in predictions], [list(map(list, one)) for one in indices]))

    found = []
    for interval in ("batch", "epoch", "batch_and_epoch"):
        at.trainer(callbacks=[Writes(interval)]).predict(at.Net(), data(12))
    return found


def a_backbone_from_an_epoch_on(at):
    class Two(at.Net):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(3, 3)

        def forward(self, inputs):
            return self.layer(self.backbone(inputs))

        def configure_optimizers(self):
            return torch.optim.SGD(self.layer.parameters(), lr=0.01)

    found = []
    for options in ({}, {"backbone_initial_lr": 1e-4}, {"should_align": False}):
        module = Two()
        unfreezes = at.callbacks.BackboneFinetuning(1, lambda epoch: 4.0, **options)
        at.trainer(callbacks=[unfreezes], max_epochs=4).fit(module, data())
        found.append((module.backbone.weight.tolist(), unfreezes.previous_backbone_lr))
    return found


def values_of_the_bar(at):
    class Bar(at.callbacks.TQDMProgressBar):
        def get_metrics(self, trainer, pl_module):
            found.update(super().get_metrics(trainer, pl_module))
            return {"mine": 1}

    class Logs(at.Net):
        def training_step(self, batch, batch_idx):
            self.log("shown", float(batch_idx), prog_bar=True)
            return super().training_step(batch, batch_idx)

    found = {}
    at.trainer(enable_progress_bar=True, callbacks=[Bar()], max_epochs=1).fit(Logs(), data(8))
    return found["shown"]


def loaders_one_after_the_other(at):
    loader = import_module(at.package + ".pytorch.utilities.combined_loader").CombinedLoader

    class Looks(at.Net):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            found.append((batch_idx, dataloader_idx))

    found = []
    at.trainer().validate(Looks(), loader([data(8), data(4)], "sequential"))
    try:
        at.trainer().fit(at.Net(), loader([data(8), data(4)], "sequential"))
    except Exception as error:
        found.append("sequential" in str(error))
    return found


# -- settings --------------------------------------------------------------------------------------


def course(at, train=28, val=8, **options):
    """When a fit trains and validates, with which weights, and where it ends."""

    class Notes(at.Net):
        def training_step(self, batch, batch_idx):
            found.append(("train", self.trainer.current_epoch, batch_idx, self.trainer.global_step))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if not self.trainer.sanity_checking:
                found.append(("val", batch_idx, self.trainer.global_step, self.layer.weight.tolist()))

    found, module = [], Notes()
    run = at.trainer(**options)
    run.fit(module, data(train), data(val))
    ended = run.current_epoch, run.global_step, sorted(run.callback_metrics), module.layer.weight.tolist()
    return [*found, ended]


def named(at, path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"{at.package}.pytorch.{module}"), name)


def validations_within_an_optimizer_step(at):
    """Whole steps: a last one with fewer batches has another gradient under Lightning."""
    rules = [(0.5, 1, 24), (0.4, 1, 32), (3, 1, 32), (5, None, 32), (7, 1, 32), (0.5, 2, 24), (3, 2, 32)]
    found = []
    for interval, every, size in rules:
        options = {"val_check_interval": interval, "check_val_every_n_epoch": every}
        steps = course(at, size, accumulate_grad_batches=2, **options)
        # Where it would come between two batches of a step, it comes before them: with the same weights.
        found.append([[one for one in steps if one[0] == "val"], steps[-1]])
    return found


def intervals_of_validation(at):
    options = [
        {"val_check_interval": 0.3},
        {"val_check_interval": 1},
        {"val_check_interval": 0.5, "check_val_every_n_epoch": 2, "max_epochs": 4},
        {"check_val_every_n_epoch": None},
        {"check_val_every_n_epoch": None, "val_check_interval": 10},
        {"val_check_interval": "00:00:01:00"},
    ]
    return [course(at, **one) for one in options]


def limits_of_batches(at):
    kinds = (0, 1, 5, 100, 0.0, 0.5, 0.72, 1.0)
    return [
        course(at, val=24, **{f"limit_{stage}_batches": kind})
        for stage in ("train", "val")
        for kind in kinds
    ]


def parts_of_less_than_a_batch(at):
    found = []
    for options in ({"limit_train_batches": 0.01}, {"limit_val_batches": 0.3}):
        try:
            course(at, **options)
        except Exception:
            found.append(options)
    return found


def limits_of_a_run(at):
    options = [
        {"max_steps": -1},
        {"max_steps": 3, "max_epochs": None},
        {"max_steps": 3, "max_epochs": -1},
        {"max_epochs": 0},
        {"min_epochs": 1},
        {"fast_dev_run": 2},
    ]
    return [course(at, **one) for one in options]


def switches(at):
    options = [
        {"barebones": True, "enable_progress_bar": None, "enable_model_summary": None, "logger": None}
        | {"log_every_n_steps": None},
        {"enable_checkpointing": False},
        {"inference_mode": False},
        {"use_distributed_sampler": False},
        {"deterministic": "warn"},
        {"detect_anomaly": True},
        {"log_every_n_steps": 0},
        {"devices": "auto", "num_nodes": 1},
        {"strategy": "auto", "devices": "1"},
        {"reload_dataloaders_every_n_epochs": 1},
        {"gradient_clip_val": 0},
    ]
    return [course(at, **one) for one in options]


def precisions(at):
    return [course(at, precision=one) for one in (32, "32", "bf16", "bf16-true", 64, 16, "16-mixed")]


def overfitting(at):
    class Shuffles(at.Net):
        def train_dataloader(self):
            return DataLoader(data().dataset, 4, shuffle=True)

        def val_dataloader(self):
            return data(16, seed=1)

    module = Shuffles()
    run = at.trainer(overfit_batches=2)
    run.fit(module)
    values = [float(value) for _, value in sorted(run.callback_metrics.items())]
    shuffled = DataLoader(data().dataset, 4, shuffle=True)
    other = at.Net()
    at.trainer(overfit_batches=0.5).fit(other, shuffled, data(16))
    return module.layer.weight.tolist(), [round(one, 5) for one in values], other.layer.weight.tolist()


def profilers(at):
    class Times(at.Net):
        def training_step(self, batch, batch_idx):
            with self.trainer.profiler.profile("mine"):
                return super().training_step(batch, batch_idx)

    found = []
    kinds = [named(at, f"profilers.{name}")() for name in ("SimpleProfiler", "PassThroughProfiler")]
    advanced = named(at, "profilers.AdvancedProfiler")(dirpath=".", filename="report")
    for profiler in (*kinds, advanced, "simple", "advanced", None):
        module = Times()
        run = at.trainer(profiler=profiler)
        run.fit(module, data(12))
        found.append((type(run.profiler).__name__, module.layer.weight.tolist()))
    return found, len(kinds[0].recorded_durations["mine"]), "mine" in Path("fit-report.txt").read_text()


def plugins(at):
    precision = named(at, "plugins.precision.MixedPrecision")("bf16-mixed", "cpu")
    kinds = [
        [named(at, "plugins.environments.SLURMEnvironment")(auto_requeue=False)],
        [named(at, "plugins.environments.LightningEnvironment")()],
        [precision],
        [named(at, "plugins.DoublePrecision")()],
        named(at, "plugins.HalfPrecision")("bf16-true"),
        [named(at, "plugins.io.AsyncCheckpointIO")(), named(at, "plugins.TorchSyncBatchNorm")()],
        [type("Own", (named(at, "plugins.io.TorchCheckpointIO"),), {})()],
        [],
    ]
    return [course(at, 12, plugins=one) for one in kinds]


def accelerators(at):
    cpu = named(at, "accelerators.CPUAccelerator")
    run = at.trainer(accelerator=cpu())
    alone = named(at, "strategies.SingleDeviceStrategy")
    other = at.trainer(strategy=named(at, "strategies.single_device.SingleDeviceStrategy")("cpu"))
    return [
        isinstance(run.accelerator, cpu),
        isinstance(run.strategy, alone),
        isinstance(other.strategy, alone),
        isinstance(run.strategy, named(at, "strategies.ddp.DDPStrategy")),
        cpu.is_available(),
        named(at, "accelerators.CUDAAccelerator").is_available(),
    ]


def a_second_fit(at):
    class Notes(at.L.Callback):
        def on_train_start(self, trainer, pl_module):
            self.note("start", trainer)

        def on_train_epoch_start(self, trainer, pl_module):
            self.note("epoch", trainer)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            loop = trainer.fit_loop
            found.append((loop.batch_idx, loop.total_batch_idx, loop.epoch_loop.batch_idx))

        def note(self, name, trainer):
            found.append((name, trainer.current_epoch, trainer.global_step, trainer.max_epochs))

    def epochs(run):
        run.fit_loop.max_epochs = 4

    def steps(run):
        run.fit_loop.epoch_loop.max_steps = 12

    found = []
    for change, options in (
        (None, {}),
        (epochs, {"enable_checkpointing": False}),
        (epochs, {"accumulate_grad_batches": 2}),
        (steps, {"max_steps": 5, "max_epochs": 9}),
    ):
        module, run = at.Net(), at.trainer(callbacks=[Notes()], **options)
        run.fit(module, data(), data(8))
        found.append((run.estimated_stepping_batches, module.layer.weight.tolist()))
        if change is not None:
            change(run)
        run.fit(module, data(), data(8))
        ended = run.current_epoch, run.global_step, run.estimated_stepping_batches
        found.append((*ended, module.layer.weight.tolist()))
    return found


def another_module_in_a_second_fit(at):
    run, modules = at.trainer(max_epochs=1), (at.Net(), at.Net())
    for module in modules:
        run.fit(module, data(12))
        run.fit_loop.max_epochs += 2
    return [module.layer.weight.tolist() for module in modules], run.current_epoch, run.global_step


def limits_that_a_hook_sets(at):
    class Longer(at.L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                trainer.fit_loop.max_epochs = 3

    run = at.trainer(callbacks=[Longer()])
    run.fit(at.Net(), data(12))
    return run.current_epoch, run.global_step, run.max_epochs


def batches_of_a_step_that_are_set(at):
    class Grows(at.L.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            trainer.accumulate_grad_batches = trainer.current_epoch + 1

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            found.append((trainer.current_epoch, batch_idx, trainer.global_step))

        def on_train_epoch_end(self, trainer, pl_module):
            found.append((trainer.accumulate_grad_batches, trainer.num_training_batches))

    class First(at.L.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.accumulate_grad_batches = 4

    found, module = [], at.Net()
    at.trainer(max_epochs=3, callbacks=[Grows()]).fit(module, data(24), data(8))
    weights = [module.layer.weight.tolist()]
    run = at.trainer(max_epochs=1, callbacks=[First()])
    run.fit(module, data(16))
    found.append(run.global_step)
    run.accumulate_grad_batches = 2
    run.fit_loop.max_epochs = 3
    run.callbacks.pop(0)
    run.fit(module, data(16))
    return found, run.global_step, run.accumulate_grad_batches, weights, module.layer.weight.tolist()


def rows_of_files(at):
    class Logs(at.Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("forked", loss.detach(), on_step=True, on_epoch=True)
            return loss

    loggers = import_module(at.package + ".pytorch.loggers")
    run = at.trainer(logger=[loggers.CSVLogger("csv"), loggers.TensorBoardLogger("tb")])
    run.fit(Logs(), data(12), data(8))
    run.fit_loop.max_epochs = 3
    run.fit(run.lightning_module, data(12), data(8))
    with open(f"{run.log_dir}/metrics.csv") as file:
        rows = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
    rows = [sorted((name, round(float(value), 4)) for name, value in row.items()) for row in rows]
    events = EventAccumulator(run.loggers[1].log_dir).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag != "hp_metric"]
    scalars = {tag: [(e.step, round(e.value, 4)) for e in events.Scalars(tag)] for tag in sorted(tags)}
    return sorted(rows), {tag: sorted({*found}) for tag, found in scalars.items()}


# -- what public programs do -----------------------------------------------------------------------


def steps_in_names_with_a_plateau(at):
    class Plateau(at.Net):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}

        def on_fit_end(self):
            found.append(self.trainer.global_step)

    found = []
    run = at.trainer()
    run.fit(Plateau(), data(), data(8))
    return found, os.path.basename(run.checkpoint_callback.best_model_path)


def a_name_that_every_checkpoint_has(at):
    found = []
    kinds = ({}, {"save_last": True}, {"monitor": "val_loss"}, {"save_top_k": -1}, {"every_n_epochs": 2})
    for number, options in enumerate(kinds):
        keeps = at.callbacks.ModelCheckpoint(f"kept{number}", "same", **options)
        at.trainer(callbacks=[keeps], max_epochs=3).fit(at.Net(), data(), data(8))
        paths = os.path.basename(keeps.best_model_path), os.path.basename(keeps.last_model_path)
        found.append((sorted(os.listdir(keeps.dirpath)), *paths))
    return found


def a_callback_of_two_trainers(at):
    keeps = at.callbacks.ModelCheckpoint("kept", monitor="val_loss")
    at.trainer(callbacks=[keeps]).fit(at.Net(), data(), data(8))
    before = os.path.basename(keeps.best_model_path), float(keeps.best_model_score)
    at.trainer(callbacks=[keeps]).predict(at.Net(), data(8))
    after = os.path.basename(keeps.best_model_path), float(keeps.best_model_score)
    return before[0] == after[0], before[1] == after[1], before[0]


def copies(at):
    loggers = import_module(at.package + ".pytorch.loggers")
    keeps, stops = at.callbacks.ModelCheckpoint("kept"), at.callbacks.EarlyStopping("val_loss")
    given = {
        "callbacks": [keeps, stops],
        "logger": [loggers.CSVLogger("a"), loggers.TensorBoardLogger("b")],
    }
    first = copy.deepcopy(at.trainer(**given))
    run = at.trainer(**given)
    run.fit(at.Net(), data(), data(8))
    module = at.Net()
    first.fit(module, data(), data(8))
    written = [copy.deepcopy(one).best_model_path for one in (keeps, *run.checkpoint_callbacks)]
    copy.deepcopy(stops)
    return [os.path.basename(path) for path in written], module.layer.weight.tolist(), first.max_epochs


def checkpoints_saved_by_hand(at):
    class Saves(at.Net):
        def __init__(self, rate=0.1):
            super().__init__()
            self.save_hyperparameters()

    found = []
    for keeps in (True, False):
        module, run = Saves(0.3), at.trainer(enable_checkpointing=keeps)
        run.fit(module, data())
        for _ in range(2):
            run.save_checkpoint("saved.ckpt")
        loaded = Saves.load_from_checkpoint("saved.ckpt", weights_only=False)
        found.append((loaded.hparams.rate, loaded.layer.weight.tolist() == module.layer.weight.tolist()))
    return found


def what_torch_reads_of_checkpoints(at):
    class Saves(at.Net):
        def __init__(self, rate=0.1, names=("a",)):
            super().__init__()
            self.save_hyperparameters()

        def on_save_checkpoint(self, checkpoint):
            checkpoint["note"] = sorted(checkpoint["state_dict"])
            checkpoint["state_dict"]["more"] = torch.ones(2)

        def on_load_checkpoint(self, checkpoint):
            del checkpoint["state_dict"]["more"]

    class Data(at.L.LightningDataModule):
        def __init__(self, size=8):
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self):
            return data(self.hparams.size)

    class Reads(at.L.Callback):
        def on_train_end(self, trainer, pl_module):
            found = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
            self.seen = found["epoch"], found["global_step"], [*found["callbacks"]]

    reads = Reads()
    keeps = at.callbacks.ModelCheckpoint(
        dirpath="kept", monitor="train_loss", save_last=True, save_top_k=-1
    )
    run, module = at.trainer(max_epochs=2, callbacks=[keeps, reads]), Saves(0.3)
    run.fit(module, datamodule=Data())
    found = [reads.seen]
    for path in (keeps.best_model_path, keeps.last_model_path):
        read = torch.load(path, weights_only=False)
        weights = read["state_dict"]
        same = all(torch.equal(weights[name], value) for name, value in module.state_dict().items())
        read.pop("MixedPrecision", None)
        found.append((sorted(read), sorted(weights), same, weights["more"].tolist(), read["note"]))
        found.append({k: v for k, v in read.items() if "hyper" in k or "hparams_name" in k})
        (state,) = read["callbacks"].values()
        found.append((sorted(state), state["monitor"], os.path.basename(state["best_model_path"])))
        loaded = Saves.load_from_checkpoint(path)
        found.append((loaded.hparams.rate, torch.equal(loaded.layer.weight, weights["layer.weight"])))
    os.remove(keeps.best_model_path)
    run.save_checkpoint("light.ckpt", weights_only=True)
    found.append(torch.load("light.ckpt", weights_only=False)["global_step"])
    return found, sorted(os.listdir("kept"))


def last_files_between_saves(at):
    found = []
    for number, options in enumerate(
        (
            {"every_n_train_steps": 3},
            {"every_n_train_steps": 3, "save_top_k": -1},
            {"every_n_train_steps": 3, "monitor": "train_loss"},
            {"every_n_epochs": 2},
            {"every_n_epochs": 2, "monitor": "v"},
            {"monitor": "v"},
        )
    ):
        folder = Path(f"last-{number}")
        keeps = at.callbacks.ModelCheckpoint(dirpath=folder, save_last=True, **options)
        at.trainer(callbacks=[keeps], max_epochs=3).fit(counting(at, [0.1, 0.2, 0.3]), data(20), data(4))
        files = {one.name: torch.load(one, weights_only=True) for one in sorted(folder.glob("*"))}
        found.append({name: (one["epoch"], one["global_step"]) for name, one in files.items()})
    return found


def files_of_weights_alone(at):
    class Adds(at.L.Callback):
        def on_save_checkpoint(self, trainer, module, checkpoint):
            checkpoint["of_a_callback"] = 1

    class Net(at.Net):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["of_the_module"] = 2

    found = []
    for alone in (True, False):
        keeps = at.callbacks.ModelCheckpoint(dirpath=str(alone), save_weights_only=alone)
        run = at.trainer(callbacks=[Adds(), keeps])
        run.fit(Net(), data(8), data(4))
        run.save_checkpoint("saved.ckpt", weights_only=alone)
        for path in (keeps.best_model_path, "saved.ckpt"):
            found.append(sorted(torch.load(path, weights_only=True)))
    return found


def subclasses_of_model_checkpoint(at):
    seen = {}

    def note(keeps, *what):
        seen.setdefault(os.path.basename(keeps.dirpath), []).append(what)

    class Skips(at.callbacks.ModelCheckpoint):
        def on_validation_end(self, trainer, pl_module):
            if trainer.current_epoch % 2:
                super().on_validation_end(trainer, pl_module)

    class Writes(at.callbacks.ModelCheckpoint):
        def _save_checkpoint(self, trainer, filepath):
            super()._save_checkpoint(trainer, filepath)
            step = torch.load(filepath, weights_only=False)["global_step"]
            note(self, "saved", os.path.basename(filepath), step, trainer.global_step)

        def _remove_checkpoint(self, trainer, filepath):
            note(self, "removed", os.path.basename(filepath))
            if "epoch=1" not in filepath:
                super()._remove_checkpoint(trainer, filepath)

    class Averages(at.callbacks.ModelCheckpoint):
        def _monitor_candidates(self, trainer):
            found = super()._monitor_candidates(trainer)
            return {**found, "both": found["val_loss"] * 2 + found["epoch"]}

    class Exports(at.callbacks.ModelCheckpoint):
        def _update_best_and_save(self, current, trainer, monitor_candidates):
            super()._update_best_and_save(current, trainer, monitor_candidates)
            best = float(current) == float(self.best_model_score)
            note(self, trainer.current_epoch, best, "val_loss" in monitor_candidates)

    class Numbered(at.callbacks.ModelCheckpoint):
        def format_checkpoint_name(self, metrics, filename=None, ver=None, prefix=None):
            path = super().format_checkpoint_name(metrics, filename, ver, prefix)
            return path.replace("epoch=", "after-")

    class Periodic(at.callbacks.ModelCheckpoint):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step % 3 == 0:
                path = os.path.join(self.dirpath, f"at-{trainer.global_step}{self.FILE_EXTENSION}")
                self._save_checkpoint(trainer, path)
                note(self, torch.load(path, weights_only=False)["global_step"])

    kinds = (Skips, "val_loss"), (Writes, "val_loss"), (Averages, "both"), (Exports, "val_loss")
    keeps = [kind(dirpath=kind.__name__, monitor=name) for kind, name in kinds]
    keeps += [kind(dirpath=kind.__name__) for kind in (Numbered, Periodic)]
    keeps.append(Writes(dirpath="last", save_last=True))
    run = at.trainer(callbacks=keeps, max_epochs=4)
    run.fit(counting(at, [0.3, 0.2, 0.4, 0.1]), data(8), data(4))
    names = [sorted(os.listdir(one.dirpath)) for one in keeps]
    return sorted(seen.items()), names, [os.path.basename(one.best_model_path) for one in keeps]


def names_of_the_last_checkpoint(at):
    keeps = at.callbacks.ModelCheckpoint("kept", monitor="val_loss", save_last=True, filename="{epoch}")
    keeps.CHECKPOINT_NAME_LAST = "last-{epoch}"
    run = at.trainer(callbacks=[keeps], max_epochs=3)
    run.fit(at.Net(), data(8), data(4))
    return sorted(os.listdir("kept")), os.path.basename(keeps.last_model_path)


def hyperparameters_that_are_objects(at):
    class Takes(at.Net):
        def __init__(self, loss, kind=nn.Linear, width=2):
            super().__init__()
            self.save_hyperparameters()
            self.loss = loss

    module, run = Takes(nn.MSELoss()), at.trainer()
    run.fit(module, data())
    path = run.checkpoint_callback.best_model_path
    loaded = Takes.load_from_checkpoint(path, weights_only=False)
    kinds = type(loaded.loss).__name__, loaded.hparams.kind.__name__, loaded.hparams.width
    return kinds, loaded.loss is module.loss


def steps_of_one_optimizer_alone(at):
    class Two(at.Net):
        def __init__(self):
            super().__init__()
            self.other, self.automatic_optimization = nn.Linear(3, 1), False

        def training_step(self, batch, batch_idx):
            found.append(self.global_step)
            first, second = self.optimizers()
            second._on_before_step = second._on_after_step = lambda: None
            for optimizer, part in ((first, self.layer), (second, self.other)):
                optimizer.zero_grad()
                self.manual_backward(part(batch[0]).square().mean())
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.layer, self.other)]

    found, run = [], at.trainer(max_steps=5, max_epochs=-1)
    run.fit(Two(), data(12))
    return found, run.global_step


def early_stopping_on_what_a_sanity_check_does_not_log(at):
    class Names(at.Net):
        def validation_step(self, batch, batch_idx):
            name = "sanity_loss" if self.trainer.sanity_checking else "val_loss"
            self.log(name, nn.functional.mse_loss(self(batch[0]), batch[1]))

    run = at.trainer(callbacks=[at.callbacks.EarlyStopping("val_loss")])
    run.fit(Names(), data(), data(8))
    return run.current_epoch


def searches_before_a_fit(at):
    tuning = import_module(at.package + ".pytorch.tuner")

    class Rated(at.Net):
        def __init__(self, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.lr, self.batch_size = lr, 4

        def train_dataloader(self):
            return DataLoader(data(64).dataset, self.batch_size)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    found = []
    for options in ({}, {"mode": "linear", "early_stop_threshold": None, "max_lr": 0.1}):
        module, run = Rated(), at.trainer(max_epochs=2)
        before = module.layer.weight.tolist()
        search = tuning.Tuner(run).lr_find(
            module, data(64), data(4), num_training=40, min_lr=1e-5, **options
        )
        rates, losses = ([round(one, 5) for one in search.results[name]] for name in ("lr", "loss"))
        found.append([rates, losses, search.suggestion(), search.plot(suggest=True) is not None])
        found[-1] += [module.lr, module.hparams.lr, module.layer.weight.tolist() == before]
        run.fit(module, data(8))
        found[-1].append((run.global_step, module.layer.weight.tolist()))
    module = Rated()
    found.append(tuning.Tuner(at.trainer()).scale_batch_size(module, val_dataloaders=data(4), max_trials=3))
    return found, module.batch_size


def searches_within_a_fit(at):
    class Sized(at.Net):
        def __init__(self, lr=0.1, samples=40, fitting=1000):
            super().__init__()
            self.save_hyperparameters("lr")
            self.lr, self.batch_size, self.samples, self.fitting = lr, 4, samples, fitting

        def training_step(self, batch, batch_idx):
            if len(batch[0]) > self.fitting:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(batch, batch_idx)

        def train_dataloader(self):
            return DataLoader(data(self.samples).dataset, self.batch_size)

        def val_dataloader(self):
            return data(4)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

    class AtEpochs(at.callbacks.LearningRateFinder):
        def __init__(self, milestones, *args, **options):
            super().__init__(*args, **options)
            self.milestones = milestones

        def on_fit_start(self, *args, **options):
            return

        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch in self.milestones or trainer.current_epoch == 0:
                self.lr_find(trainer, pl_module)

    class Rates(at.L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            found.append([trainer.global_step, rate, pl_module.lr, pl_module.hparams.lr])

    found = []
    rates = {"num_training_steps": 15, "min_lr": 1e-4}
    for finder in (at.callbacks.LearningRateFinder(**rates), AtEpochs((5,), **rates)):
        module = Sized()
        at.trainer(callbacks=[finder, Rates()]).fit(module)
        found.append([finder.optimal_lr.suggestion(), module.layer.weight.tolist()])
    given = [{}, {"max_trials": 3}, {"mode": "binsearch"}, {"mode": "binsearch", "margin": 0.0}]
    for options in given:
        finder, module = at.callbacks.BatchSizeFinder(**options), Sized(samples=100, fitting=33)
        run = at.trainer(max_epochs=1, callbacks=[finder])
        run.fit(module)
        found.append([options, finder.optimal_batch_size, module.batch_size, run.global_step])
    finder, module = at.callbacks.BatchSizeFinder(init_val=5), Sized()
    at.trainer(max_epochs=1, callbacks=[finder]).fit(module)
    return found, finder.optimal_batch_size


def models_and_data_of_reports(at):
    demos = import_module(at.package + ".pytorch.demos")
    boring = import_module(at.package + ".pytorch.demos.boring_classes")
    found = [issubclass(demos.BoringModel, at.L.LightningModule), demos.DemoModel is boring.DemoModel]

    def run(model, **given):
        trainer = at.trainer(max_epochs=1, limit_train_batches=20, limit_val_batches=3)
        trainer.fit(model, **given)
        tested = trainer.test(model, **given) if hasattr(model, "layer") else None
        found.append([trainer.global_step, tested, [one.tolist() for one in model.parameters()]])

    for model in (boring.BoringModel, boring.ManualOptimBoringModel):
        at.L.seed_everything(1)
        run(model())
        at.L.seed_everything(1)
        run(model(), datamodule=boring.BoringDataModule())
    at.L.seed_everything(2)
    run(boring.DemoModel(3), train_dataloaders=DataLoader(boring.RandomDataset(32, 8)))
    for name in ("BoringDataModule", "BoringDataModuleNoLen", "IterableBoringDataModule"):
        at.L.seed_everything(3)
        loaders = getattr(boring, name)()
        for stage in ("fit", "test", "predict"):
            loaders.setup(stage)
        for part in ("train", "val", "test", "predict"):
            made = getattr(loaders, f"{part}_dataloader")()
            for one in made if isinstance(made, list) else [made]:
                first = next(iter(one))
                found.append([name, part, sum(1 for _ in one), first.flatten()[:2].tolist()])
    at.L.seed_everything(4)
    mapping, stream = boring.RandomDictDataset(4, 3), boring.RandomIterableDatasetWithLen(4, 3)
    found.append([mapping.len, len(stream), mapping[1]["b"].tolist(), next(iter(stream)).tolist()])
    return found


def bars_that_draw_themselves(at):
    class Draws(at.callbacks.ProgressBar):
        refresh_rate = 1

        def on_train_epoch_start(self, trainer, pl_module):
            super().on_train_epoch_start(trainer, pl_module)
            found.append((self.trainer is trainer, self.trainer.current_epoch))

    class Counts(at.callbacks.TQDMProgressBar):
        def on_train_epoch_end(self, trainer, pl_module):
            found.append((self.is_enabled, self.is_disabled, self.process_position))
            self.disable()

    found = []
    for bar in (Draws(), Counts(process_position=1)):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            at.trainer(callbacks=[bar], enable_progress_bar=True).fit(at.Net(), data(8))
    return found


def summaries_of_a_subclass(at):
    class Own(at.callbacks.RichModelSummary):
        @staticmethod
        def summarize(summary_data, total_parameters, trainable_parameters, model_size, modes, **more):
            found.append([summary_data, total_parameters, trainable_parameters, model_size, modes, more])

    class Deep(at.Net):
        def __init__(self):
            super().__init__()
            self.more = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(), nn.Linear(30, 50)))
            self.more[0].requires_grad_(False).eval()
            self.own = nn.Parameter(torch.zeros(7))

    found = []
    for depth in (1, 2, -1, 0):
        summary = Own(depth, header_style="bold")
        run = at.trainer(max_epochs=1, callbacks=[summary], enable_model_summary=True)
        run.fit(Deep(), data(8))
    return found


def private_names_that_libraries_use(at):
    pl = import_module(at.package + ".pytorch")
    modules = "callbacks.progress.tqdm_progress.Tqdm callbacks.progress.rich_progress.RichProgressBar "
    modules += "core.optimizer.LightningOptimizer core.mixins.HyperparametersMixin "
    modules += "utilities.memory.is_oom_error utilities.parsing.AttributeDict"
    for path in modules.split():
        one = pl
        for part in path.split("."):
            one = getattr(one, part)
    parsing = import_module(at.package + ".pytorch.utilities.parsing")
    saving = import_module(at.package + ".pytorch.core.saving")
    cloud = import_module(at.package + ".fabric.utilities.cloud_io")
    connectors = import_module(at.package + ".pytorch.trainer.connectors.accelerator_connector")
    progress = import_module(at.package + ".pytorch.callbacks.progress.progress_bar")
    found = []

    class Own(at.Net):
        def __init__(self, size=1, *rest, flag, **more):
            super().__init__()
            found.append(parsing.get_init_args(inspect.currentframe()))
            self.save_hyperparameters()

        def configure_optimizers(self):
            found.append(self.trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined())
            return super().configure_optimizers()

        @classmethod
        def load_from_checkpoint(cls, path, **kwargs):
            return saving._load_from_checkpoint(cls, path, None, None, True, **kwargs)

    class Loads(Own):
        def val_dataloader(self):
            return data(4)

    run, module = at.trainer(max_epochs=1), Own(2, flag=True, extra=3)
    run.fit(module, data(8))
    found.append(type(run._accelerator_connector._parallel_devices[0]).__name__)
    loaded = Own.load_from_checkpoint(run.checkpoint_callback.best_model_path, flag=False)
    found.append(loaded.layer.weight.tolist() == module.layer.weight.tolist())
    at.trainer(max_epochs=1).fit(Own(flag=True), data(8), data(4))
    at.trainer(max_epochs=1).fit(Loads(flag=True), data(8))
    torch.save({"a": 1}, "file.pt")
    for asked in ({}, {"accelerator": "cpu", "devices": 2}, {"devices": "1"}):
        connector = connectors._AcceleratorConnector(**{"accelerator": "cpu"} | asked)
        found.append((connector._accelerator_flag, connector._devices_flag, connector.is_distributed))
    found.append(progress.get_standard_metrics(run))
    return found, cloud._load("file.pt"), connectors._AcceleratorConnector()._choose_auto_accelerator()


def rows_of_evaluations(at):
    class Tests(at.Net):
        def test_step(self, batch, batch_idx):
            self.log("test_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    loggers = import_module(at.package + ".pytorch.loggers")
    module, found = Tests(), []
    for run in (at.trainer(logger=loggers.CSVLogger("a")), at.trainer(logger=loggers.CSVLogger("b"))):
        if not found:
            run.fit(module, data(), data(8))
        run.test(module, data(8), verbose=False)
        run.validate(module, data(8), verbose=False)
        with open(f"{run.log_dir}/metrics.csv") as file:
            rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
        found.append(sorted((int(row["step"]), row["epoch"], *sorted(row)) for row in rows))
    return found


def rows_of_the_end_of_an_epoch(at):
    class Logs(at.Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("mean", loss.detach(), on_step=False, on_epoch=True)
            return loss

        def on_train_epoch_end(self):
            self.log("at_the_end", 1.0)

        def on_validation_epoch_end(self):
            self.log("val_at_the_end", 2.0)
            self.logger.log_metrics({"by_hand": 3.0}, self.global_step)

        def test_step(self, batch, batch_idx):
            self.log("test_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    class Keeps(loggers_of(at.package).Logger):
        name, version = "keeps", 0

        def log_hyperparams(self, params, *args, **kwargs):
            pass

        def log_metrics(self, metrics, step):
            kept.append((step, *sorted(metrics)))

        def finalize(self, status):
            kept.append(status)

    kept, loggers = [], loggers_of(at.package)
    of_rates, timer = at.callbacks.LearningRateMonitor("step"), at.callbacks.Timer("00:00:05:00")
    files = [loggers.CSVLogger("csv"), loggers.TensorBoardLogger("tb")]
    run = at.trainer(logger=[*files, Keeps()], callbacks=[of_rates, timer])
    run.fit(Logs(), data(12), data(8))
    run.test(run.lightning_module, data(8), verbose=False)
    with open(f"{run.log_dir}/metrics.csv") as file:
        rows = [[*sorted(k for k, v in row.items() if v), row["step"]] for row in csv.DictReader(file)]
    events = EventAccumulator(run.loggers[1].log_dir).Reload()
    epochs = sorted((event.step, event.value) for event in events.Scalars("epoch"))
    return rows, epochs, [one for one in kept if one != "success"], "success" in kept


def files_that_experiment_opens_are_closed(at):
    class Closed(loggers_of(at.package).TensorBoardLogger):
        def finalize(self, status):
            super().finalize(status)
            found.append((status, self.experiment.file_writer is None))

    found, logger = [], Closed("tb")
    run = at.trainer(logger=logger)
    logger.experiment.add_scalar("before", 1.0, 0)
    run.fit(at.Net(), data(12), data(8))
    run.validate(run.lightning_module, data(8), verbose=False)
    logger.experiment.add_scalar("after", 2.0, 5)
    logger.experiment.flush()
    events = EventAccumulator(run.log_dir).Reload()
    return found, [events.Scalars(tag)[0].value for tag in ("before", "after")]


def sanity_check_of_a_second_fit(at):
    class Watch(at.L.Callback):
        def on_sanity_check_start(self, trainer, pl_module):
            found.append(("sanity check", trainer.global_step))

        def on_sanity_check_end(self, trainer, pl_module):
            found.append("its end")

        def on_train_start(self, trainer, pl_module):
            found.append(sorted(trainer.callback_metrics))

        def on_validation_end(self, trainer, pl_module):
            found.append((trainer.global_step, trainer.sanity_checking))

    found = []
    every = at.callbacks.ModelCheckpoint(
        "kept", every_n_train_steps=3, save_top_k=-1, filename="{step}", save_on_train_epoch_end=False
    )
    epochs = at.callbacks.ModelCheckpoint("epochs", save_top_k=-1, filename="{epoch}")
    run = at.trainer(callbacks=[Watch(), every, epochs])
    run.fit(at.Net(), data(16), data(8))
    run.fit_loop.max_epochs = 3
    run.fit(run.lightning_module, data(16), data(8))
    for path in ("kept/step=6.ckpt", "epochs/epoch=1.ckpt"):
        found.append(path)
        at.trainer(max_epochs=3, callbacks=[Watch()]).fit(at.Net(), data(16), data(8), ckpt_path=path)
    return found


def data_of_evaluations(at):
    class Tests(at.Net):
        def test_step(self, batch, batch_idx):
            seen.append((self.trainer.num_test_batches, len(self.trainer.test_dataloaders)))

        def predict_step(self, batch, batch_idx):
            seen.append((self.trainer.num_predict_batches, len(self.trainer.predict_dataloaders)))

    seen, run = [], at.trainer(limit_test_batches=3)
    run.test(Tests(), data(), verbose=False)
    run.predict(Tests(), data(8))
    return seen, run.device_ids, run.distributed_sampler_kwargs, run.ckpt_path


# -- Fabric ----------------------------------------------------------------------------------------


def loop(at, name, **options):
    """What a program of the folder fabric/ returns, with its import lines changed."""
    file = Path(__file__).parent / "fabric" / f"{name}.py"
    source = file.read_text().replace("import lightning as L", f"import {at.package} as L")
    program = types.ModuleType(f"fabric_{name}")
    sys.modules[program.__name__] = program
    exec(compile(source.replace("from lightning.", f"from {at.package}."), file, "exec"), vars(program))
    return program.main(**options)


def fabric_of_a_gan(at):
    return loop(at, "gan")


def fabric_of_a_resumed_run(at):
    return loop(at, "resume"), loop(at, "resume", precision="bf16-mixed")


def fabric_of_a_gpt(at):
    found = loop(at, "gpt")
    with open("out/gpt/version_0/metrics.csv") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return found, rows


def fabric_of_meta_learning(at):
    return loop(at, "maml")


def small_fit(at, model=None, **options):
    """Two epochs of a small net: its losses, norms and weights."""
    torch.manual_seed(4)
    fabric = at.L.Fabric(**{"accelerator": "cpu", "devices": 1} | options)
    model = model or nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.02))
    found = []
    for inputs, targets in [*fabric.setup_dataloaders(data(22))] * 2:
        with fabric.autocast():
            loss = nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        norm = fabric.clip_gradients(model, optimizer, max_norm=0.5, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        found.append((float(loss), repr(float(norm)), str(loss.dtype)))
    return found, [p.tolist() for p in model.parameters()], str(next(model.parameters()).dtype)


def fabric_precisions(at):
    names = (None, 32, "bf16-mixed", "16-mixed", "bf16-true", "64-true")
    return [small_fit(at, precision=name) for name in names]


def fabric_loss_scale(at):
    if at.package == "lightning":
        plugins = import_module(at.package + ".fabric.plugins")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=2)
        options = {"plugins": plugins.MixedPrecision("16-mixed", "cpu", scaler)}
    else:
        strategies = import_module("paceline.strategies")
        options = {"precision": strategies.AutocastFP16(2.0**30, growth_interval=2)}
    return small_fit(at, **options)


def fabric_clipping_by_value(at):
    fabric = at.L.Fabric(accelerator="cpu", devices=1)
    model = nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1.0))
    fabric.backward(model(torch.ones(2, 3)).sum(), retain_graph=True)
    found = fabric.clip_gradients(model, optimizer, clip_val=0.5)
    return found, [p.grad.tolist() for p in model.parameters()]


def fabric_closure(at):
    fabric = at.L.Fabric(accelerator="cpu", devices=1)
    model, inputs = nn.Linear(3, 1), torch.ones(2, 3)
    model, optimizer = fabric.setup(model, torch.optim.LBFGS(model.parameters(), lr=0.1))

    def closure():
        optimizer.zero_grad()
        loss = (model(inputs) - 1).square().mean()
        fabric.backward(loss)
        return loss

    return [float(optimizer.step(closure)) for _ in range(3)], model.weight.tolist()


def fabric_values_of_one_rank(at):
    fabric = at.L.Fabric(accelerator="cpu", devices=1)
    values = {"a": 1, "b": [2.5, torch.ones(2)], "c": (True,), "d": np.arange(2.0)}
    mapped = [fabric.all_gather(values), fabric.all_reduce(values), fabric.all_reduce(3.0, reduce_op="sum")]
    place = fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.world_size
    fabric.barrier("here")
    with fabric.rank_zero_first(), fabric.rank_zero_first(local=True):
        found = fabric.broadcast({"a": [1]}, src=0)
    device = str(fabric.to_device([torch.ones(1)])[0].device), str(fabric.device)
    first = fabric.is_global_zero, str(fabric.strategy.root_device), fabric.launch(lambda fabric, x: x, 7)
    return repr(mapped), place, found, device, first


def fabric_callbacks_and_loggers(at):
    class Notes:
        def on_epoch_end(self, results):
            found.append(results)

        def on_after_setup(self, fabric, module):
            found.append(type(fabric).__name__)

        def on_after_optimizer_step(self, strategy, optimizer):
            found.append(type(optimizer).__name__)

    class Keeps:
        def log_metrics(self, metrics, step=None):
            found.append((dict(metrics), step))

        def on_epoch_end(self, **given):
            found.append(sorted(given))

    found, loggers = [], import_module(at.package + ".fabric.loggers")
    csv_logger = loggers.CSVLogger(root_dir="logs", name="run", flush_logs_every_n_steps=1)
    keeps = Keeps()
    fabric = at.L.Fabric(
        accelerator="cpu", devices=1, callbacks=[Notes(), keeps], loggers=[keeps, csv_logger]
    )
    model = nn.Linear(1, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    fabric.call("on_epoch_end", results=3, more=4)
    fabric.call("on_nothing")
    fabric.log("loss", torch.tensor(0.5))
    fabric.log_dict({"a": 1.0, "b": 2}, step=7)
    fabric.print("printed")
    with open("logs/run/version_0/metrics.csv") as file:
        rows = [{n: v for n, v in row.items() if v} for row in csv.DictReader(file)]
    numbers = [{n: float(v) for n, v in row.items()} for row in rows]
    return found, numbers, fabric.logger is keeps, len(fabric.loggers)


def fabric_wrapped_objects(at):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.calls = nn.Linear(2, 2), 0

        def forward(self, inputs):
            self.calls += 1
            return self.layer(inputs)

        def encode(self, inputs, scale=1.0):
            return self(inputs) * scale

    wrappers = import_module(at.package + ".fabric")
    fabric, plain_one = at.L.Fabric(accelerator="cpu", devices=1), Encoder()
    module = fabric.setup_module(plain_one)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    module.mark_forward_method("encode")
    inputs = torch.ones(1, 2)
    same = torch.equal(module.encode(inputs, scale=2.0), module(inputs) * 2)
    module.note, module.calls = "kept", 5
    module.eval()
    modes = module.training, plain_one.training, plain_one.layer.training
    fabric.backward(module(inputs).sum())
    optimizer.step()
    state = [*module.state_dict()], sorted(optimizer.state_dict()["param_groups"][0].items(), key=str)
    kinds = isinstance(optimizer, torch.optim.SGD), isinstance(optimizer.optimizer, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scheduler.step()
    rates = (
        scheduler.get_last_lr(),
        optimizer.param_groups[0]["lr"],
        optimizer.optimizer.param_groups[0]["lr"],
    )
    wrapped = wrappers.is_wrapped(module), wrappers.is_wrapped(optimizer), wrappers.is_wrapped(plain_one)
    names = plain_one.note, plain_one.calls, module.calls, module.module is plain_one
    return same, names, modes, repr(state), kinds, rates, wrapped, module.layer.weight.tolist()


def fabric_files(at):
    fabric, model = at.L.Fabric(accelerator="cpu", devices=1), nn.Linear(2, 1)
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    fabric.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    state = {"model": model, "optimizer": optimizer, "step": 3, "more": {"names": ["a"]}}
    fabric.save("folder/state.ckpt", state, filter={"model": lambda name, value: name != "bias"})
    saved = torch.load("folder/state.ckpt", weights_only=True)
    weight = model.weight.tolist()
    torch.save({"weight": torch.zeros(1, 2), "bias": torch.ones(1)}, "raw.pt")
    fabric.load_raw("raw.pt", model)
    raw = [p.tolist() for p in model.parameters()]
    loaded = {"model": model, "step": 0}
    rest = fabric.load("folder/state.ckpt", loaded, strict=False)
    found = loaded["step"], sorted(rest), rest["more"], model.weight.tolist() == weight
    everything = sorted(fabric.load("folder/state.ckpt"))
    return repr(saved), raw, found, loaded["model"] is model, everything


def fabric_places_and_dtypes(at):
    found = []
    for precision in ("32-true", "bf16-true", "64-true"):
        fabric = at.L.Fabric(accelerator="cpu", devices=1, precision=precision)
        with fabric.init_module(), fabric.init_tensor():
            made = nn.Linear(1, 1).weight, torch.ones(1)
        model = fabric.setup(nn.Linear(1, 1))
        found.append([str(one.dtype) for one in (*made, model.weight, model(torch.ones(1, 1)))])
    return found, str(torch.get_default_dtype())


def fabric_that_runs(at):
    class Mine(at.L.Fabric):
        def run(self, lr, steps=2):
            model = nn.Linear(1, 1)
            model, optimizer = self.setup(model, torch.optim.SGD(model.parameters(), lr=lr))
            for _ in range(steps):
                self.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
            return model.weight.tolist()

    return Mine(accelerator="cpu", devices=1).run(0.5, steps=3)


def fabric_refuses(at):
    def refused(function):
        try:
            function()
        except (ValueError, TypeError, RuntimeError):
            return True
        return False

    fabric, model = at.L.Fabric(accelerator="cpu", devices=1), nn.Linear(1, 1)
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(data(8))
    fabric.backward(wrapped(torch.full((1, 1), torch.inf)).sum())
    calls = (
        lambda: fabric.setup(wrapped),
        lambda: fabric.setup_module(wrapped),
        lambda: fabric.setup_optimizers(optimizer),
        lambda: fabric.setup_optimizers(),
        lambda: fabric.setup_dataloaders(loader),
        lambda: fabric.setup_dataloaders([1]),
        lambda: fabric.clip_gradients(wrapped, optimizer),
        lambda: fabric.clip_gradients(wrapped, optimizer, clip_val=1.0, max_norm=1.0),
        lambda: fabric.clip_gradients(wrapped, optimizer, max_norm=1.0),
        lambda: fabric.no_backward_sync(model).__enter__(),
        lambda: fabric.launch(lambda: None),
        lambda: fabric.save("a.ckpt", {}, filter={"model": callable}),
        lambda: at.L.Fabric(accelerator="nothing"),
        lambda: at.L.Fabric(precision="17-mixed"),
    )
    return [refused(call) for call in calls]


def epoch_ended_by_batch_start(at):
    """-1 of on_train_batch_start ends an epoch; schedules of steps count that batch."""
    seen = []

    class Net(at.Net):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            schedules = [
                {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "step"},
                {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9), "interval": "epoch"},
            ]
            return [optimizer], schedules

        def on_train_batch_start(self, batch, batch_idx):
            seen.append((self.current_epoch, batch_idx, self.optimizers().param_groups[0]["lr"]))
            return -1 if self.current_epoch == 1 and batch_idx == 2 else None

    module, trainer = Net(), at.trainer(max_epochs=-1, max_steps=12)
    trainer.fit(module, data(16))
    return seen, trainer.global_step, trainer.estimated_stepping_batches, norm(module)


def stopped_at_epoch_start(at):
    """A stop that on_train_epoch_start asks for: the epoch has no batch, and is counted."""
    called = []

    class Net(at.Net):
        def on_train_epoch_start(self):
            self.trainer.should_stop = self.current_epoch == 1

        def on_train_batch_start(self, batch, batch_idx):
            called.append(batch_idx)

        def on_train_epoch_end(self):
            called.append("end")

    module, trainer = Net(), at.trainer(max_epochs=4)
    trainer.fit(module, data(8), data(8))
    return called, trainer.global_step, trainer.current_epoch, trainer.should_stop, norm(module)


def epoch_after_a_validation(at):
    module, trainer = at.Net(), at.trainer(max_epochs=-1, max_steps=11)
    trainer.fit(module, data(16), data(8))
    before = trainer.current_epoch
    trainer.validate(module, data(8), verbose=False)
    return before, trainer.current_epoch, trainer.global_step


def prefixes_of_loggers(at):
    loggers = loggers_of(at.package)
    files = loggers.CSVLogger("csv", prefix="run")
    board = loggers.TensorBoardLogger("board", prefix="mine")
    trainer = at.trainer(logger=[files, board], max_epochs=1)
    trainer.fit(at.Net(), data(8), data(8))
    files.log_metrics({"own": 1.5}, step=7)
    files.save()
    with open(Path(files.log_dir) / "metrics.csv") as opened:
        rows = [{n: round(float(v), 4) for n, v in row.items() if v} for row in csv.DictReader(opened)]
    read = EventAccumulator(board.log_dir)
    read.Reload()
    return rows, sorted(read.Tags()["scalars"])


def momenta_of_a_monitor(at):
    class Own(loggers_of(at.package).Logger):
        name = version = "own"

        def __init__(self):
            super().__init__()
            self.rows = []

        def log_hyperparams(self, *args, **kwargs):
            pass

        def log_metrics(self, metrics, step=None):
            self.rows.append((step, sorted(metrics)))

    own = Own()
    monitor = at.callbacks.LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    at.trainer(logger=own, callbacks=[monitor], log_every_n_steps=2).fit(at.Net(), data(16))
    return own.rows


def only_the_last_checkpoint(at):
    class Mine(at.callbacks.ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "newest"
        FILE_EXTENSION = ".pt"

    found = []
    for options in ({}, {"monitor": "val_loss"}, {"monitor": "val_loss", "every_n_train_steps": 2}):
        folder = f"at-{len(found)}"
        callback = Mine(folder, save_top_k=0, save_last=True, **options)
        module = at.Net()
        at.trainer(callbacks=[callback]).fit(module, data(16), data(8))
        file = torch.load(callback.last_model_path, weights_only=False)
        found.append(
            [
                sorted(os.listdir(folder)),
                callback.best_model_path,
                os.path.basename(callback.last_model_path),
                file["global_step"],
                torch.equal(file["state_dict"]["layer.weight"], module.layer.weight),
            ]
        )
    return found


def equal_values_of_checkpoints(at):
    """Of equal values the earliest goes; the dictionary is in the order of writing."""
    values = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 5.0, 1.0]

    class Net(at.Net):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", values[self.current_epoch])

    found = []
    for mode in ("min", "max"):
        callback = at.callbacks.ModelCheckpoint(
            mode, "{epoch}", monitor="val_loss", mode=mode, save_top_k=3
        )
        kept = []

        class Look(at.callbacks.Callback):
            def on_train_epoch_start(self, trainer, pl_module, callback=callback, kept=kept):
                path = callback.kth_best_model_path
                names = [Path(one).stem for one in callback.best_k_models]
                kept.append((names, path and Path(path).stem, float(callback.kth_value)))

        trainer = at.trainer(max_epochs=8, num_sanity_val_steps=0, callbacks=[callback, Look()])
        trainer.fit(Net(), data(8), data(8))
        found.append([kept, Path(callback.best_model_path).stem, sorted(os.listdir(mode))])
    return found


def states_in_a_checkpoint(at):
    """Of a callback that watches nothing, a timer and a data module, which the file can build again."""

    class Data(at.L.LightningDataModule):
        def __init__(self, size=8, note="none"):
            super().__init__()
            self.save_hyperparameters()
            self.given = self.took = 0

        def train_dataloader(self):
            self.given += 1
            return data(self.hparams.size)

        def state_dict(self):
            return {"given": self.given}

        def load_state_dict(self, state_dict):
            self.took = state_dict["given"]

    checkpoint = at.callbacks.ModelCheckpoint("here", "{epoch}", save_top_k=-1)
    trainer = at.trainer(callbacks=[checkpoint, at.callbacks.Timer()])
    trainer.fit(at.Net(), datamodule=Data(12, note="first"))
    file = torch.load("here/epoch=0.ckpt", weights_only=False)
    (key,) = [name for name in file if name.endswith("Data")]
    (state,) = [one for name, one in file["callbacks"].items() if name.startswith("ModelCheckpoint")]
    again = Data.load_from_checkpoint("here/epoch=1.ckpt", note="second")
    return [
        file[key],
        Path(state["best_model_path"]).name,
        float(state["kth_value"]),
        file["callbacks"]["Timer"]["time_elapsed"]["train"] > 0,
        dict(again.hparams),
        again.took,
    ]


def checkpoints_of_evaluations(at):
    """Which file a test takes of two callbacks, and what the trainer says of it."""
    module = at.Net()
    module.test_step = lambda batch, batch_idx: None
    first = at.callbacks.ModelCheckpoint("a", monitor="train_loss", mode="max")
    second = at.callbacks.ModelCheckpoint("b", monitor="val_loss", save_last=True)
    trainer = at.trainer(max_epochs=3, callbacks=[first, second])
    trainer.fit(module, data(16), data(8))
    found = []
    for ckpt_path in ("best", second.best_model_path, None):
        trainer.test(module, data(8), ckpt_path=ckpt_path, verbose=False)
        path = trainer.ckpt_path
        found.append((path and os.path.relpath(path), module.layer.weight.tolist()))
    return found


def logger_of_a_quick_run(at):
    trainer = at.trainer(logger=True, fast_dev_run=1)
    trainer.fit(at.Net(), data(8), data(8))
    trainer.logger.experiment.add_image("a", torch.zeros(3, 2, 2), 0)
    trainer.logger.log_image(key="samples", images=[])
    return type(trainer.logger).__name__, len(trainer.loggers), trainer.log_dir, sorted(os.listdir("."))


def combined_loader_of_a_trainer(at):
    combined = import_module(at.package + ".pytorch.utilities").CombinedLoader
    seen = []

    class Net(at.Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["a"], batch_idx)

        def on_train_start(self):
            given = self.trainer.train_dataloader
            seen.append((type(given).__name__, sorted(given)))

    loaders = {"a": data(8), "b": data(16)}
    at.trainer(max_epochs=1).fit(Net(), combined(loaders, "max_size_cycle"))
    at.trainer(max_epochs=1).fit(Net(), loaders)
    return seen


def combined_loaders_that_are_read_by_a_program(at):
    combined, found = import_module(at.package + ".pytorch.utilities").CombinedLoader, []
    for mode in ("min_size", "max_size", "max_size_cycle"):
        loader = combined({"a": range(2), "b": range(5)}, mode)
        iter(loader)
        found.append((isinstance(loader, combined), len(loader), [*loader], len(loader.flattened)))
    return found


def stop_that_early_stopping_asked_for(at):
    class Worse(at.Net):
        def validation_step(self, batch, batch_idx):
            self.log("worse", float(self.global_step))

    early = at.callbacks.EarlyStopping("worse", patience=1)
    trainer = at.trainer(callbacks=[early], max_epochs=9)
    trainer.fit(Worse(), data(8), data(8))
    before = trainer.should_stop, trainer.current_epoch
    trainer.fit_loop.max_epochs = 12
    trainer.validate(Worse(), data(8))
    return before, trainer.should_stop, trainer.current_epoch


def hyperparameters_that_a_subclass_ignores(at):
    class Base(at.Net):
        def __init__(self, width=2):
            super().__init__()
            self.save_hyperparameters()

    class Derived(Base):
        def __init__(self, teacher, width=3):
            super().__init__(width)
            self.save_hyperparameters(ignore=["teacher"])

    module = Derived(nn.Linear(1, 1))
    return dict(module.hparams), dict(module.hparams_initial)


def mixed_precision_of_a_weight_used_twice(at):
    """In bfloat16 the gradients of its uses add up in float32."""

    class Net(at.Net):
        def __init__(self):
            super().__init__()
            self.square = nn.Linear(3, 3)

        def forward(self, inputs):
            for _ in range(4):
                inputs = self.square(inputs)
            return self.layer(inputs)

    module = Net()
    at.trainer(precision="bf16-mixed").fit(module, data(16))
    return module.square.weight.tolist(), torch.is_autocast_cache_enabled()


def steps_after_another_module(at):
    """An evaluation of another module leaves the trainer's counters as they are."""

    class Manual(at.Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for _ in range(2):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(self(batch[0]).mean())
                optimizer.step()

    trainer = at.trainer()
    trainer.fit(Manual(), data(16))
    found = [trainer.global_step, trainer.current_epoch]
    trainer.validate(Manual(), data(8), verbose=False)
    return [*found, trainer.global_step, trainer.current_epoch]


def first_epoch_without_a_batch(at):
    """on_train_batch_start returns -1 for the first batch of the first epoch."""

    class Net(at.Net):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 0 else None

    module, trainer = Net(), at.trainer()
    trainer.fit(module, data(8))
    return trainer.global_step, trainer.current_epoch, norm(module)


CASES = [
    one
    for one in [*vars().values()]
    if inspect.isfunction(one) and [*inspect.signature(one).parameters] == ["at"]
]


def main(package, out):
    """Run all cases, each in a folder of its own."""
    at, found = room(package), {"made_with": made_with()}
    for case in CASES:
        # A picture may still be drawn there when a case is over.
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        with folder as path, contextlib.chdir(path):
            torch.manual_seed(0)
            try:
                found[case.__name__] = case(at)
            except Exception:
                found[case.__name__] = traceback.format_exc()
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ["COLUMNS"] = "80"
    main(*sys.argv[1:])
