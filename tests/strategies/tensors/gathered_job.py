"""Trains with a contrastive loss over the samples of all ranks, in float64.

python gathered_job.py DEVICES FOLDER STRATEGY[,STRATEGY...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.trainers import quiet
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule

SAMPLES, GLOBAL = 48, 12


class Contrast(TrainModule):
    """Tells each sample from all others of the step; without ``sync_grads`` only from one side."""

    def __init__(self, sync_grads: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))

    def training_step(self, batch):
        one, other = (F.normalize(self.net(view), dim=1) for view in batch)
        everyone = self.all_gather(other, sync_grads=self.hparams["sync_grads"]).flatten(0, 1)
        labels = torch.arange(len(one)) + self.trainer.rank * len(one)
        return F.cross_entropy(one @ everyone.T / 0.5, labels)

    def on_fit_end(self):
        self.weights = self.all_gather(self.net[0].weight)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)


def refused(folder: Path, devices: int) -> None:
    """A last step of 11 samples."""
    trainer = Trainer(
        strategy="ddp", accelerator="cpu", devices=devices, max_epochs=1, progress=False, run_dir=None
    )
    data = TensorDataset(*samples()[:11])
    try:
        trainer.fit(Contrast(), DataLoader(data, 6))
    except PacelineError as error:
        (folder / f"refused-{trainer.rank}").write_text(str(error))


def train_by_lightnings_names(folder: Path, devices: int) -> None:
    import paceline.compat.lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Contrast().net

        def training_step(self, batch, batch_idx):
            one, other = (F.normalize(self.net(view), dim=1) for view in batch)
            everyone = self.all_gather({"of": [other]}, sync_grads=True)["of"][0].flatten(0, 1)
            labels = torch.arange(len(one)) + self.global_rank * len(one)
            return F.cross_entropy(one @ everyone.T / 0.5, labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)

    trainer = lightning.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=devices,
        precision="64-true",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    module = Module()
    trainer.fit(module, DataLoader(samples(), GLOBAL // devices))
    if trainer.is_global_zero:
        (folder / "lightning").mkdir()
        save_file(module.state_dict(), folder / "lightning" / "model.safetensors")


def samples() -> TensorDataset:
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x + 0.3 * x.roll(1))


def train(folder: Path, strategy: str, devices: int, sync_grads: bool = True) -> None:
    trainer = quiet(
        strategy=strategy,
        devices=devices,
        precision="32" if strategy.startswith("deepspeed") else "64",
        max_epochs=2,
        global_batch_size=GLOBAL,
        run_dir=None,
    )
    module = Contrast(sync_grads)
    trainer.fit(module, DataLoader(samples(), GLOBAL // devices))
    found = folder / (strategy if sync_grads else f"{strategy}-detached")
    trainer.export(found)
    save_file({"weight": module.weights}, found / f"gathered-{trainer.rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[3].split(","):
        train(Path(sys.argv[2]), name, int(sys.argv[1]))
    train(Path(sys.argv[2]), "ddp", int(sys.argv[1]), sync_grads=False)
    train_by_lightnings_names(Path(sys.argv[2]), int(sys.argv[1]))
    refused(Path(sys.argv[2]), int(sys.argv[1]))
