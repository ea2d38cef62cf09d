"""Callbacks people write: a counter with a state, printing, collecting predictions, a LambdaCallback."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint, TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Counter(Callback):
    def __init__(self, what: str = "epochs", verbose: bool = True):
        self.what, self.verbose = what, verbose
        self.state = {"epochs": 0, "batches": 0}

    @property
    def state_key(self) -> str:
        return f"Counter[what={self.what}]"

    def on_train_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        if self.what == "epochs":
            self.state["epochs"] += 1

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if self.what == "batches":
            self.state["batches"] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state.update(state_dict)

    def state_dict(self) -> dict[str, Any]:
        return self.state.copy()


class LossHistory(Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("history/smallest", min(self.losses))
        self.losses.clear()


class CollectPredictions(Callback):
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.collected = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.collected.append(outputs["preds"])

    def on_validation_epoch_end(self, trainer, pl_module):
        found = torch.cat(self.collected)
        self.log("preds/spread", found.max() - found.min())
        self.collected = []


class MyPrintingCallback(Callback):
    def on_train_start(self, trainer, pl_module):
        print("Training is starting")

    def on_train_end(self, trainer, pl_module):
        print("Training is ending")


class LitModel(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.layer(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self.layer(x)
        self.log("val_loss", nn.functional.mse_loss(y_hat, y))
        return {"preds": y_hat}

    def configure_optimizers(self):
        return torch.optim.Adadelta(self.parameters(), lr=0.5)


def main(max_epochs=2, **trainer_options):
    seed_everything(7)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(30, 4, generator=generator)
    data = TensorDataset(x, x.prod(1, keepdim=True))
    epochs, batches = Counter(), Counter("batches")
    seen = []
    notes = LambdaCallback(
        setup=lambda trainer, pl_module, stage: seen.append(stage),
        on_train_epoch_start=lambda trainer, pl_module: seen.append(trainer.current_epoch),
    )
    trainer = Trainer(
        max_epochs=max_epochs,
        callbacks=[
            MyPrintingCallback(), notes, epochs, batches, LossHistory(), CollectPredictions(),
            ModelCheckpoint(every_n_train_steps=3, save_top_k=-1), TQDMProgressBar(refresh_rate=2),
        ],
        log_every_n_steps=1,
        **trainer_options,
    )  # fmt: skip
    model = LitModel()
    trainer.fit(model, DataLoader(data, batch_size=6), DataLoader(data, batch_size=10))
    assert seen[0] == "fit"
    assert seen[-1] == max_epochs - 1
    counted = max_epochs, trainer.num_training_batches * max_epochs
    assert (epochs.state["epochs"], batches.state["batches"]) == counted
    return trainer, model
