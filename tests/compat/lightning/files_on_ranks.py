"""A fit on several ranks whose checkpoints each rank reads: ``python files_on_ranks.py STRATEGY OUT``."""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline.compat.lightning as L
from paceline.compat.lightning.pytorch.callbacks import ModelCheckpoint


class Net(L.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.005)


class Saves(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 0:
            self.epoch_end = trainer.global_step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3:
            trainer.save_checkpoint("third.ckpt")


def sums(path):
    found = torch.load(path)
    return found["global_step"], {
        n: [list(t.shape), t.sum().item()] for n, t in found["state_dict"].items()
    }


def main(strategy, out):
    data = DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4) / 64), 2)

    def fit(epochs, path=None):
        keeps = ModelCheckpoint("kept", monitor="loss", save_last=True, filename=f"best-of-{epochs}")
        run = L.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            max_epochs=epochs,
            callbacks=[Saves(), keeps],
            enable_progress_bar=False,
            logger=False,
        )
        run.fit(Net(), data, ckpt_path=path)
        return run, keeps

    run, keeps = fit(2)
    found = {"best": sums(keeps.best_model_path), "last": sums(keeps.last_model_path)}
    run.save_checkpoint("after.ckpt")
    found |= {"third": sums("third.ckpt"), "after": sums("after.ckpt")}
    found["resumed"] = [sums(fit(2, path)[1].best_model_path) for path in ("third.ckpt",)]
    found["continued"] = [
        sums(fit(3, path)[1].best_model_path) for path in (keeps.best_model_path, "after.ckpt")
    ]
    Path(f"{out}-{run.global_rank}").write_text(json.dumps(found))


main(*sys.argv[1:])
