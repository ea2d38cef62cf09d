"""Pretraining, then fine-tuning: blocks thawed from the top at smaller rates, and predictions as CSV."""

import argparse
import csv
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    BasePredictionWriter,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.model_summary import ModelSummary
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from torchmetrics.functional import accuracy

CLASSES = ("flat", "rising", "falling")


class Patches(Dataset):
    """Small pictures: flat ones, and those that get brighter or darker to the right."""

    def __init__(self, size, seed, noise=0.5):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, len(CLASSES), (size,), generator=generator)
        slope = torch.tensor([0.0, 1.0, -1.0])[self.labels]
        ramp = slope[:, None, None, None] * torch.linspace(-1, 1, 8)
        self.images = ramp + noise * torch.randn(size, 1, 8, 8, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index], f"patch_{index:04d}.png"


class RotatedPatches(Patches):
    """Each picture, turned by one of four angles, which is the label."""

    def __getitem__(self, index):
        turns = index % 4
        return torch.rot90(self.images[index], turns, (1, 2)), turns


class PatchData(L.LightningDataModule):
    def __init__(self, batch_size: int = 8, kind: type = Patches, sizes: tuple = (48, 24, 10)):
        super().__init__()
        self.save_hyperparameters(ignore=["kind"])
        self.kind = kind

    def setup(self, stage: str):
        train, val, predict = self.hparams.sizes
        if stage == "fit":
            self.train, self.val = self.kind(train, seed=1), self.kind(val, seed=2)
        elif stage == "predict":
            self.unlabelled = self.kind(predict, seed=3)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size)

    def predict_dataloader(self):
        return DataLoader(self.unlabelled, batch_size=4)


def make_backbone(width=6):
    def block(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    return nn.Sequential(block(1, width), block(width, width), nn.MaxPool2d(2), block(width, 2 * width))


class RotationPretraining(L.LightningModule):
    def __init__(self, width: int = 6, lr: float = 0.01):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = make_backbone(width)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, 4))

    def training_step(self, batch, batch_idx):
        images, turns = batch
        loss = F.cross_entropy(self.head(self.backbone(images)), turns)
        self.log("pretrain_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, turns = batch
        self.log("pretrain_val_loss", F.cross_entropy(self.head(self.backbone(images)), turns))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class FineTuner(L.LightningModule):
    def __init__(self, width=6, num_classes=3, lr=0.02, lr_decay=0.3, patience=0):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = make_backbone(width)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, num_classes)
        )

    def load_pretrained(self, checkpoint_path):
        checkpoint = torch.load(checkpoint_path, map_location="cpu")
        missing, unexpected = self.load_state_dict(checkpoint["state_dict"], strict=False)
        assert all(name.startswith("classifier.") for name in missing), missing
        assert all(name.startswith("head.") for name in unexpected), unexpected
        return len(checkpoint["state_dict"]) - len(unexpected)

    def forward(self, x):
        return self.classifier(self.backbone(x))

    def training_step(self, batch, batch_idx):
        images, labels, _ = batch
        logits = self(images)
        loss = F.cross_entropy(logits, labels)
        acc = accuracy(logits, labels, task="multiclass", num_classes=self.hparams.num_classes)
        self.log_dict({"train_loss": loss, "train_acc": acc}, prog_bar=True)
        return {"loss": loss, "acc": acc}

    def on_train_epoch_start(self):
        trainable = sum(p.numel() for p in self.parameters() if p.requires_grad)
        self.log("trainable", float(trainable))
        self.log("groups", float(len(self.optimizers().param_groups)))

    def validation_step(self, batch, batch_idx):
        images, labels, _ = batch
        logits = self(images)
        self.log("val_loss", F.cross_entropy(logits, labels), prog_bar=True)
        acc = accuracy(logits, labels, task="multiclass", num_classes=self.hparams.num_classes)
        self.log("val_acc", acc, prog_bar=True)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        images, _, names = batch
        probabilities = self(images).softmax(-1)
        return {"names": names, "classes": probabilities.argmax(-1), "scores": probabilities.amax(-1)}

    def configure_optimizers(self):
        trainable = filter(lambda p: p.requires_grad, self.parameters())
        optimizer = torch.optim.Adam(trainable, lr=self.hparams.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": ReduceLROnPlateau(optimizer, factor=0.5, patience=self.hparams.patience),
                "monitor": "val_loss",
                "interval": "epoch",
                "frequency": 1,
                "strict": True,
            },
        }


class GradualUnfreezing(BaseFinetuning):
    """Thaws a block of the backbone at each of these epochs, the last block first."""

    def __init__(self, unfreeze_at=(1, 3), lr=0.02, lr_decay=0.3):
        super().__init__()
        self.unfreeze_at = tuple(unfreeze_at)
        self.lr = lr
        self.lr_decay = lr_decay
        self.thawed = []

    def blocks(self, pl_module):
        return [block for block in pl_module.backbone if isinstance(block, nn.Sequential)][::-1]

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch not in self.unfreeze_at:
            return
        depth = self.unfreeze_at.index(epoch)
        block = self.blocks(pl_module)[depth]
        self.unfreeze_and_add_param_group(
            block,
            optimizer,
            lr=self.lr * self.lr_decay ** (depth + 1),
            initial_denom_lr=1.0,
            train_bn=False,
        )
        self.thawed.append(
            (epoch, len(list(self.filter_params(block, train_bn=False, requires_grad=True))))
        )


class CSVPredictions(BasePredictionWriter):
    def __init__(self, path):
        super().__init__(write_interval="batch_and_epoch")
        self.path = Path(path)
        self.rows = []

    def write_on_batch_end(
        self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx
    ):
        values = zip(
            prediction["names"], prediction["classes"].tolist(), prediction["scores"].tolist(), strict=True
        )
        for index, (name, cls, score) in zip(batch_indices, values, strict=True):
            self.rows.append({"index": index, "name": name, "class": CLASSES[cls], "score": f"{score:.4f}"})

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        with self.path.open("w", newline="") as f:
            writer = csv.DictWriter(f, fieldnames=list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)


def pretrain(args, **trainer_options):
    checkpoint = ModelCheckpoint(dirpath=args.out / "pretrain", monitor="pretrain_val_loss")
    trainer = L.Trainer(
        max_epochs=args.pretrain_epochs,
        callbacks=[checkpoint],
        logger=False,
        enable_progress_bar=False,
        **trainer_options,
    )
    trainer.fit(RotationPretraining(), datamodule=PatchData(kind=RotatedPatches))
    return checkpoint.best_model_path


def run(max_epochs, unfreezing, **trainer_options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("finetuning"))
    parser.add_argument("--pretrain_epochs", type=int, default=2)
    parser.add_argument("--rich", action="store_true")
    args = parser.parse_args([])

    L.seed_everything(31)
    pretrained = pretrain(args, **trainer_options)
    L.seed_everything(32)  # the head does not depend on how long pretraining was
    model = FineTuner()
    loaded = model.load_pretrained(pretrained)
    assert loaded == len(model.backbone.state_dict())
    print(ModelSummary(model, max_depth=2))

    checkpoint = ModelCheckpoint(monitor="val_acc", mode="max", filename="{epoch}-{val_acc:.2f}")
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=[
            unfreezing,
            checkpoint,
            EarlyStopping(monitor="val_loss", patience=8),
            LearningRateMonitor(logging_interval="epoch"),
            CSVPredictions(args.out / "predictions.csv"),
            RichProgressBar() if args.rich else TQDMProgressBar(refresh_rate=10),
        ],
        logger=CSVLogger(args.out, name="finetune"),
        num_sanity_val_steps=0,
        log_every_n_steps=2,
        **trainer_options,
    )
    datamodule = PatchData()
    trainer.fit(model, datamodule=datamodule)

    predictions = trainer.predict(model, datamodule=datamodule, ckpt_path="best")
    with (args.out / "predictions.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [int(row["index"]) for row in rows] == list(range(10))
    classes = torch.cat([prediction["classes"] for prediction in predictions])
    assert [row["class"] for row in rows] == [CLASSES[c] for c in classes]

    with (Path(trainer.logger.log_dir) / "metrics.csv").open() as f:
        logged = list(csv.DictReader(f))
    assert any(row["val_acc"] for row in logged)
    return trainer, model


def main(max_epochs=6, **trainer_options):
    unfreezing = GradualUnfreezing()
    trainer, model = run(max_epochs, unfreezing, **trainer_options)
    assert [epoch for epoch, _ in unfreezing.thawed] == [1, 3]
    assert len(trainer.optimizers[0].param_groups) == 3
    return trainer, model


def main_backbone(max_epochs=5, **trainer_options):
    unfreezing = BackboneFinetuning(
        unfreeze_backbone_at_epoch=2,
        lambda_func=lambda epoch: 1.5,
        backbone_initial_ratio_lr=0.1,
        verbose=True,
    )
    trainer, model = run(max_epochs, unfreezing, **trainer_options)
    assert len(trainer.optimizers[0].param_groups) == 2
    return trainer, model


if __name__ == "__main__":
    main()
