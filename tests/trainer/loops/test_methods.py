"""Hooks and methods that a run cannot call as they are, or would never call: errors before compute."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.small_net import Net, data

from paceline import DataModule, PacelineError, Trainer
from paceline.callbacks import Callback, LambdaCallback
from paceline.callbacks.hooks import HOOKS
from paceline.other_trainers.methods import CALLBACK_METHODS, MODULE_METHODS


class Counted(Net):
    """Counts its steps: a mistake is answered before the first."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return super().training_step(batch)


def quiet(**settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_steps": 1}
    return Trainer(**(usual | settings))


def methods(base, **given):
    """An object of a subclass with these methods, written as a user writes them: ``name="arguments"``."""
    lines = "\n".join(f"def {name}(self, {arguments}): return None" for name, arguments in given.items())
    namespace: dict = {}
    exec(lines, {}, namespace)
    return type("Mine", (base,), namespace)()


def refused(module, callbacks=(), datamodule=None, verb="fit"):
    if not isinstance(module, Net):
        callbacks, module = [module], Counted()
    prepared = []
    module.prepare_data = lambda: prepared.append(True)
    trainer = quiet(callbacks=callbacks)
    with pytest.raises(PacelineError) as caught:
        getattr(trainer, verb)(module, data(), **({} if datamodule is None else {"datamodule": datamodule}))
    assert not prepared
    assert not getattr(module, "steps", 0)
    assert trainer.stage == ""
    text = str(caught.value)
    assert len(text.splitlines()) <= 9, text  # the head of a traceback and the user's line are three more
    return text


@pytest.mark.parametrize("base", [Counted, Callback])
@pytest.mark.parametrize(
    ("hook", "arguments", "problem", "fix"),
    [
        ("on_before_optimizer_step", "optimizer", "'optimizer' would be the trainer", "trainer, optimizer"),
        ("on_save_checkpoint", "checkpoint", "'checkpoint' would be the trainer", "trainer, state"),
        ("on_load_checkpoint", "checkpoint", "'checkpoint' would be the trainer", "trainer, state"),
        (
            "on_train_epoch_end",
            "trainer, pl_module",
            "asks for more",
            "trainer); the module is trainer.module",
        ),
        (
            "on_train_epoch_end",
            "pl_module",
            "'pl_module' would be the trainer",
            "the module is trainer.module",
        ),
        (
            "on_fit_start",
            "pl_module=None",
            "'pl_module' would be the trainer",
            "the module is trainer.module",
        ),
        ("on_step_start", "batch, batch_idx", "'batch' would be the trainer", "trainer, batches"),
        ("on_step_start", "trainer, batch", "'batch' would be the list of the step's micro-b", "batches"),
        ("on_step_end", "outputs", "'outputs' would be the trainer", "trainer, outputs"),
        ("on_step_end", "trainer, outputs, batch, batch_idx", "asks for more", "trainer, outputs"),
        ("on_step_end", "args, state, control, **kwargs", "asks for more", "trainer.settings"),
        ("on_step_end", "trainer, *, outputs", "asks for more", "trainer, outputs"),
        ("on_setup", "stage", "'stage' would be the trainer", "trainer, stage"),
        ("on_exception", "trainer, pl_module, exception", "asks for more", "trainer, error"),
        ("on_train_epoch_start", "epoch", "'epoch' would be the trainer", "the epoch is trainer.epoch"),
        ("on_validation_end", "metrics", "'metrics' would be the trainer", "values are in trainer.metrics"),
    ],
)
def test_a_hook_that_wants_something_else_is_an_error_at_fit(base, hook, arguments, problem, fix):
    text = refused(methods(base, **{hook: arguments}))
    assert f"Mine.{hook}" in text
    assert problem in text
    assert f"fix: def {hook}(self, " in text
    assert fix in text.partition("fix: ")[2]


@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("on_step_end", "*args"),
        ("on_step_end", "*args, **kwargs"),
        ("on_step_end", ""),
        ("on_step_end", "anything"),
        ("on_step_end", "_, everything, more=3"),
        ("on_before_optimizer_step", "trainer, opt"),
        ("on_save_checkpoint", "trainer, checkpoint"),
        ("on_exception", "trainer, exception"),
        # As Lightning has them, without pl_module.
        ("on_validation_step_end", "trainer, outputs, batch, batch_idx, dataloader_idx=0"),
    ],
)
@pytest.mark.parametrize("base", [Counted, Callback])
def test_a_hook_that_takes_what_it_gets_is_called(base, hook, arguments):
    mine = methods(base, **{hook: arguments})
    module = mine if base is Counted else Counted()
    quiet(callbacks=[] if base is Counted else [mine]).fit(module, data(), data())
    assert module.steps == 1


def test_a_function_as_a_hook_is_checked_too():
    assert "'outputs' would be the trainer" in refused(LambdaCallback(on_step_end=lambda outputs: None))
    fits = LambdaCallback(on_step_end=lambda trainer, outputs: None, on_fit_end=print)
    quiet(callbacks=fits).fit(Counted(), data())


def test_all_that_is_wrong_is_one_report():
    module = methods(
        Counted,
        on_train_batch_start="batch, batch_idx",
        on_before_optimizer_step="optimizer",
        configure_gradient_clipping="optimizer, gradient_clip_val, gradient_clip_algorithm",
        optimizer_step="epoch, batch_idx, optimizer, optimizer_closure",
    )
    callback = methods(Callback, on_train_epoch_end="trainer, pl_module", setup="trainer, pl_module, stage")
    text = refused(module, [callback])
    assert text.splitlines()[0] == "fit: 6 invalid methods"
    for part in (
        "Mine.on_train_batch_start is no hook of a run, so it would never be called; did you mean on_st",
        "Mine.on_before_optimizer_step: its argument 'optimizer' would be the trainer",
        "Mine.configure_gradient_clipping would never be called",
        "Mine.optimizer_step asks for more arguments than it is called with",
        "fix: def optimizer_step(self, optimizer, closure)",
        "Mine.on_train_epoch_end asks for more",
        "fix: def on_setup(self, trainer, stage)",
    ):
        assert part in text


def test_a_long_report_counts_the_rest():
    hooks = dict.fromkeys(HOOKS, "trainer, pl_module, one, two, three")
    assert refused(methods(Counted, **hooks)).splitlines()[-1] == f"  and {len(HOOKS) - 6} more"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, ", ".join((*method.arguments, "*rest"))) for name, method in MODULE_METHODS.items()],
)
def test_a_method_that_other_trainers_call_is_an_error(name, arguments):
    text = refused(methods(Counted, **{name: arguments}))
    assert f"Mine.{name} would never be called: it is a method of other trainers" in text
    assert f"fix: {MODULE_METHODS[name].fix}; or give a method of your own another name" in text


@pytest.mark.parametrize("name", CALLBACK_METHODS)
def test_a_method_that_other_trainers_call_of_a_callback_is_an_error(name):
    arguments = ", ".join((*CALLBACK_METHODS[name].arguments, "*rest"))
    text = refused(methods(Callback, **{name: arguments}))
    assert f"Mine.{name} would never be called" in text
    assert CALLBACK_METHODS[name].fix in text


def test_helpers_of_the_author_are_theirs():
    class Helped(Counted):
        def training_step(self, batch, batch_idx):
            self.compute_metrics(3)
            return self.loss(batch[0], batch)

        def loss(self, outputs, batch):
            return super().training_step(batch, 0)

        def compute_loss(self, batch):
            """Others' has other arguments."""

        def compute_metrics(self, eval_pred):
            """Called by a step."""

    class Ready(Callback):
        def setup(self):
            """Of the user's script."""

    quiet(callbacks=Ready()).fit(module := Helped(), data())
    assert module.steps == 1


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("training_step", "model, inputs", "'model' would be the batch"),
        ("training_step", "batch_idx, batch", "'batch_idx' would be the batch"),
        ("training_step", "batch, batch_idx, optimizer_idx", "several optimizers need manual optimization"),
        ("training_step", "dataloader_iter", "'dataloader_iter' would be the batch"),
        ("training_step", "", "takes fewer arguments"),
        ("validation_step", "batch, batch_idx, dataloader_idx, more", "asks for more"),
        (
            "lr_scheduler_step",
            "scheduler, optimizer_idx, metric",
            "def lr_scheduler_step(self, scheduler, metric)",
        ),
        ("backward", "loss, optimizer", "def backward(self, loss)"),
        (
            "optimizer_step",
            "epoch, batch_idx, optimizer, closure",
            "def optimizer_step(self, optimizer, closure)",
        ),
        ("optimizer_step", "optimizer", "takes fewer arguments"),
        ("configure_optimizers", "parameters", "def configure_optimizers(self)"),
        ("on_after_batch_transfer", "trainer, batch", "'trainer' would be the batch"),
        ("transfer_batch_to_device", "batch, dataloader_idx", "'dataloader_idx' would be the device"),
        ("setup", "trainer, stage", "def setup(self, stage)"),
        ("train_dataloader", "epoch", "def train_dataloader(self)"),
    ],
)
def test_steps_and_data_methods_are_checked_with_the_hooks(method, arguments, expected):
    text = refused(methods(Counted, **{method: arguments}))
    assert f"Mine.{method}" in text
    assert expected in text


def test_a_step_of_another_stage_may_be_anything():
    module = methods(Net, test_step="one, two, three, four")
    quiet().fit(module, data())
    quiet().validate(module, data())
    assert "Mine.test_step asks for more" in refused(module, verb="test")


def test_setup_and_teardown_may_leave_out_the_stage():
    called = []

    class Sets(Net):
        def setup(self):
            called.append("setup")

        def teardown(self):
            called.append("teardown")

    class Data(DataModule):
        def setup(self):
            called.append("data")

        def train_dataloader(self):
            return data()

        def teardown(self, stage=None):
            called.append(stage)

    quiet().fit(Sets(), datamodule=Data())
    assert called == ["data", "setup", "fit", "teardown"]


def test_a_datamodule_is_checked():
    mine = methods(
        DataModule, on_exception="error", val_dataloader="more", on_after_batch_transfer="trainer"
    )
    text = refused(Counted(), datamodule=mine)
    assert "Mine.on_exception would never be called" in text
    assert "Mine.val_dataloader asks for more" in text
    assert re.search(r"Mine\.on_after_batch_transfer: its argument 'trainer' would be the batch", text)


def test_own_backward_of_manual_optimization_is_a_helper():
    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch):
            self.backward(super().training_step(batch), self.optimizers())

        def backward(self, loss, optimizer):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    before = (module := Manual()).state_dict()["net.weight"].clone()
    quiet().fit(module, data())
    assert not torch.equal(module.net.weight, before)
