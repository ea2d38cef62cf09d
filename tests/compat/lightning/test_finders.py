"""Searches for a learning rate and a batch size within a fit: what Lightning's do not find."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline.compat.lightning as L
from paceline import PacelineError
from paceline.compat.lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from paceline.compat.lightning.pytorch.tuner import _largest, _Samples

pytestmark = pytest.mark.fit
RATES = {"num_training_steps": 20, "min_lr": 1e-4, "early_stop_threshold": None}


class Net(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.lr, self.batch_size, self.setups = nn.Linear(3, 1), lr, 4, 0

    def setup(self, stage):
        self.setups += 1

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def train_dataloader(self):
        inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), self.batch_size)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class AtEpochs(LearningRateFinder):
    def on_fit_start(self, trainer, pl_module):
        self.found = []

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch in (0, 2):
            before = pl_module.layer.weight.tolist(), str(trainer.optimizers[0].state_dict()["state"])
            self.lr_find(trainer, pl_module)
            after = pl_module.layer.weight.tolist(), str(trainer.optimizers[0].state_dict()["state"])
            rates = [trainer.optimizers[0].param_groups[0]["lr"], self.optimal_lr.suggestion()]
            self.found.append([before == after, pl_module.lr, *rates])


class Data(L.LightningDataModule):
    def setup(self, stage):
        self.setups = getattr(self, "setups", 0) + 1

    def train_dataloader(self):
        return Net.train_dataloader(Net())


def trainer(tmp_path, *callbacks, **options):
    quiet = {"accelerator": "cpu", "logger": False, "max_epochs": 3, "enable_progress_bar": False}
    return L.Trainer(callbacks=[*callbacks], default_root_dir=tmp_path, **quiet | options)


def test_a_search_at_a_later_epoch_finds_a_rate_and_changes_nothing_else(tmp_path):
    finder, module, data = AtEpochs(**RATES), Net(), Data()
    run = trainer(tmp_path, finder)
    run.fit(module, datamodule=data)
    (first, rate, *same), (second, later, *same_later) = finder.found
    assert first
    assert second
    assert same == [rate, rate]
    assert same_later == [later, later]
    assert 0 < later < 1
    assert (module.setups, data.setups, data.trainer) == (1, 1, run)


def test_a_resumed_run_keeps_its_rate(tmp_path):
    module = Net()
    trainer(tmp_path, LearningRateFinder(**RATES), max_epochs=1).fit(module)
    path = next(tmp_path.rglob("*.ckpt"))
    finder, resumed = LearningRateFinder(**RATES), Net()
    run = trainer(tmp_path, finder)
    run.fit(resumed, ckpt_path=path)
    assert finder.optimal_lr is None
    assert run.optimizers[0].param_groups[0]["lr"] == module.lr


def test_a_batch_size_is_found_before_loaders_exist(tmp_path):
    class Later(BatchSizeFinder):
        def on_fit_start(self, trainer, pl_module):
            self.scale_batch_size(trainer, pl_module)

    with pytest.raises(PacelineError, match="before loaders are made"):
        trainer(tmp_path, Later()).fit(Net())
    with pytest.raises(PacelineError, match="fit was given one"):
        trainer(tmp_path, BatchSizeFinder()).fit(Net(), Net().train_dataloader())


def test_where_no_size_fits(tmp_path):
    class Large(Net):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("CUDA out of memory.")

    with pytest.raises(PacelineError, match="no batch size fits into memory"):
        trainer(tmp_path, BatchSizeFinder()).fit(Large())


@pytest.mark.parametrize(
    ("mode", "sizes", "found"),
    [("power", [2, 4, 8, 16], 8), ("binsearch", [2, 4, 8, 16, 12, 10, 11], 11)],
)
def test_sizes_are_doubled_and_then_halved(mode, sizes, found):
    tried = []

    def works(size):
        tried.append(size)
        return size <= 11

    assert _largest(works, _Samples(), 2, 64, 25, mode == "power") == found
    assert tried == sizes


@pytest.mark.parametrize("finder", [BatchSizeFinder, LearningRateFinder])
def test_modes(finder):
    with pytest.raises(ValueError, match="mode"):
        finder(mode="cubic")
