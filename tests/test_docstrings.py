"""Every public class, function and verb has an example in its docstring, and the examples run."""

import doctest
import inspect

import pytest
import torch
from helpers.public import PACKAGES
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Predictions, Run, Trainer, TrainModule
from paceline.callbacks import Hooks
from paceline.strategies.ranks.collectives import Collectives
from paceline.trainer.counters import RunCounters
from paceline.trainer.loop_controls import LoopControls
from paceline.trainer.run.directory import RunLog

pytestmark = pytest.mark.launch  # for its length
WITHOUT_EXAMPLE = {
    "TrainModule.untoggle_optimizer": "the example of toggle_optimizer calls it",
    "Trainer.fit": "the example of Trainer calls it",
    "Trainer.validate": "the example of Trainer calls it",
    "Trainer.predict": "the examples of Trainer and Predictions call it",
    "start_ranks": "ends the process",
    "launch": "starts processes",
    "check_strategy": "starts processes; docs/extending/plugins.md has an example",
}


class Net(TrainModule):
    """What the examples call ``Net``; batches are ``(inputs of shape (4, 2), targets of shape (4, 1))``."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch):
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch))

    def test_step(self, batch):
        self.log("loss", self.training_step(batch))

    def predict_step(self, batch):
        return self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def public_things():
    """Name and object: the classes and functions of the packages, the verbs of what users hold."""
    for package in PACKAGES:
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield name, thing
    for owner in (Trainer, Collectives, RunCounters, LoopControls, TrainModule, Predictions, Run):
        ours = [
            base for base in owner.__mro__ if base.__module__.startswith("paceline") and base is not Hooks
        ]
        verbs = {name for base in ours for name, found in vars(base).items() if is_method(found)}
        for name in sorted(verbs):
            if not name.startswith("_") and not hasattr(Hooks, name):
                yield f"{owner.__name__}.{name}", getattr(owner, name)


def is_method(found):
    return inspect.isfunction(found) or isinstance(found, (classmethod, staticmethod))


THINGS = dict(public_things())


def example_of(thing):
    """The lines of the docstring from ``Example:`` on."""
    _, _, example = (inspect.cleandoc(thing.__doc__) + "\n").partition("\nExample:\n")
    return example


def namespace(example):
    data = TensorDataset(torch.randn(16, 2), torch.randn(16, 1))
    names = {"torch": torch, "nn": nn, "Net": Net, "__name__": __name__}
    names |= {"train_loader": DataLoader(data, 4, shuffle=True), "val_loader": DataLoader(data, 4)}
    names |= {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
    if "trainer" in example or "run." in example:  # those of a training that has ended
        trainer = Trainer(max_epochs=1, progress=False, loggers=["-tensorboard", "-curves"])
        names |= {"trainer": trainer, "run": trainer.fit(Net(), names["train_loader"], names["val_loader"])}
    return names


@pytest.fixture
def _without_log_lines(monkeypatch):
    """The lines that a run prints are no part of the examples."""
    write = RunLog.write
    monkeypatch.setattr(RunLog, "write", lambda log, text, **_: write(log, text, console=False))


@pytest.mark.usefixtures("_without_log_lines")
@pytest.mark.parametrize("name", [name for name in THINGS if name not in WITHOUT_EXAMPLE])
def test_public_things_have_an_example_that_runs(name):
    example = example_of(THINGS[name])
    assert ">>>" in example, f"{name} has no example"
    test = doctest.DocTestParser().get_doctest(example, namespace(example), name, None, None)
    report = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


def test_what_has_no_example_is_public_and_has_none():
    assert set(WITHOUT_EXAMPLE) <= set(THINGS)
    assert not [name for name in WITHOUT_EXAMPLE if ">>>" in THINGS[name].__doc__]
