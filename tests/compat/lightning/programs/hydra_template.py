"""As a well-known template has it: net, optimizer and scheduler are handed in, metrics kept as objects."""

import functools
from typing import Any

import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ModelSummary
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification.accuracy import Accuracy


class MNISTLikeDataModule(LightningDataModule):
    def __init__(
        self,
        train_val_test_split: tuple[int, int, int] = (64, 24, 24),
        batch_size: int = 16,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train: Dataset | None = None
        self.data_val: Dataset | None = None
        self.data_test: Dataset | None = None
        self.batch_size_per_device = batch_size

    @property
    def num_classes(self) -> int:
        return 3

    def setup(self, stage: str | None = None) -> None:
        if self.trainer is not None:
            if self.hparams.batch_size % self.trainer.world_size != 0:
                raise RuntimeError("Batch size is not divisible by the number of devices.")
            self.batch_size_per_device = self.hparams.batch_size // self.trainer.world_size
        if not self.data_train and not self.data_val and not self.data_test:
            generator = torch.Generator().manual_seed(42)
            x = torch.randn(sum(self.hparams.train_val_test_split), 1, 6, 6, generator=generator)
            dataset = TensorDataset(x, x.flatten(1)[:, :3].argmax(1))
            self.data_train, self.data_val, self.data_test = random_split(
                dataset=dataset,
                lengths=self.hparams.train_val_test_split,
                generator=torch.Generator().manual_seed(42),
            )

    def _loader(self, dataset) -> DataLoader[Any]:
        return DataLoader(
            dataset=dataset,
            batch_size=self.batch_size_per_device,
            num_workers=self.hparams.num_workers,
            pin_memory=self.hparams.pin_memory,
            shuffle=False,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.data_train)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.data_val)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.data_test)


class MNISTLikeLitModule(LightningModule):
    def __init__(self, net: nn.Module, optimizer: Any, scheduler: Any, compile: bool) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["net"])
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.train_acc = Accuracy(task="multiclass", num_classes=3)
        self.val_acc = Accuracy(task="multiclass", num_classes=3)
        self.test_acc = Accuracy(task="multiclass", num_classes=3)
        self.train_loss, self.val_loss, self.test_loss = MeanMetric(), MeanMetric(), MeanMetric()
        self.val_acc_best = MaxMetric()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def on_train_start(self) -> None:
        # the sanity check may have stored results from these metrics
        self.val_loss.reset()
        self.val_acc.reset()
        self.val_acc_best.reset()

    def model_step(self, batch):
        x, y = batch
        logits = self.forward(x)
        loss = self.criterion(logits, y)
        return loss, torch.argmax(logits, dim=1), y

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        loss, preds, targets = self.model_step(batch)
        self.train_loss(loss)
        self.train_acc(preds, targets)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        pass

    def validation_step(self, batch, batch_idx: int) -> None:
        loss, preds, targets = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc(preds, targets)
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        acc = self.val_acc.compute()  # get current val acc
        self.val_acc_best(acc)  # update best so far val acc
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def test_step(self, batch, batch_idx: int) -> None:
        loss, preds, targets = self.model_step(batch)
        self.test_loss(loss)
        self.test_acc(preds, targets)
        self.log("test/loss", self.test_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("test/acc", self.test_acc, on_step=False, on_epoch=True, prog_bar=True)

    def setup(self, stage: str) -> None:
        if self.hparams.compile and stage == "fit":
            self.net = torch.compile(self.net)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.hparams.optimizer(params=self.trainer.model.parameters())
        if self.hparams.scheduler is not None:
            scheduler = self.hparams.scheduler(optimizer=optimizer)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {
                    "scheduler": scheduler,
                    "monitor": "val/loss",
                    "interval": "epoch",
                    "frequency": 1,
                },
            }
        return {"optimizer": optimizer}


def main(max_epochs=3, **trainer_options):
    seed_everything(12345, workers=True)
    datamodule = MNISTLikeDataModule()
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model = MNISTLikeLitModule(
        net=net,
        optimizer=functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.0),
        scheduler=functools.partial(
            torch.optim.lr_scheduler.ReduceLROnPlateau, mode="min", factor=0.1, patience=10
        ),
        compile=False,
    )
    callbacks: list[Callback] = [
        ModelCheckpoint(
            dirpath="checkpoints",
            filename="epoch_{epoch:03d}",
            monitor="val/acc",
            mode="max",
            save_last=True,
            auto_insert_metric_name=False,
        ),
        EarlyStopping(monitor="val/acc", patience=100, mode="max"),
        ModelSummary(max_depth=-1),
    ]
    logger: list[Logger] = [CSVLogger(save_dir=".", name="csv/", prefix="")]
    trainer = Trainer(
        min_epochs=1, max_epochs=max_epochs, callbacks=callbacks, logger=logger, log_every_n_steps=1,
        **trainer_options,
    )  # fmt: skip
    trainer.logger.log_hyperparams({"model/params/total": sum(p.numel() for p in model.parameters())})
    trainer.fit(model=model, datamodule=datamodule)
    assert trainer.checkpoint_callback.best_model_path
    assert "val/acc_best" in trainer.callback_metrics
    trainer.test(model=model, datamodule=datamodule)
    return trainer, model
