"""``TrainModule.of``: a model that exists already, as a module to train."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import LambdaCallback
from paceline.schedules import Cosine

SGD = partial(torch.optim.SGD, lr=0.1)


def accuracy(predictions, targets):
    return (predictions.argmax(1) == targets).float().mean()


def model():
    torch.manual_seed(0)
    return nn.Linear(3, 4)


def pairs(batch_size=5):
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(12, 3), torch.arange(12) % 4), batch_size)


class Written(TrainModule):
    """The same, written out."""

    def __init__(self):
        super().__init__()
        self.model = model()

    def training_step(self, batch):
        logits = self.model(batch[0])
        return {"loss": F.cross_entropy(logits, batch[1]), "accuracy": accuracy(logits, batch[1])}

    def validation_step(self, batch):
        return self.training_step(batch)

    def configure_optimizers(self):
        return SGD(self.parameters())


def trained(module, tmp_path, **options):
    trainer = Trainer(**{"max_epochs": 2, "progress": False, "run_dir": tmp_path} | options)
    trainer.fit(module, pairs(), pairs())
    return trainer


def without_speed(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("perf/")}


def test_it_trains_as_the_module_written_out(tmp_path):
    ours = TrainModule.of(model(), F.cross_entropy, SGD, metrics={"accuracy": accuracy})
    of, written = trained(ours, tmp_path), trained(Written(), tmp_path)
    assert torch.equal(of.module.model.weight, written.module.model.weight)
    assert without_speed(of.metrics) == without_speed(written.metrics)
    assert {"train/accuracy", "val/accuracy", "val/loss"} <= set(of.metrics)
    assert of.folder.parent.name == "linear"  # the model's class


def test_a_run_resumes_exactly(tmp_path):
    def make():
        return TrainModule.of(model(), F.cross_entropy, SGD, scheduler=Cosine(warmup="10%"))

    whole = trained(make(), tmp_path / "whole", max_steps=6)
    stop = LambdaCallback(on_step_end=lambda trainer: trainer.global_step == 4 and trainer.stop("planned"))
    cut = trained(make(), tmp_path / "cut", max_steps=6, callbacks=[stop])
    assert cut.global_step < 6
    trainer = Trainer(max_epochs=2, max_steps=6, progress=False, run_dir=tmp_path / "cut")
    trainer.fit(make(), pairs(), pairs(), resume="latest")
    assert trainer.global_step == whole.global_step == 6
    assert torch.equal(trainer.module.model.weight, whole.module.model.weight)


class WithOwnLoss(nn.Module):
    """As a transformers model: named arguments, and an output with the loss and logits."""

    def __init__(self):
        super().__init__()
        self.layer = model()

    def forward(self, inputs, labels=None):
        logits = self.layer(inputs)
        return SimpleNamespace(
            loss=None if labels is None else F.cross_entropy(logits, labels), logits=logits
        )


def mappings():
    rows = [{"inputs": x, "labels": y} for x, y in pairs().dataset]
    return DataLoader(rows, 5)


def test_a_model_with_its_own_loss_has_the_same_numbers(tmp_path):
    own = TrainModule.of(WithOwnLoss(), optimizer=SGD, metrics={"accuracy": accuracy})
    trainer = Trainer(max_epochs=2, progress=False, run_dir=None)
    trainer.fit(own, mappings(), mappings())
    other = trained(Written(), tmp_path)
    assert torch.equal(trainer.module.model.layer.weight, other.module.model.weight)
    assert trainer.metrics["val/accuracy"] == other.metrics["val/accuracy"]


def test_a_loss_is_computed_from_the_logits_of_a_mapping():
    module = TrainModule.of(WithOwnLoss(), F.cross_entropy, SGD)
    batch = next(iter(mappings()))
    assert module.training_step(batch)["loss"] == F.cross_entropy(model()(batch["inputs"]), batch["labels"])


def test_predictions_need_no_targets():
    module = TrainModule.of(model(), F.cross_entropy)
    trainer = Trainer(progress=False, run_dir=None)
    with_targets = torch.cat(trainer.predict(module, pairs()))
    inputs = DataLoader(TensorDataset(pairs().dataset.tensors[0]), 5)
    assert torch.equal(with_targets, torch.cat(trainer.predict(module, inputs)))
    assert with_targets.shape == (12, 4)


def test_metric_objects_count_each_phase_by_itself():
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.classification.MulticlassAccuracy(4, average="micro")
    module = TrainModule.of(model(), F.cross_entropy, SGD, metrics={"accuracy": metric})
    trainer = Trainer(max_epochs=1, progress=False, run_dir=None)
    trainer.fit(module, pairs(), pairs())
    logits = trainer.module.model(pairs().dataset.tensors[0])
    assert trainer.metrics["val/accuracy"] == pytest.approx(accuracy(logits, torch.arange(12) % 4).item())
    assert "train/accuracy_epoch" in trainer.metrics
    assert not metric.update_called


def test_the_weight_is_what_a_loss_counts():
    """Two micro-batches with unequal weights give the gradient of the whole."""
    before = model()
    inputs, targets = pairs(12).dataset.tensors
    targets = targets.clone()
    targets[:4] = -100  # of the first micro-batch one target remains
    module = TrainModule.of(
        copy.deepcopy(before), F.cross_entropy, SGD, weight=lambda batch: (batch[1] != -100).sum()
    )
    loader = DataLoader(TensorDataset(inputs, targets), 6)
    Trainer(max_steps=1, accumulate=2, progress=False, run_dir=None, seed=0).fit(module, loader)
    F.cross_entropy(before(inputs), targets).backward()
    expected = before.weight - 0.1 * before.weight.grad
    assert torch.allclose(module.model.weight, expected, atol=1e-7)


def test_a_frozen_part_is_not_given_to_the_optimizer():
    frozen = nn.Sequential(model(), nn.Linear(4, 4))
    frozen[0].requires_grad_(False)
    given = []
    module = TrainModule.of(
        frozen, F.cross_entropy, lambda parameters: given.extend(parameters) or SGD(given)
    )
    Trainer(max_steps=1, progress=False, run_dir=None).fit(module, pairs())
    assert {id(p) for p in given} == {id(p) for p in frozen[1].parameters()}


@pytest.mark.parametrize(
    ("make", "batches", "message"),
    [
        (lambda: TrainModule.of(model(), F.cross_entropy), pairs, "fit needs an optimizer"),
        (lambda: TrainModule.of(WithOwnLoss(), optimizer=SGD), pairs, None),
        (
            lambda: TrainModule.of(model(), optimizer=SGD),
            lambda: DataLoader(TensorDataset(torch.randn(4, 3)), 2),
            "Linear returned no loss",
        ),
        (
            lambda: TrainModule.of(model(), F.cross_entropy, SGD),
            lambda: DataLoader(torch.randn(4, 3), 2),
            "the batch has no targets",
        ),
    ],
)
def test_a_mistake_says_what_to_do(make, batches, message):
    trainer = Trainer(max_steps=1, progress=False, run_dir=None)
    if message is None:  # a pair fits the model's two arguments
        trainer.fit(make(), batches())
        return
    with pytest.raises(PacelineError, match=message) as caught:
        trainer.fit(make(), batches())
    assert "fix: " in str(caught.value)


def test_metrics_get_predictions_without_their_graph():
    seen = []

    def spy(predictions, targets):
        seen.append(predictions.requires_grad)
        return 0.0

    module = TrainModule.of(model(), F.cross_entropy, SGD, metrics={"spy": spy})
    loss = module.training_step(next(iter(pairs())))["loss"]
    assert (seen, loss.requires_grad) == ([False], True)


@pytest.mark.parametrize("name", ["loss", "weight"])
def test_a_metric_with_the_name_of_another_value_is_refused(name):
    with pytest.raises(PacelineError, match="a metric has the name of a value that every step has"):
        TrainModule.of(model(), F.cross_entropy, SGD, metrics={name: accuracy})


def test_frozen_parameters_are_not_optimized():
    frozen = model()
    frozen.weight.requires_grad = False
    optimizer = TrainModule.of(frozen, F.cross_entropy, SGD).configure_optimizers()
    assert [one.shape for one in optimizer.param_groups[0]["params"]] == [(4,)]
