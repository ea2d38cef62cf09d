"""A logger of the user's own, which keeps each call in a list."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ListLogger(Logger):
    def __init__(self):
        super().__init__()
        self.calls, self.rows = [], []

    @property
    def name(self):
        return "list"

    @property
    def version(self):
        return "0.1"

    @rank_zero_only
    def log_hyperparams(self, params):
        self.calls.append(("hyperparams", dict(params)))

    @rank_zero_only
    def log_graph(self, model, input_array=None):
        self.calls.append(("graph", type(model).__name__))

    @rank_zero_only
    def log_metrics(self, metrics, step):
        self.rows.append((step, metrics["epoch"], sorted(set(metrics) - {"epoch"})))

    def after_save_checkpoint(self, checkpoint_callback):
        self.calls.append(("saved", bool(checkpoint_callback.best_model_path)))

    @rank_zero_only
    def save(self):
        self.calls.append(("save",))

    @rank_zero_only
    def finalize(self, status):
        self.calls.append(("finalize", status))


class Line(L.LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def main(max_epochs=2, **trainer_options):
    L.seed_everything(4)
    x = torch.linspace(-1, 1, 32)[:, None]
    loader = DataLoader(TensorDataset(x, 2 * x), batch_size=8)
    logger, model = ListLogger(), Line()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        logger=logger,
        log_every_n_steps=2,
        callbacks=[ModelCheckpoint(monitor="val_loss")],
        num_sanity_val_steps=0,
        **trainer_options,
    )
    trainer.fit(model, loader, loader)
    if trainer.is_global_zero:
        steps = trainer.num_training_batches
        trained = [(step, step // steps, ["train_loss"]) for step in range(1, max_epochs * steps, 2)]
        validated = [(epoch * steps + steps - 1, epoch, ["val_loss"]) for epoch in range(max_epochs)]
        assert sorted(logger.rows) == sorted(trained + validated), logger.rows
        assert logger.calls[:2] == [("hyperparams", {"lr": 0.1}), ("graph", "Line")]
        assert logger.calls.count(("saved", True)) == max_epochs
        assert logger.calls[-1] == ("finalize", "success")
        assert ("save",) in logger.calls
    return trainer, model
