"""A forecasting LSTM: a datamodule, torchmetrics objects, and fit, validate, test and predict."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection


class WavesDataModule(L.LightningDataModule):
    def __init__(self, window: int = 12, batch_size: int = 16):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        generator = torch.Generator().manual_seed(31)
        time = torch.arange(200.0)
        torch.save(torch.sin(time / 5) + 0.1 * torch.randn(200, generator=generator), "waves.pt")

    def setup(self, stage):
        windows = torch.load("waves.pt").unfold(0, self.hparams.window + 1, 1)
        data = TensorDataset(windows[:, :-1, None], windows[:, -1:])
        if stage in ("fit", "validate"):
            self.train_set = Subset(data, range(100))
            self.val_set = Subset(data, range(100, 140))
        if stage == "test":
            self.test_set = Subset(data, range(140, 170))
        if stage == "predict":
            self.predict_set = Subset(data, range(170, len(data)))

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=self.hparams.batch_size)

    def predict_dataloader(self):
        return DataLoader(self.predict_set, batch_size=self.hparams.batch_size)


class Forecaster(L.LightningModule):
    def __init__(self, hidden_size: int = 12, learning_rate: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.lstm = nn.LSTM(1, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, 1)
        metrics = MetricCollection({"mse": MeanSquaredError(), "mae": MeanAbsoluteError()})
        self.train_mae = MeanAbsoluteError()
        self.val_metrics = metrics.clone(prefix="val_")
        self.test_metrics = metrics.clone(prefix="test_")

    def forward(self, x):
        hidden, _ = self.lstm(x)
        return self.head(hidden[:, -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = nn.functional.mse_loss(y_hat, y)
        self.train_mae(y_hat, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("train_mae", self.train_mae, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_metrics.update(self(x), y)
        self.log_dict(self.val_metrics, on_step=False, on_epoch=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        output = self.test_metrics(self(x), y)
        self.log_dict(output, on_epoch=True)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        x, _ = batch
        return self(x).squeeze(1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


def main(max_epochs=3, **trainer_options):
    L.seed_everything(7)
    dm = WavesDataModule()
    model = Forecaster()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        logger=CSVLogger(save_dir="csv"),
        callbacks=[EarlyStopping("val_mse", min_delta=0.001, patience=2, verbose=True)],
        log_every_n_steps=5,
        **trainer_options,
    )
    trainer.fit(model, datamodule=dm)
    [validated] = trainer.validate(model, datamodule=dm, verbose=False)
    [tested] = trainer.test(model, datamodule=dm, verbose=False)
    predictions = trainer.predict(model, datamodule=dm)
    assert set(validated) == {"val_mse", "val_mae"}, validated
    assert set(tested) == {"test_mse", "test_mae"}, tested
    assert torch.cat(predictions).shape == (18,)
    return trainer, model
