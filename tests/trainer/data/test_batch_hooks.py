"""The way of a batch to the device: before, transfer, after, as a module or a DataModule writes it."""

import pytest
import torch
from helpers.pairwise import soaked
from helpers.small_net import Net
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import DataModule, PacelineError, Trainer
from paceline.callbacks import Callback, Checkpoint

X = torch.randn(22, 3, generator=torch.Generator().manual_seed(5))


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((row,) for row in X)


def data(kind="map", workers=0, x=X):
    if kind == "list":
        return [(part,) for part in x.split(4)]
    source = Stream() if kind == "stream" else TensorDataset(x)
    return DataLoader(source, 4, num_workers=workers, shuffle=kind == "map")


def fit(module, loader, val=None, resume=None, datamodule=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 2}
    trainer = Trainer(**(usual | settings))
    trainer.fit(module, loader, val, datamodule=datamodule, resume=resume)
    return trainer


class Notes(Net):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.calls.append(("before", dataloader_idx))
        return [batch[0] + 1]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.calls.append(("transfer", str(device), dataloader_idx))
        return super().transfer_batch_to_device([batch[0] * 2], device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls.append(("after", dataloader_idx))
        return [batch[0] - 3]

    def training_step(self, batch):
        self.batch = batch[0]
        return super().training_step(batch)


@pytest.mark.parametrize("kind", ["map", "stream", "list"])
def test_each_batch_passes_all_three_in_order(kind):
    module = Notes()
    fit(module, data(kind), max_epochs=1)
    one = [("before", 0), ("transfer", "cpu", 0), ("after", 0)]
    assert module.calls == one * 6
    if kind != "map":
        assert torch.equal(module.batch, (X[20:] + 1) * 2 - 3)


def test_they_know_which_loader_a_batch_is_of():
    module = Notes()
    fit(module, data("list"), {"a": data(), "b": data()}, max_epochs=1, sanity_val_batches=0)
    assert [call[1] for call in module.calls if call[0] == "after"] == [0] * 6 + [0] * 6 + [1] * 6


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream", "list"])
def test_what_a_hook_computes_is_what_is_trained_on(kind, workers):
    class Scaled(Net):
        def on_after_batch_transfer(self, batch):
            return (batch[0] * 0.5,)

    class ScalesItself(Net):
        def training_step(self, batch):
            return super().training_step((batch[0] * 0.5,))

    hooked, by_hand = Scaled(), ScalesItself()
    fit(hooked, data(kind, workers), accumulate=2)
    fit(by_hand, data(kind, workers), accumulate=2)
    assert torch.equal(hooked.net.weight, by_hand.net.weight)


def test_a_batch_of_the_users_own_class_is_brought_to_the_device_by_the_module():
    class Rows:
        def __init__(self, rows):
            self.rows = rows

    class Unpacks(Net):
        def transfer_batch_to_device(self, batch, device):
            return (batch.rows.to(device),)

    module, plain = Unpacks(), Net()
    fit(module, [Rows(part) for part in X.split(4)], precision="64")
    fit(plain, data("list"), precision="64")  # what it returns gets the dtype of the precision too
    assert torch.equal(module.net.weight, plain.net.weight)


def test_a_datamodule_has_them_too_and_its_own_come_first():
    class Doubles(DataModule):
        def train_dataloader(self):
            return data("list")

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return (batch[0] * 2,)

    module = Notes()
    fit(module, None, datamodule=Doubles(), max_epochs=1)
    assert [call[0] for call in module.calls[:2]] == ["transfer", "after"]
    assert torch.equal(module.batch, X[20:] * 2 * 2 - 3)


def test_evaluations_call_them():
    module = Notes()
    trainer = fit(module, data("list"), max_epochs=1)
    module.calls.clear()
    trainer.validate(module, data("list"))
    assert [call[0] for call in module.calls] == ["before", "transfer", "after"] * 6


def test_a_callback_has_no_such_hook():
    class Wrong(Callback):
        def on_after_batch_transfer(self, trainer, batch):
            return batch

    with pytest.raises(PacelineError, match=r"Wrong\.on_after_batch_transfer is no hook of a run"):
        fit(Net(), data(), callbacks=Wrong())


@pytest.mark.parametrize(
    "name", ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"]
)
def test_a_hook_that_forgets_to_return_the_batch_is_named(name):
    forgets = type("Forgets", (Net,), {name: lambda self, batch, *more: None})
    with pytest.raises(PacelineError, match=f"{name} returned None in the place of a batch"):
        fit(forgets(), data())


@pytest.mark.parametrize("kind", ["map", "stream", "list"])
def test_a_hook_sees_the_run_at_its_own_step(kind):
    class Sees(Net):
        seen = ()

        def on_after_batch_transfer(self, batch):
            self.seen = (*self.seen, (self.global_step, self.net.weight.sum().item()))
            return batch

        def on_step_start(self, trainer, batches):
            assert self.seen[-1] == (trainer.global_step, self.net.weight.sum().item())

    module = Sees()
    fit(module, data(kind), max_epochs=1)
    assert [step for step, _ in module.seen] == [*range(6)]


def test_arguments_may_be_given_by_name():
    class ByName(Net):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return super().transfer_batch_to_device(
                batch=batch, device=device, dataloader_idx=dataloader_idx
            )

    fit(ByName(), data(), max_epochs=1)


# -- random draws ------------------------------------------------------------------------------------


class Noisy(Net):
    """Draws in the hook, and in the model."""

    def __init__(self):
        super().__init__()
        self.dropout, self.noise, self.masks = nn.Dropout(0.5), [], []

    def on_after_batch_transfer(self, batch):
        noise = torch.randn_like(batch[0])
        self.noise.append(noise)
        return (batch[0] + noise,)

    def training_step(self, batch):
        self.masks.append(self.dropout(torch.ones(8)))
        return super().training_step(batch) * self.masks[-1].mean()


DRAWN = [(kind, workers) for kind in ("map", "stream", "list") for workers in (0, 2)]


@pytest.mark.parametrize(("kind", "workers"), soaked(DRAWN, [("map", 2), ("stream", 0), ("list", 0)]))
def test_draws_are_another_each_time_and_a_resumed_run_has_the_same(kind, workers, tmp_path):
    whole, first, second = Noisy(), Noisy(), Noisy()
    fit(whole, data(kind, workers))
    kept = {"run_dir": tmp_path, "name": "n", "callbacks": Checkpoint("1st")}
    fit(first, data(kind, workers), max_steps=8, **kept)
    fit(second, data(kind, workers), resume="latest", **kept)
    assert len({noise.sum().item() for noise in whole.noise}) == 12
    assert torch.equal(torch.cat(whole.noise[:8]), torch.cat(first.noise[:8]))
    assert torch.equal(torch.cat(whole.noise[8:]), torch.cat(second.noise))
    assert torch.equal(second.net.weight, whole.net.weight)


def test_draws_of_a_hook_leave_the_models_own_alone():
    class Silent(Noisy):
        def on_after_batch_transfer(self, batch):
            return batch

    noisy, silent = Noisy(), Silent()
    fit(noisy, data("stream"))
    fit(silent, data("stream"))
    assert torch.equal(torch.stack(noisy.masks), torch.stack(silent.masks))
