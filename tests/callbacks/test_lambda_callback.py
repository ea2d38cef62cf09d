"""LambdaCallback: functions in place of a class."""

import pytest
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.callbacks import Callback, LambdaCallback
from paceline.callbacks.hooks import HOOKS, HookTable


def fit(*callbacks, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 1}
    trainer = Trainer(callbacks=callbacks, **(usual | settings))
    trainer.fit(Net(), data(), data())
    return trainer


def test_each_function_is_called_in_its_hook_with_as_many_arguments_as_it_takes():
    seen = []
    fit(
        LambdaCallback(
            on_step_end=lambda trainer, outputs: seen.append((trainer.global_step, len(outputs))),
            on_validation_step_end=lambda trainer, output: seen.append("validated"),
            on_fit_end=lambda *args: seen.append(len(args)),
        ),
        sanity_val_batches=0,
    )
    assert seen == [(1, 1), (2, 1), (3, 1), "validated", "validated", "validated", 1]


def test_every_hook_may_be_given():
    seen = []
    hooks = {name: lambda trainer, *rest, name=name: seen.append(name) for name in HOOKS}
    fit(LambdaCallback(**hooks))
    assert set(seen) >= {"on_setup", "on_step_start", "on_before_optimizer_step", "on_teardown"}


def test_hooks_that_are_not_given_cost_nothing():
    given = lambda trainer: None
    table = HookTable(Callback(), [LambdaCallback(on_fit_end=given)])
    assert {name: table[name] for name in HOOKS if table[name]} == {"on_fit_end": (given,)}


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(PacelineError) as caught:
        LambdaCallback(on_step_ends=print, on_train_batch_end=print, zzz=print, on_fit_end=3)
    assert str(caught.value).splitlines() == [
        "LambdaCallback: 4 invalid arguments",
        "  on_step_ends: no hook of a run; did you mean on_step_end?",
        "  on_train_batch_end: no hook of a run; did you mean on_step_end?",
        "  zzz: no hook of a run",
        "  on_fit_end: got 3; allowed: a function",
    ]


def test_a_module_s_own_hooks_are_none_of_a_callback():
    with pytest.raises(PacelineError, match="on_after_batch_transfer: no hook of a run"):
        LambdaCallback(on_after_batch_transfer=print)


def test_two_of_them_have_names():
    seen = []
    one, two = (LambdaCallback(name=n, on_fit_end=lambda t, n=n: seen.append(n)) for n in ("one", "two"))
    fit(one, two)
    assert seen == ["one", "two"]
    with pytest.raises(PacelineError, match="two of LambdaCallback; give each a name="):
        fit(LambdaCallback(), LambdaCallback())
