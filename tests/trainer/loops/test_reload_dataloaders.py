"""``reload_dataloaders_every_n_epochs``: loaders that are made again, in whole runs and in resumed ones."""

import json
from pathlib import Path

import psutil
import pytest
import torch
from helpers.ranks import run_ranks
from helpers.stops import StopsAt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import DataModule, PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint

JOB = Path(__file__).with_name("reload_job.py")


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen, self.validated = nn.Linear(1, 1), [], []

    def training_step(self, batch):
        self.seen.append((self.epoch, batch[0].flatten().tolist()))
        return (self.net(batch[0] / 100) - 1).square().mean()

    def validation_step(self, batch):
        self.validated.append((self.global_step, batch[0][0].item()))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Growing(DataModule):
    """In each epoch that it is asked in another data set: ``4 * (epoch + 1)`` samples."""

    def __init__(self, workers=0, size=4):
        self.workers, self.size, self.asked = workers, size, []

    def _data(self, epoch):
        return TensorDataset(100.0 * epoch + torch.arange(4.0 * (epoch + 1)).reshape(-1, 1))

    def train_dataloader(self):
        epoch = self.trainer.epoch
        self.asked.append(("train", epoch))
        options = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return DataLoader(self._data(epoch), self.size, shuffle=True, **options)

    def val_dataloader(self):
        epoch = self.trainer.epoch
        self.asked.append(("val", epoch))
        return DataLoader(self._data(epoch), 4)


def fit(module, *callbacks, data=None, loaders=(None, None), resume=None, **settings):
    usual = {
        "accelerator": "cpu",
        "progress": False,
        "loggers": False,
        "run_dir": None,
        "max_epochs": 5,
        "reload_dataloaders_every_n_epochs": 2,
        "sanity_val_batches": 0,
    }
    data = Growing() if data is None else data
    trainer = Trainer(callbacks=callbacks, **(usual | settings))
    trainer.fit(module, *loaders, datamodule=None if loaders[0] else data, resume=resume)
    return trainer, data


STEPS = [1, 1, 3, 3, 5]  # by epoch: the loaders of the epochs 0, 2 and 4


def test_they_are_made_again_every_so_many_epochs(capsys):
    module = Net()
    trainer, data = fit(module)
    assert data.asked == [(kind, epoch) for epoch in (0, 2, 4) for kind in ("train", "val")]
    assert [sum(e == epoch for e, _ in module.seen) for epoch in range(5)] == STEPS
    assert trainer.global_step == trainer.total_steps == sum(STEPS)
    assert [int(x // 100) for _, x in module.validated] == [0] * 2 + [2] * 6 + [4] * 5
    seen = {epoch: sorted(x for e, xs in module.seen for x in xs if e == epoch) for epoch in range(5)}
    assert seen[3] == seen[2] == [200.0 + i for i in range(12)]
    assert "epoch 3: the dataloaders are made again" in capsys.readouterr().out


def test_every_epoch_too_and_never_by_default():
    assert [e for kind, e in fit(Net(), reload_dataloaders_every_n_epochs=1)[1].asked if kind == "val"] == [
        *range(5)
    ]
    assert fit(Net(), reload_dataloaders_every_n_epochs=0)[1].asked == [("train", 0), ("val", 0)]


def test_the_weights_are_those_of_a_plain_loop():
    module, expected = Net(), Net()
    fit(module)
    optimizer = expected.configure_optimizers()
    for _, samples in module.seen:
        (expected.net(torch.tensor(samples).reshape(-1, 1) / 100) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(module.net.weight, expected.net.weight)


def test_parts_of_an_epoch_are_of_its_own_length():
    module = Net()
    fit(module, validate_every="0.5ep")
    assert sorted({step for step, _ in module.validated}) == [1, 2, 4, 5, 7, 8, 11, 13]


@pytest.mark.parametrize(
    ("stop", "asked", "workers"),
    # Once to know its lengths, and once when all is restored.
    [(2, [2, 2, 4], 0), (4, [2, 2, 4], 0), (6, [2, 2, 4], 1), (8, [4, 4], 0), (10, [4, 4], 0)],
)
def test_a_resumed_run_asks_for_the_loaders_of_its_epoch(tmp_path, stop, asked, workers):
    whole, first, second = Net(), Net(), Net()
    fit(whole, data=Growing(workers))
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(first, StopsAt(stop), Checkpoint(), data=Growing(workers), **kept)
    _, data = fit(second, Checkpoint(), data=Growing(workers), resume="latest", **kept)
    assert [epoch for kind, epoch in data.asked if kind == "train"] == asked
    assert first.seen + second.seen == whole.seen
    assert first.validated + second.validated == whole.validated
    assert torch.equal(second.net.weight, whole.net.weight)


def test_a_datamodule_that_is_restored_makes_the_loaders_that_it_made(tmp_path):
    class Shifts(DataModule):
        shift = 0.0

        def train_dataloader(self):
            noise = torch.randn(8, 1)  # the same in a resumed run, whatever the model has drawn
            return DataLoader(TensorDataset(self.shift + noise), 2, shuffle=True)

        def state_dict(self):
            return {"shift": self.shift}

        def load_state_dict(self, state):
            self.shift = state["shift"]

    class Moves(Callback):
        def on_train_epoch_end(self, trainer):
            trainer.module.data.shift += 1.0

    def train(module, *callbacks, **more):
        module.data = Shifts()
        fit(module, Moves(), *callbacks, data=module.data, reload_dataloaders_every_n_epochs=1, **more)

    whole, first, second = Net(), Net(), Net()
    train(whole)
    kept = {"run_dir": tmp_path, "name": "n"}
    train(first, StopsAt(10), Checkpoint(), **kept)
    train(second, Checkpoint(), resume="latest", **kept)
    assert first.seen + second.seen == whole.seen
    assert torch.equal(second.net.weight, whole.net.weight)


def test_loaders_that_depend_on_what_is_not_restored_are_refused_in_the_midst_of_an_epoch(tmp_path):
    class Counts(DataModule):
        calls = 0

        def train_dataloader(self):
            Counts.calls += 1
            return DataLoader(TensorDataset(torch.full((8, 1), float(Counts.calls))), 2)

    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), StopsAt(2), Checkpoint(), data=Counts(), **kept)
    with pytest.raises(PacelineError, match="training data: content"):
        fit(Net(), Checkpoint(), data=Counts(), resume="latest", **kept)


def test_total_steps_are_those_that_the_run_began_with(tmp_path):
    class Planned(Net):
        def configure_optimizers(self):
            self.planned = self.trainer.total_steps
            return super().configure_optimizers()

    first, second = Planned(), Planned()
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(first, StopsAt(4), Checkpoint(), **kept)
    fit(second, Checkpoint(), resume="latest", **kept)
    assert first.planned == second.planned == 5


def test_another_set_of_validation_loaders_is_refused():
    class Vanishes(Growing):
        def val_dataloader(self):
            return None if self.trainer.epoch else super().val_dataloader()

    with pytest.raises(
        PacelineError, match=r"val_dataloader\(\) gave other loaders in epoch 3 than before"
    ):
        fit(Net(), data=Vanishes())


def test_the_length_of_an_epoch_is_known_when_it_starts():
    class Lengths(Callback):
        found = ()

        def on_train_epoch_start(self, trainer):
            self.found = (*self.found, trainer.steps_per_epoch)

    lengths = Lengths()
    fit(Net(), lengths)
    assert lengths.found == tuple(STEPS)


def test_a_damaged_checkpoint_of_a_later_epoch_does_not_decide(tmp_path):
    whole, second = Net(), Net()
    fit(whole)
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), StopsAt(9), Checkpoint("1ep", keep=None), **kept)
    newest = tmp_path / "n" / "1" / "checkpoints" / "step-00000009"
    (newest / "state.json").write_text("{}")
    trainer, _ = fit(second, Checkpoint(), resume="latest", **kept)
    assert trainer.global_step == 13
    assert torch.equal(second.net.weight, whole.net.weight)
    assert second.validated == [one for one in whole.validated if one[0] > 8]


def test_workers_of_the_loaders_before_are_ended():
    class Counts(Callback):
        def __init__(self):
            self.most = 0

        def on_step_end(self, trainer, outputs):
            self.most = max(self.most, len(psutil.Process().children()))

    counts, before = Counts(), len(psutil.Process().children())
    fit(Net(), counts, data=Growing(workers=2))
    assert counts.most - before <= 4  # two, and for a moment the two of before
    assert len(psutil.Process().children()) == before


def test_methods_of_the_module_serve():
    class Own(Net):
        asked = ()

        def train_dataloader(self):
            self.asked = (*self.asked, self.trainer.epoch)
            return DataLoader(TensorDataset(torch.ones(4, 1)), 4)

    module = Own()
    fit(module, data=object())
    assert module.asked == (0, 2, 4)


def test_a_datamodule_has_its_trainer_while_it_runs():
    _, data = fit(Net(), max_epochs=1)
    with pytest.raises(PacelineError, match=r"Growing\.trainer exists only while"):
        _ = data.trainer


def test_loaders_that_were_given_cannot_be_made_again():
    given = DataLoader(TensorDataset(torch.ones(4, 1)), 4)
    for val in (given, None):
        with pytest.raises(PacelineError, match="fit was given the loaders themselves"):
            fit(Net(), loaders=(given, val))


def test_ranks_make_them_again_alike_and_take_the_steps_of_one(tmp_path):
    whole = Net()
    trainer, _ = fit(whole)
    outcome = run_ranks(JOB, 2, tmp_path, folder=tmp_path)
    assert outcome.codes == [0, 0], outcome.output
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["asked"] == [0, 2, 4]
        assert "rank 1 made other training data than rank 0 for epoch 3" in found["differs"]
        assert found["steps"] == trainer.global_step
        assert found["weight"] == pytest.approx(whole.net.weight.item(), rel=1e-5)
