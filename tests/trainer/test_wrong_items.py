"""Of several loaders, optimizers, schedules or parameter groups, the wrong one is named, and its place."""

import re

import numpy as np
import pytest
import torch
from helpers.messages import says
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import CombinedLoader, DataModule, PacelineError, Trainer, TrainModule
from paceline.callbacks import Evaluator


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def training_step(self, batch):
        return self.head(self.net(batch[0])).mean()

    validation_step = test_step = predict_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


DATA = TensorDataset(torch.ones(4, 2))
GOOD = DataLoader(DATA, batch_size=2)


def trainer(*callbacks):
    off = {"progress": False, "checkpoint": False, "loggers": False, "run_dir": None}
    return Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **off)


def said(call, kind=PacelineError):
    with pytest.raises(kind) as caught:
        call()
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert len(text.splitlines()) <= 12, text
    return text


@pytest.mark.parametrize(
    ("wrong", "got", "fix"),
    [
        (DATA, "TensorDataset", "DataLoader(dataset, batch_size=...)"),
        (Stream(), "Stream", "DataLoader(dataset, batch_size=...)"),
        (None, "NoneType", "leave it out"),
        (DataLoader, "the class DataLoader", "DataLoader(...)"),
        (DataModule(), "DataModule", "datamodule=..."),
        (lambda: GOOD, "function", "call it: <lambda>()"),
        (torch.ones(4, 2), "Tensor", "TensorDataset(inputs, targets)"),
        (np.ones((4, 2)), "ndarray", "torch.from_numpy"),
        ((torch.ones(4, 2), torch.ones(4)), "a tuple of Tensor, Tensor", "TensorDataset(inputs, targets)"),
        ("train", "str", "a DataLoader, or any object with __iter__"),
        (3, "int", "a DataLoader, or any object with __iter__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_loader_that_is_none_is_named_with_its_place(wrong, got, fix):
    text = said(lambda: trainer().fit(Net(), [GOOD, wrong]))
    says(text, "the training data", "where: item 1 of train_dataloader\n", f"got: {got}\n", fix)


def _of(kind, **methods):
    return type(
        "Mine", (kind,), {name: lambda self, value=value: value for name, value in methods.items()}
    )()


@pytest.mark.parametrize(
    ("call", "data", "where"),
    [
        (lambda: trainer().fit(Net(), DATA), "training", "train_dataloader\n"),
        (
            lambda: trainer().fit(Net(), CombinedLoader({"a": GOOD, "b": DATA})),
            "training",
            "item 'b' of train_d",
        ),
        (lambda: trainer().fit(Net(), [DATA, DATA]), "training", "item 0 of train_dataloader"),
        (
            lambda: trainer().fit(Net(), GOOD, {"a": GOOD, "b": 3}),
            "validation",
            "item 'b' of val_dataloader",
        ),
        (lambda: trainer(Evaluator(DATA, "far")).fit(Net(), GOOD), "validation", "Evaluator 'far'"),
        (lambda: trainer().validate(Net(), [GOOD, DATA]), "validation", "item 1 of dataloader"),
        (lambda: trainer().test(Net(), {"a": DATA}), "test", "item 'a' of dataloader"),
        (
            lambda: trainer().predict(_of(Net, predict_dataloader=[GOOD, DATA])),
            "prediction",
            "item 1 of Mine.predict_dataloader()",
        ),
        (
            lambda: trainer().fit(Net(), datamodule=_of(DataModule, train_dataloader=[GOOD, DATA])),
            "training",
            "item 1 of Mine.train_dataloader()",
        ),
        (
            lambda: trainer().fit(_of(Net, train_dataloader=GOOD, val_dataloader=[GOOD, DATA])),
            "validation",
            "item 1 of Mine.val_dataloader()",
        ),
    ],
)
def test_the_place_of_a_loader_is_the_argument_or_the_method(call, data, where):
    says(said(call), f"the {data} data cannot be iterated over batches", f"where: {where}")


@pytest.mark.parametrize(
    "batches",
    [
        [torch.ones(2, 2), torch.ones(1, 2)],
        (torch.ones(2, 2), torch.ones(2, 2)),
        [(torch.ones(2, 2), torch.ones(2)), (torch.ones(1, 2), torch.ones(1))],
        ({"x": torch.ones(2, 2)} for _ in range(2)),
    ],
    ids=["of another size", "tuple", "pairs", "generator"],
)
def test_batches_that_are_ready_are_data(batches):
    class Any(Net):
        def training_step(self, batch):
            x = (
                batch["x"]
                if isinstance(batch, dict)
                else batch
                if isinstance(batch, torch.Tensor)
                else batch[0]
            )
            return self.head(self.net(x)).mean()

    done = trainer()
    done.fit(Any(), batches)
    assert done.global_step == 2


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (GOOD, "got: DataLoader"),
        (DATA, "got: TensorDataset"),
        ([GOOD], "got: list"),
        (DataModule, "DataModule(...)"),
    ],
    ids=["loader", "dataset", "list", "class"],
)
def test_what_is_no_datamodule_is_refused(verb, wrong, expected):
    text = said(lambda: getattr(trainer(), verb)(Net(), datamodule=wrong))
    assert "datamodule takes a DataModule" in text
    assert expected in text


@pytest.mark.parametrize("verb", ["fit", "validate"])
@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"train_dataloader": None, "val_dataloader": None}, r"Mine\.\w+_dataloader\(\) returned None"),
        ({"train_loader": GOOD, "val_loader": GOOD}, r"Mine\.\w+_loader is never called.*rename it to"),
    ],
)
def test_why_there_is_no_data(verb, methods, expected):
    text = said(lambda: getattr(trainer(), verb)(Net(), datamodule=_of(DataModule, **methods)))
    assert re.search(expected, text), text


def configured(function):
    return type("Mine", (Net,), {"configure_optimizers": function})()


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def steps(optimizer):
    return StepLR(optimizer, 1)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda m: [sgd(m), sgd(m), None], ["item 2 of the optimizers", "got: (SGD, SGD, None)"]),
        (lambda m: [torch.optim.Adam], ["the class Adam is no", "fix: Adam(self.parameters(), lr=...)"]),
        (
            lambda m: {"optimizer": "adamw"},
            ["str is no", "fix: torch.optim.AdamW(self.parameters(), lr=...)"],
        ),
        (lambda m: (steps(sgd(m)), sgd(m)), ["item 0", "fix: the optimizer comes first"]),
        (lambda m: ([o := sgd(m)], [steps(o), None]), ["item 1 of the schedulers", "fix: leave it out"]),
        (
            lambda m: ([o := sgd(m)], [steps(o), StepLR]),
            ["item 1 of", "the class StepLR", "StepLR(optimizer, ...)"],
        ),
        (
            lambda m: ([o := sgd(m)], [steps(o), lambda k: 0.5]),
            ["item 1 of the schedulers", "LambdaLR(optimizer"],
        ),
        (lambda m: ([o := sgd(m)], [steps(o), o]), ["item 1 of the schedulers", "SGD is no scheduler"]),
        (
            lambda m: ([o := sgd(m)], [steps(o), {"schedular": steps(o)}]),
            ["item 1 of", "did you mean: scheduler?"],
        ),
        (
            lambda m: ([o := sgd(m)], [steps(o), {"scheduler": steps(o), "interval": "batch"}]),
            ["item 1 of", "batch"],
        ),
        (
            lambda m: ([o := sgd(m)], [steps(o), ReduceLROnPlateau(o)]),
            ["item 1 of", '"monitor": "val/loss"'],
        ),
        (
            lambda m: ([sgd(m)], [steps(sgd(m))]),
            ["StepLR drives an optimizer that was not returned", "make one"],
        ),
        (lambda m: {"optimizer": sgd(m), "scheduler": None}, ["write lr_scheduler for scheduler"]),
    ],
)
def test_an_optimizer_or_schedule_that_is_none_is_named_with_its_place(returned, expected):
    says(said(lambda: trainer().fit(configured(returned), GOOD)), "configure_optimizers: ", *expected)


@pytest.mark.parametrize(
    ("params", "kind", "expected"),
    [
        (lambda m: m.net, TypeError, ["got: Linear", "fix: its parameters: layer.parameters()"]),
        (lambda m: [*m.net.parameters(), m.head], TypeError, ["item 2 of the parameters", "got: Linear"]),
        (
            lambda m: list(m.state_dict()),
            TypeError,
            ["item 0 of the parameters", "got: 'net.weight'", "no names"],
        ),
        (
            lambda m: [{"params": m.net.parameters()}, {"param": [m.head.weight]}],
            None,
            ["group 1", "'params' for 'param'"],
        ),
        (lambda m: [{"params": m.net.parameters()}, m.head], None, ["group 1", "got: Linear"]),
        (
            lambda m: [{"params": m.net.parameters()}, {"params": m.head}],
            None,
            ["group 1", "layer.parameters()"],
        ),
        (lambda m: [{"params": [m.net.weight, None]}], None, ["item 1 of group 0", "got: NoneType"]),
        (
            lambda m: [{"params": list(m.parameters())}, {"params": [m.head.weight]}],
            None,
            ["groups 0 and 1", "in both: head.weight"],
        ),
        (
            lambda m: [{"params": m.parameters(), "learning_rate": 1.0}],
            PacelineError,
            ["group 0", "did you mean: lr?"],
        ),
    ],
)
def test_a_parameter_group_that_is_none_is_named_with_its_place(params, kind, expected):
    module = configured(lambda m: torch.optim.SGD(params(m), lr=0.1))
    says(said(lambda: trainer().fit(module, GOOD), kind or Exception), *expected)
