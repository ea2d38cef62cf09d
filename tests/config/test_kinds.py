"""A config names what is called; nothing is called that is not of the kind that its place needs."""

from __future__ import annotations

import collections.abc
import os
import subprocess
import sys
import textwrap
import types
from typing import TYPE_CHECKING, Any, Self

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline import PacelineError
from paceline.callbacks import Callback, Logger
from paceline.config.kinds import is_data, is_dataset, returned
from paceline.config.load import load
from paceline.config.names import slots

if TYPE_CHECKING:
    from nowhere import Unknown

CALLS = {
    "os.system": "{class: os.system, command: touch called}",
    "Popen": "{class: subprocess.Popen, args: [touch, called]}",
    "a string": "subprocess.getoutput",
    "a method": "{class: pathlib.Path.touch, self: {class: pathlib.Path, _: called}}",
    "unannotated": "{class: mine:touch, name: called}",
    "of another kind": "{class: mine:Touch, name: called}",
    "returns another": "{class: mine:made, name: called}",
}
PLACES = {
    "a callback": "trainer: {callbacks: [HERE]}",
    "a logger": "trainer: {loggers: HERE}",
    "a profiler": "trainer: {profile: HERE}",
    "a strategy": "trainer: {strategy: HERE}",
    "a precision": "trainer: {precision: HERE}",
    "a module": "module: HERE\ndata: mine:Points",
    "a model": "model: HERE\nloss: cross_entropy\noptimizer: SGD\ndata: {train: mine:points}",
    "a loss": "model: mine:Net\nloss: HERE\noptimizer: SGD\ndata: {train: mine:points}",
    "a metric": "model: mine:Net\nloss: cross_entropy\noptimizer: SGD\nmetrics: {a: HERE}\n"
    "data: {train: mine:points}",
    "an optimizer": "model: mine:Net\nloss: cross_entropy\noptimizer: HERE\ndata: {train: mine:points}",
    "a schedule": "model: mine:Net\nloss: cross_entropy\noptimizer: SGD\nscheduler: HERE\n"
    "data: {train: mine:points}",
    "data": "module: mine:Module\ndata: HERE",
    "a dataset": "module: mine:Module\ndata: {train: HERE}",
    "an argument": "module: {class: mine:Module, part: HERE}\ndata: {train: mine:points}",
    "an argument of no type": "module: {class: mine:Module, rest: HERE}\ndata: {train: mine:points}",
    "an item of an argument": "module: {class: mine:Module, rest: [{a: HERE}]}\ndata: {train: mine:points}",
}
MINE = """
from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import TrainModule


def touch(name: str):
    Path(name).touch()


class Touch:
    def __init__(self, name: str):
        Path(name).touch()


def made(name: str) -> Touch:
    return Touch(name)


def points() -> TensorDataset:
    return TensorDataset(torch.randn(8, 3), torch.zeros(8).long())


class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)


class Module(TrainModule):
    def __init__(self, part: nn.Module | None = None, rest=None):
        super().__init__()
        self.net = Net()
        self.of = type(rest).__name__

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield
    sys.modules.pop("mine", None)


TAKEN = {
    (place, call)
    for place in ("an argument of no type", "an item of an argument")
    for call in ("of another kind", "returns another", "a string")
}
"""What has no type may be any object; a text is a text there."""


@pytest.mark.fault(53)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_called_that_its_place_does_not_need(place, tmp_path):
    for call, text in CALLS.items():
        (tmp_path / "c.yaml").write_text(PLACES[place].replace("HERE", text))
        loaded = load("c.yaml")
        assert bool(loaded.problems) == ((place, call) not in TAKEN), (call, loaded.problems)
        if loaded.problems:
            assert all(len(line) < 400 for line in loaded.lines())
            with pytest.raises(PacelineError, match="config: "):
                loaded.recipe.build(loaded.checked())
        assert not (tmp_path / "called").exists(), call


def test_an_error_says_how_a_function_is_allowed(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "module: mine:Module\ndata: {train: {class: mine:touch, name: called}}"
    )
    with pytest.raises(PacelineError) as caught:
        load("c.yaml").checked()
    assert "does not say what it returns, so it is not called to make a dataset" in str(caught.value)
    assert "fix: def touch(...) -> Dataset:" in str(caught.value)


CHECKED = """
from pathlib import Path

from paceline.callbacks import Callback, Logger
from paceline.schedules import RateSchedule
from paceline.strategies import Single


class Watch(Callback):
    def __init__(self, wrong: bool = False):
        Path("called").touch()
        if wrong:
            raise ValueError("of the user")


class Log(Logger):
    __init__ = Watch.__init__


class Mine(Single):
    __init__ = Watch.__init__


class Half(RateSchedule):
    __init__ = Watch.__init__
"""


def test_a_check_calls_nothing_of_the_file(tmp_path):
    (tmp_path / "mine.py").write_text(MINE + CHECKED)
    (tmp_path / "c.yaml").write_text(
        textwrap.dedent(
            """\
            model: mine:Net
            loss: cross_entropy
            optimizer: SGD
            scheduler: mine:Half
            data: {train: mine:points}
            trainer:
              callbacks: [{class: EarlyStopping, monitor: val/loss}, {class: mine:Watch, wrong: true}]
              loggers: [mine:Log]
              strategy: mine:Mine
            """
        )
    )
    loaded = load("c.yaml")
    assert loaded.problems == []
    assert not (tmp_path / "called").exists()
    # What a constructor raises is said when it is called, at the place that asks for it.
    with pytest.raises(PacelineError, match=r"trainer.callbacks.1 \(c.yaml:7\): ValueError: of the user"):
        loaded.checked().make_trainer()
    assert (tmp_path / "called").exists()


# -- what annotations say --------------------------------------------------------------------------


class Made(Callback):
    @classmethod
    def of(cls) -> Self:
        return cls()


class Maker:
    def __call__(self) -> Callback | None:
        return None


def quoted() -> "nn.Module":  # noqa: UP037
    return nn.ReLU()


def hidden() -> Unknown:
    return None


def anything() -> Any:
    return None


def nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (quoted, (nn.Module,)),
        (Made.of, (Made,)),
        (Maker(), (Callback,)),
        (hidden, ()),
        (anything, ()),
        (nothing, ()),
        (torch.tensor, (torch.Tensor,)),
        (torch.load, ()),
        (os.system, ()),
        (subprocess.run, ()),
    ],
)
def test_what_a_function_says_that_it_returns(function, found):
    assert returned(function) == found


def test_a_class_method_and_an_object_serve_as_what_they_return(monkeypatch):
    module = types.ModuleType("here")
    module.Made, module.maker = Made, Maker()
    monkeypatch.setitem(sys.modules, "here", module)
    assert slots()["callbacks"].find("here:Made.of")().__class__ is Made
    assert slots()["callbacks"].find("here:maker") is module.maker
    with pytest.raises(PacelineError, match="here:maker is not a logger"):
        slots()["loggers"].find("here:maker")
    assert not issubclass(Callback, Logger)


@pytest.mark.parametrize(
    ("kind", "dataset", "data"),
    [
        (Dataset, True, True),
        (DataLoader[Any], True, True),
        (list[int], True, True),
        (collections.abc.Iterable, True, True),
        (tuple[DataLoader, DataLoader], True, True),
        (dict[str, DataLoader], True, True),
        (dict[str, Any], True, False),
        (dict, True, False),
        (str, False, False),
        (int, False, False),
        (os.PathLike, False, False),
        (subprocess.Popen, False, False),
    ],
)
def test_what_is_data(kind, dataset, data):
    assert (is_dataset(kind), is_data(kind)) == (dataset, data)
