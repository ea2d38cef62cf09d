"""Hyperparameters by attribute and by item, load_from_checkpoint, and a test of the best checkpoint."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BaseModel(L.LightningModule):
    def __init__(self, lr=0.1, optimizer_name="sgd"):
        super().__init__()
        self.lr = lr


class Classifier(BaseModel):
    def __init__(self, in_features, hidden=8, classes=3, dropout=0.0, loss_fn=None, **kwargs):
        super().__init__(**kwargs)
        self.save_hyperparameters(ignore=["loss_fn"])
        self.net = nn.Sequential(
            nn.Linear(self.hparams.in_features, self.hparams["hidden"]),
            nn.ReLU(),
            nn.Dropout(self.hparams.dropout),
            nn.Linear(self.hparams.hidden, self.hparams.classes),
        )
        self.loss_fn = loss_fn or nn.CrossEntropyLoss()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss_fn(self(x), y)
        self.log("loss", loss)
        return loss

    def _shared_eval(self, batch, prefix):
        x, y = batch
        logits = self(x)
        self.log(f"{prefix}_loss", self.loss_fn(logits, y))
        self.log(f"{prefix}_acc", (logits.argmax(-1) == y).float().mean())

    def validation_step(self, batch, batch_idx):
        self._shared_eval(batch, "val")

    def test_step(self, batch, batch_idx):
        self._shared_eval(batch, "test")

    def configure_optimizers(self):
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        return kinds[self.hparams.optimizer_name](self.parameters(), lr=self.hparams.lr)


def loader(size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=10)


def main(max_epochs=3, **trainer_options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--optimizer_name", default="adam")
    hparams = vars(parser.parse_args(["--lr", "0.03"]))

    L.seed_everything(7)
    model = Classifier(5, classes=3, loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1), **hparams)
    assert model.hparams.lr == 0.03
    assert "loss_fn" not in model.hparams
    assert dict(model.hparams_initial)["hidden"] == 8
    checkpoint = ModelCheckpoint(monitor="val_acc", mode="max", filename="{epoch}-{val_acc:.2f}")
    trainer = L.Trainer(
        max_epochs=max_epochs, callbacks=[checkpoint], log_every_n_steps=1, **trainer_options
    )
    trainer.fit(model, loader(60, 0), loader(30, 1))

    [tested] = trainer.test(ckpt_path="best", dataloaders=loader(30, 2))
    best = Classifier.load_from_checkpoint(checkpoint.best_model_path)
    assert best.hparams == model.hparams
    best.eval()
    with torch.no_grad():
        hits = torch.cat([best(x).argmax(-1) == y for x, y in loader(30, 2)])
    assert abs(hits.float().mean().item() - tested["test_acc"]) < 1e-6

    wider = Classifier.load_from_checkpoint(checkpoint.best_model_path, lr=0.5)
    assert wider.hparams.lr == 0.5
    return trainer, best
