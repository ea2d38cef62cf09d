"""A datamodule with a state of its own in the checkpoint, which a second run takes up again."""

import json
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class CurriculumDataModule(L.LightningDataModule):
    """Takes more of the data from epoch to epoch."""

    def __init__(self, folder: str = "data", batch_size: int = 6):
        super().__init__()
        self.folder = Path(folder)
        self.batch_size = batch_size
        self.level = 1
        self.torn_down = []

    def prepare_data(self):
        self.folder.mkdir(exist_ok=True)
        generator = torch.Generator().manual_seed(8)
        rows = torch.rand(36, 3, generator=generator).tolist()
        (self.folder / "rows.json").write_text(json.dumps(rows))

    def setup(self, stage: str):
        rows = torch.tensor(json.loads((self.folder / "rows.json").read_text()))
        self.train_set = TensorDataset(rows[:24], rows[:24].sum(1, keepdim=True))
        self.val_set = TensorDataset(rows[24:], rows[24:].sum(1, keepdim=True))

    def train_dataloader(self):
        self.level = 1 + self.trainer.current_epoch
        rows = torch.utils.data.Subset(self.train_set, range(min(24, 12 * self.level)))
        return DataLoader(rows, batch_size=self.batch_size)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch_size)

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state_dict):
        self.level = state_dict["level"]

    def teardown(self, stage: str):
        self.torn_down.append(stage)


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("train/loss", loss)
        self.log("level", float(self.trainer.datamodule.level))
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/loss", nn.functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)]


def make_trainer(**trainer_options):
    return L.Trainer(
        reload_dataloaders_every_n_epochs=1,
        callbacks=[ModelCheckpoint(dirpath="kept", filename="last-one", enable_version_counter=False)],
        log_every_n_steps=1,
        **trainer_options,
    )


def main(max_epochs=3, **trainer_options):
    L.seed_everything(7)
    data = CurriculumDataModule()
    first = make_trainer(max_epochs=1, **trainer_options)
    first.fit(Regressor(), datamodule=data)
    assert data.torn_down == ["fit"]
    saved = first.checkpoint_callback.best_model_path

    model, data = Regressor(), CurriculumDataModule()
    trainer = make_trainer(max_epochs=max_epochs, num_sanity_val_steps=0, **trainer_options)
    trainer.fit(model, datamodule=data, ckpt_path=saved)
    assert data.level == max_epochs
    return trainer, model
