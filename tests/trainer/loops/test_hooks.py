"""Every hook in its place: the order in a real run against the listing in docs/extending/loop.md."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.trainers import fitted, quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.callbacks.hooks import HOOKS

PAGE = Path(__file__).parents[3] / "docs" / "extending" / "loop.md"
_CALLS = r"\b(on_\w+|validate|prepare_data|setup|training_step|validation_step)\("


def page_sections() -> dict[str, list[str]]:
    """The names in the page's pseudo-code, in order, under ``fit`` and ``validate``."""
    sections: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").split("```")[1].splitlines()[1:]:
        code = line.split("#")[0]
        if code and not code.startswith(" "):
            found = sections.setdefault(code.partition("(")[0], [])
        elif code:
            found += re.findall(_CALLS, code)
    return sections


SECTIONS = page_sections()
FIT, VALIDATE = SECTIONS["fit"], SECTIONS["validate"]


def between(first: str, last: str) -> list[str]:
    """The page's names from ``first`` to ``last``, both included."""
    return FIT[FIT.index(first) : FIT.index(last) + 1]


def expand(names: list[str], batches: int = 1) -> list[str]:
    """``validate()`` replaced by what the page says happens in it."""
    start, *steps, end = VALIDATE
    whole = [start, *steps * batches, end]
    return [one for name in names for one in (whole if name == "validate" else [name])]


def without(names: list[str], *left_out: str) -> list[str]:
    return [name for name in names if name not in left_out]


def recording(name: str):
    def record(self, *args):
        self.calls.append((self.who, name))

    return record


class Watcher(Callback):
    who = "callback"

    def __init__(self, calls):
        self.calls = calls


class Module(TrainModule):
    who = "module"

    def __init__(self, calls=None, fails=False):
        super().__init__()
        self.calls = [] if calls is None else calls
        self.fails = fails
        self.net = nn.Linear(2, 1)

    def prepare_data(self):
        self.calls.append((self.who, "prepare_data"))

    def setup(self, stage):
        self.calls.append((self.who, "setup"))

    def training_step(self, batch, batch_idx):
        self.calls.append((self.who, "training_step"))
        if self.fails:
            raise RuntimeError("no luck")
        return F.mse_loss(self.net(batch[0]), batch[1])

    def _evaluate(self, name, batch):
        self.calls.append((self.who, name))
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return self._evaluate("validation_step", batch)

    def test_step(self, batch, batch_idx):
        return self._evaluate("test_step", batch)

    def predict_step(self, batch, batch_idx):
        return self._evaluate("predict_step", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


for _name in HOOKS:
    setattr(Watcher, _name, recording(_name))
    setattr(Module, _name, recording(_name))


def loader(samples: int = 4, batch_size: int = 4) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 2, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size)


@pytest.fixture
def trained(tmp_path):
    """A trainer whose module and one callback write down every call; checkpoints are on."""
    calls: list[tuple[str, str]] = []

    def make(*callbacks, **settings):
        calls.clear()
        settings = {"max_epochs": 1, "sanity_val_batches": 1, "progress": False} | settings
        watchers = [Watcher(calls), *callbacks]
        return Trainer(callbacks=watchers, loggers=False, run_dir=tmp_path / "runs", **settings)

    make.calls = calls
    return make


def of(calls, who="module"):
    return [name for owner, name in calls if owner == who]


def seen_by_callback(names):
    """A callback is called at the hooks only."""
    return [name for name in names if name.startswith("on_")]


def test_the_page_names_every_hook():
    same = ("on_test_", "on_predict_")  # "the same, with their own names"
    own = [name for name in HOOKS if not name.startswith(same)]
    assert sorted(set(seen_by_callback(FIT + VALIDATE))) == sorted(own)
    for name in HOOKS:
        if name.startswith(same):
            assert re.sub("_(test|predict)_", "_validation_", name) in VALIDATE


def test_fit_with_validation_follows_the_page(trained):
    trained().fit(Module(trained.calls), loader(), loader())
    expected = expand(without(FIT, "on_load_checkpoint", "on_exception"))
    assert of(trained.calls) == expected
    assert of(trained.calls, "callback") == seen_by_callback(expected)


def test_epochs_steps_and_micro_batches_repeat_as_the_page_indents_them(trained):
    trainer = trained(max_epochs=2, accumulate=2)
    trainer.fit(Module(trained.calls), loader(16, 4), loader(8, 4))
    step = between("on_step_start", "on_step_end")
    step.insert(step.index("training_step"), "training_step")
    last_validate = len(FIT) - 1 - FIT[::-1].index("validate")
    ending = FIT[last_validate : FIT.index("on_step_boundary")]
    epoch = ["on_train_epoch_start", *step, "on_step_boundary", *step]
    epoch += [*expand(ending, 2), *between("on_step_boundary", "on_save_checkpoint")]
    head = without(FIT[: FIT.index("on_train_epoch_start")], "on_load_checkpoint")
    expected = [*expand(head, 1), *epoch, *epoch, "on_fit_end", "on_teardown"]
    assert of(trained.calls) == expected


def test_resume_follows_the_page(trained):
    trained().fit(Module(), loader(), loader())
    trained(max_epochs=2).fit(Module(trained.calls), loader(), loader(), resume="latest")
    # The sanity pass (the page's first validate) belongs to the beginning of a run.
    expected = without(FIT, "on_exception")
    expected.remove("validate")
    assert of(trained.calls) == expand(expected)
    assert of(trained.calls, "callback") == seen_by_callback(expand(expected))


def test_an_error_takes_the_pages_other_end(trained):
    with pytest.raises(RuntimeError, match="no luck"):
        trained().fit(Module(trained.calls, fails=True), loader(), loader())
    before = FIT[: FIT.index("training_step") + 1]
    expected = [*expand(without(before, "on_load_checkpoint")), "on_exception", "on_teardown"]
    assert of(trained.calls) == expected


@pytest.mark.parametrize(
    ("verb", "name"), [("test", "test"), ("predict", "predict"), ("validate", "validation")]
)
def test_evaluation_follows_the_page(trained, verb, name):
    getattr(trained(), verb)(Module(trained.calls), loader(8, 4))
    inside = [one.replace("validation", name) for one in expand(["validate"], 2)]
    assert of(trained.calls) == ["prepare_data", "setup", "on_setup", *inside, "on_teardown"]


def test_opening_hooks_call_callbacks_first_and_closing_hooks_the_module(trained):
    trained().fit(Module(), loader(), loader())
    calls = trained.calls
    trained(max_epochs=2).fit(Module(calls), loader(), loader(), resume="latest")
    with pytest.raises(RuntimeError):
        quiet(callbacks=Watcher(calls)).fit(Module(calls, fails=True), loader())
    for verb in ("test", "predict"):
        trainer = Trainer(callbacks=Watcher(calls), progress=False)
        getattr(trainer, verb)(Module(calls), loader())
    first: dict[str, str] = {}
    for who, name in calls:
        first.setdefault(name, who)
    opening = {"on_setup", "on_before_optimizer_step", "on_load_checkpoint"}
    for name in HOOKS:
        opens = name.endswith("_start") or name in opening
        assert first[name] == ("callback" if opens else "module"), name


def test_callbacks_come_as_given_and_checkpoints_last(tmp_path):
    calls = []

    class Named(Callback):
        def __init__(self, name):
            self.name = name

        def on_step_boundary(self):
            calls.append(self.name)

    class Late(Checkpoint):
        def on_step_boundary(self, trainer):
            calls.append("checkpoint")

    watchers = [Late(), Named("a"), Named("b")]
    Trainer(callbacks=watchers, progress=False, loggers=False, run_dir=tmp_path, max_steps=1).fit(
        Module(), loader()
    )
    assert calls == ["a", "b", "checkpoint"]


def test_trailing_arguments_may_be_omitted():
    seen = []

    class Short(Callback):
        def on_setup(self):
            seen.append("setup")

        def on_step_start(self, trainer):
            seen.append(("start", trainer.global_step))

        def on_step_end(self, anything, outputs):
            seen.append(("end", anything.global_step, len(outputs)))

        def on_validation_step_end(self, trainer, output):
            seen.append(("validation", type(output)))

        def on_teardown(self):
            seen.append("teardown")

        def on_before_optimizer_step(self, *everything):
            seen.append(("before", len(everything)))

    quiet(callbacks=Short(), max_steps=1, sanity_val_batches=0).fit(Module(), loader(), loader())
    assert seen == [
        "setup",
        ("start", 0),
        ("before", 2),
        ("end", 1, 1),
        ("validation", torch.Tensor),
        "teardown",
    ]


def test_hooks_get_what_they_are_documented_to_get():
    seen = {}

    class Look(Callback):
        def on_setup(self, trainer, stage):
            seen["stage"] = stage

        def on_step_start(self, trainer, batches):
            seen["batches"] = [len(batch[0]) for batch in batches]

        def on_step_end(self, trainer, outputs):
            seen["outputs"] = [output.requires_grad for output in outputs]

        def on_before_optimizer_step(self, trainer, optimizer):
            seen["optimizer"] = optimizer
            seen["gradient"] = trainer.module.net.weight.grad.norm().item()

        def on_validation_step_end(self, trainer, output, batch, batch_idx):
            seen.setdefault("validation", []).append((len(batch[0]), batch_idx))

        def on_validation_start(self, trainer):
            seen["modes"] = (trainer.module.net.training, torch.is_grad_enabled())

    clip = 1e-3
    trainer = quiet(callbacks=Look(), max_steps=1, accumulate=2, sanity_val_batches=0, clip_grad_norm=clip)
    trainer.fit(Module(), loader(6, 4), loader(6, 4))
    assert seen["stage"] == "fit"
    assert sum(seen["batches"]) == 6
    assert seen["outputs"] == [True, True]
    assert isinstance(seen["optimizer"], torch.optim.SGD)
    assert seen["gradient"] > 2 * clip  # not yet clipped
    assert seen["validation"] == [(4, 0), (2, 1)]
    assert seen["modes"] == (False, False)


def test_a_method_that_is_no_hook_is_refused_and_ours_is_shown():
    class Lightning(Module):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            """A name of another trainer."""

    class Typo(Callback):
        def on_fit_strat(self, trainer):
            """A slip of the keys."""

    with pytest.raises(PacelineError, match="on_train_batch_end") as raised:
        quiet().fit(Lightning(), loader())
    assert "did you mean: on_step_end?" in str(raised.value)
    assert "on_train_epoch_start" in str(raised.value)
    with pytest.raises(PacelineError, match=r"did you mean: on_fit_start\?"):
        quiet(callbacks=Typo()).fit(Module(), loader())


def test_a_refused_module_can_be_trained_after_its_cure():
    class Wrong(Module):
        def on_batch_end(self):
            """No hook of ours."""

    trainer = quiet(max_steps=1)
    with pytest.raises(PacelineError):
        trainer.fit(Wrong(), loader())
    assert trainer.stage == ""
    trainer.fit(Module(), loader())
    assert trainer.global_step == 1


class Failing(Callback):
    """Raises in one hook."""

    def __init__(self, hook, error=RuntimeError):
        self.name = hook
        setattr(self, hook, partial(self._fail, error))

    def _fail(self, error, *args):
        raise error(f"from {self.name}")


class Counting(Callback):
    def __init__(self, name="counting"):
        self.name = name
        self.errors, self.teardowns, self.ends = [], [], 0

    def on_fit_end(self):
        self.ends += 1

    def on_exception(self, trainer, error):
        self.errors.append(error)

    def on_teardown(self, trainer, stage):
        self.teardowns.append(stage)


@pytest.mark.fault(18)
@pytest.mark.parametrize(
    "hook",
    ["on_setup", "on_fit_start", "on_step_end", "on_validation_end", "on_train_epoch_end", "on_fit_end"],
)
def test_an_error_anywhere_is_reported_once_and_torn_down_once(hook):
    counting = Counting()
    module = Module()
    with pytest.raises(RuntimeError, match=f"from {hook}") as raised:
        quiet(callbacks=[Failing(hook), counting], max_steps=1).fit(module, loader(), loader())
    assert counting.errors == [raised.value]
    assert counting.teardowns == ["fit"]
    assert counting.ends == (hook == "on_fit_end")  # one that fails keeps no other one from its end
    assert module._trainer is None


def test_one_that_fails_at_the_end_masks_no_other_and_costs_no_checkpoint(tmp_path):
    first, second, counting = Failing("on_fit_end"), Failing("on_fit_end"), Counting()
    second.name = "second"
    trainer = quiet(callbacks=[first, second, counting, Checkpoint()], run_dir=tmp_path, max_steps=1)
    with pytest.raises(RuntimeError, match="from on_fit_end") as raised:
        trainer.fit(Module(), loader())
    assert counting.ends == 1
    assert counting.errors == [raised.value]
    assert any("then on_fit_end failed too: RuntimeError" in note for note in raised.value.__notes__)
    assert trainer.run.latest.name == "step-00000001"


def test_no_exception_hook_without_an_error():
    counting = Counting()
    quiet(callbacks=counting, max_steps=1).fit(Module(), loader())
    assert (counting.errors, counting.teardowns, counting.ends) == ([], ["fit"], 1)


@pytest.mark.fault(19)
def test_teardown_is_for_all_although_one_of_them_fails():
    before, after = Counting("before"), Counting("after")
    module, torn = Module(), []
    module.teardown = torn.append
    trainer = quiet(callbacks=[before, Failing("on_teardown"), after], max_steps=1)
    with pytest.raises(RuntimeError, match="from on_teardown"):
        trainer.fit(module, loader())
    assert before.teardowns == after.teardowns == ["fit"]
    assert torn == ["fit"]
    assert module._trainer is None
    assert trainer.stage == ""


@pytest.mark.fault(19)
def test_the_first_error_is_raised_and_one_in_teardown_is_a_note():
    after = Counting()
    with pytest.raises(RuntimeError, match="no luck") as raised:
        quiet(callbacks=[Failing("on_teardown"), after]).fit(Module(fails=True), loader())
    assert any("on_teardown failed too" in note for note in raised.value.__notes__)
    assert after.teardowns == ["fit"]


@pytest.mark.fault(19)
def test_an_error_in_on_exception_hides_nothing():
    after = Counting()
    with pytest.raises(RuntimeError, match="no luck"):
        quiet(callbacks=[Failing("on_exception"), after]).fit(Module(fails=True), loader())
    assert [str(error) for error in after.errors] == ["no luck"]
    assert after.teardowns == ["fit"]


def test_what_a_save_hook_adds_comes_back_in_the_load_hook(tmp_path):
    class Keeps(Callback):
        found = None

        def on_save_checkpoint(self, trainer, state):
            state["mine"] = {"step": trainer.global_step, "tensor": torch.arange(3)}

        def on_load_checkpoint(self, trainer, state):
            self.found = state["mine"]

    Trainer(callbacks=Keeps(), progress=False, loggers=False, run_dir=tmp_path, max_steps=2).fit(
        Module(), loader(8, 4)
    )
    keeps = Keeps()
    Trainer(callbacks=keeps, progress=False, loggers=False, run_dir=tmp_path, max_steps=3).fit(
        Module(), loader(8, 4), resume="latest"
    )
    assert keeps.found["step"] == 2
    assert keeps.found["tensor"].tolist() == [0, 1, 2]


def test_a_monitor_sees_what_the_module_logs_in_its_own_end_hook():
    seen = []

    class Logs(Module):
        def on_validation_end(self, trainer):
            self.log("score", 7.0)

    class Sees(Callback):
        def on_validation_end(self, trainer):
            seen.append(trainer.metrics["val/score"])

    trainer = fitted(Logs(), loader(), loader(), callbacks=Sees(), max_steps=1)
    assert seen == [7.0, 7.0]  # the sanity pass, then the epoch's own
    assert trainer.metrics["val/score"] == 7.0


class EveryThird(Callback):
    """Says when it has anything to do."""

    def __init__(self):
        self.steps, self.ends = [], []

    def next_due(self, at):
        return at.global_step // 3 * 3 + 3

    def on_step_boundary(self, trainer):
        self.steps.append(trainer.global_step)

    def on_step_end(self, trainer):
        self.ends.append(trainer.global_step)


class Overriding(EveryThird):
    """Wants one hook after every step again."""

    def on_step_boundary(self, trainer):
        super().on_step_boundary(trainer)


class Setting(EveryThird):
    """The same, of one object."""

    def __init__(self):
        super().__init__()
        self.on_step_end = lambda trainer: self.ends.append(trainer.global_step)


class Undecided(EveryThird):
    """Waits for something from step 1 on, until it is asked again."""

    def next_due(self, at):
        return 0 if at.global_step == 1 else super().next_due(at)


@pytest.mark.parametrize(
    ("kind", "steps", "ends"),
    [
        # The first step, the last ones of epochs, and what is due; not the log point.
        (EveryThird, [1, 3, 4, 6, 8], [1, 3, 4, 6, 8]),
        (Undecided, [1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 6, 8]),
        (Overriding, [1, 2, 3, 4, 5, 6, 7, 8], [1, 3, 4, 6, 8]),
        (Setting, [1, 3, 4, 6, 8], [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_a_callback_that_says_when_it_is_due_is_not_called_in_between(kind, steps, ends, tmp_path):
    watcher = kind()
    quiet(callbacks=watcher, max_epochs=2, log_every=7, run_dir=tmp_path).fit(Module(), loader(16))
    assert (watcher.steps, watcher.ends) == (steps, ends)


def test_a_module_has_its_hooks_called_after_every_step_whatever_else_is_in_it():
    class Names(Module):
        def __init__(self):
            super().__init__()
            self.ended = []

        def next_due(self, at):
            return at.global_step + 5

        def on_step_end(self, trainer):
            self.ended.append(trainer.global_step)

    module = Names()
    quiet(max_steps=4).fit(module, loader(16))
    assert module.ended == [1, 2, 3, 4]


class Own(Callback):
    """Has the name for something else."""

    next_due = 5

    def __init__(self):
        self.steps = []

    def on_step_end(self, trainer):
        self.steps.append(trainer.global_step)


class Answers(Own):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def next_due(self):  # trailing arguments are optional, as everywhere
        return self.answer

    def on_step_end(self, trainer):
        super().on_step_end(trainer)


class AtEpochs(Callback):
    """Has a method of the name that nobody asks for its answer."""

    def next_due(self, trainer, every):
        raise AssertionError

    def on_train_epoch_end(self, trainer):
        pass


def test_an_attribute_of_the_name_that_nobody_asks_is_the_users():
    own = Own()
    quiet(callbacks=[own, AtEpochs()], max_steps=4).fit(Module(), loader(16))
    assert own.steps == [1, 2, 3, 4]


@pytest.mark.parametrize("answer", [6, 6.0, Fraction(11, 2)])
def test_an_answer_is_a_number_of_any_kind(answer):
    callback = Answers(answer)
    quiet(callbacks=callback, max_steps=8).fit(Module(), loader(32))
    assert callback.steps == [1, 6, 7, 8]  # from then on its answer is past


@pytest.mark.parametrize("answer", [None, True, math.nan, "2"])
def test_another_answer_is_an_error(answer):
    with pytest.raises(PacelineError, match=r"Answers\.next_due must return the next step"):
        quiet(callbacks=Answers(answer), max_steps=4).fit(Module(), loader(16))
