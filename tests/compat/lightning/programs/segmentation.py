"""Semantic segmentation: a U-Net with a Dice loss, mIoU from a confusion matrix, masks written to disk.

python segmentation.py --max_epochs 40 --base_channels 32 --batch_size 16
"""

import argparse
import itertools
import json
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

CLASSES = ("background", "disc", "square")
PALETTE = torch.tensor([[0, 0, 0], [220, 20, 60], [0, 0, 142]], dtype=torch.uint8)


# --- data ---


def render(index, size=24):
    """A picture with a disc and a square, and its mask."""
    g = torch.Generator().manual_seed(1000 + index)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx, top, left = torch.randint(5, size - 9, (4,), generator=g).tolist()
    mask = torch.zeros(size, size, dtype=torch.long)
    mask[(yy - cy) ** 2 + (xx - cx) ** 2 <= 16] = 1
    mask[top : top + 7, left : left + 7] = 2
    colours = torch.tensor([[0.1, 0.1, 0.1], [0.8, 0.3, 0.3], [0.2, 0.3, 0.9]])
    image = colours[mask].permute(2, 0, 1) + 0.2 * torch.randn(3, size, size, generator=g)
    return image.clamp(0, 1), mask


class ShapesDataset(Dataset):
    def __init__(self, root, split, augment=False):
        self.files = sorted(Path(root, split).glob("*.pt"))
        self.augment = augment

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        item = torch.load(self.files[index])
        image, mask = item["image"], item["mask"]
        if self.augment and index % 2:
            image, mask = image.flip(-1), mask.flip(-1)
        return {"image": image, "mask": mask, "name": self.files[index].stem}


class EpochSampler(Sampler):
    """Shuffles by seed and epoch, so that a run can be reproduced."""

    def __init__(self, data_source, seed=0):
        self.data_source, self.seed, self.epoch = data_source, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.data_source)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(len(self.data_source), generator=g).tolist())


class ShapesDataModule(pl.LightningDataModule):
    def __init__(self, root="data", batch_size=4, num_workers=0, sizes=(22, 10, 9)):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        start = 0
        for split, size in zip(("train", "val", "test"), self.hparams.sizes, strict=False):
            folder = Path(self.hparams.root, split)
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(start, start + size):
                path = folder / f"{i:04d}.pt"
                if not path.exists():
                    image, mask = render(i)
                    torch.save({"image": image, "mask": mask}, path)
            start += size

    def setup(self, stage=None):
        root = self.hparams.root
        if stage in (None, "fit", "validate"):
            self.train_set = ShapesDataset(root, "train", augment=True)
            self.val_set = ShapesDataset(root, "val")
        if stage in (None, "test", "predict"):
            self.test_set = ShapesDataset(root, "test")
        if stage in (None, "predict"):
            self.predict_set = Subset(self.test_set, range(6))

    def _loader(self, dataset, **kwargs):
        return DataLoader(
            dataset,
            batch_size=self.hparams.batch_size,
            num_workers=self.hparams.num_workers,
            pin_memory=torch.cuda.is_available(),
            **kwargs,
        )

    def train_dataloader(self):
        return self._loader(self.train_set, sampler=EpochSampler(self.train_set, seed=17), drop_last=True)

    def val_dataloader(self):
        return self._loader(self.val_set)

    def test_dataloader(self):
        return self._loader(self.test_set)

    def predict_dataloader(self):
        return self._loader(self.predict_set)

    def teardown(self, stage):
        if stage == "predict":
            self.predict_set = None


# --- model ---


class ConfusionMatrix(nn.Module):
    """Adds up over batches what was predicted for each class."""

    def __init__(self, num_classes, ignore_index=255):
        super().__init__()
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.register_buffer("matrix", torch.zeros(num_classes, num_classes), persistent=False)

    def reset(self):
        self.matrix.zero_()

    @torch.no_grad()
    def update(self, pred, target):
        valid = target != self.ignore_index
        index = target[valid] * self.num_classes + pred[valid]
        counts = torch.bincount(index, minlength=self.num_classes**2)
        self.matrix += counts.reshape(self.num_classes, self.num_classes).to(self.matrix)

    def compute(self):
        diagonal = self.matrix.diag()
        union = self.matrix.sum(0) + self.matrix.sum(1) - diagonal
        return diagonal / union.clamp(min=1), diagonal.sum() / self.matrix.sum().clamp(min=1)


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    def __init__(self, cin, cskip, cout):
        super().__init__()
        self.conv = DoubleConv(cin + cskip, cout)

    def forward(self, x, skip):
        x = F.interpolate(x, size=skip.shape[-2:], mode="nearest")
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self, in_channels=3, num_classes=3, base=4, depth=2):
        super().__init__()
        widths = [base * 2**i for i in range(depth + 1)]
        self.stem = DoubleConv(in_channels, widths[0])
        self.downs = nn.ModuleList(DoubleConv(a, b) for a, b in itertools.pairwise(widths))
        self.ups = nn.ModuleList(Up(b, a, a) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=False))
        self.head = nn.Conv2d(widths[0], num_classes, 1)

    def forward(self, x):
        skips = [self.stem(x)]
        for down in self.downs:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.head(x)


def dice_loss(logits, target, eps=1.0):
    probs = logits.softmax(1)
    onehot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).type_as(probs)
    dims = (0, 2, 3)
    score = (2 * (probs * onehot).sum(dims) + eps) / ((probs + onehot).sum(dims) + eps)
    return 1 - score.mean()


class SegmentationModel(pl.LightningModule):
    def __init__(self, base_channels=4, lr=3e-2, weight_decay=1e-4, dice_weight=0.5, **kwargs):
        super().__init__()
        self.save_hyperparameters()
        self.model = UNet(num_classes=len(CLASSES), base=base_channels)
        self.val_confusion = ConfusionMatrix(len(CLASSES))
        self.test_confusion = ConfusionMatrix(len(CLASSES))
        self.example_input_array = torch.zeros(2, 3, 24, 24)

    @staticmethod
    def add_model_specific_args(parent_parser):
        parser = parent_parser.add_argument_group("SegmentationModel")
        parser.add_argument("--base_channels", type=int, default=4)
        parser.add_argument("--lr", type=float, default=3e-2)
        parser.add_argument("--weight_decay", type=float, default=1e-4)
        parser.add_argument("--dice_weight", type=float, default=0.5)
        return parent_parser

    def forward(self, x):
        return self.model(x)

    def _losses(self, logits, mask):
        ce = F.cross_entropy(logits, mask, ignore_index=255)
        dice = dice_loss(logits, mask)
        return ce + self.hparams.dice_weight * dice, ce, dice

    def training_step(self, batch, batch_idx):
        loss, ce, dice = self._losses(self(batch["image"]), batch["mask"])
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log_dict({"train/ce": ce, "train/dice": dice}, on_step=False, on_epoch=True)
        return loss

    def _eval_step(self, batch, confusion, stage):
        logits = self(batch["image"])
        loss, _, _ = self._losses(logits, batch["mask"])
        confusion.update(logits.argmax(1), batch["mask"])
        self.log(f"{stage}/loss", loss, batch_size=batch["image"].size(0), sync_dist=True)
        return {"loss": loss, "logits": logits.detach()}

    def _eval_end(self, confusion, stage):
        iou, accuracy = confusion.compute()
        self.log(f"{stage}/iou", iou.mean(), prog_bar=True)
        self.log(f"{stage}/accuracy", accuracy)
        self.log_dict({f"{stage}/iou_{name}": value for name, value in zip(CLASSES, iou, strict=False)})
        confusion.reset()

    def validation_step(self, batch, batch_idx):
        return self._eval_step(batch, self.val_confusion, "val")

    def on_validation_epoch_end(self):
        self._eval_end(self.val_confusion, "val")

    def test_step(self, batch, batch_idx):
        return self._eval_step(batch, self.test_confusion, "test")

    def on_test_epoch_end(self):
        self._eval_end(self.test_confusion, "test")

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        probs = self(batch["image"]).softmax(1)
        confidence, mask = probs.max(1)
        return {"mask": mask.to(torch.uint8), "confidence": confidence.mean((1, 2)), "name": batch["name"]}

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        no_decay = [p for p in self.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": self.hparams.weight_decay, "name": "decay"},
                {"params": no_decay, "weight_decay": 0.0, "name": "no_decay"},
            ],
            lr=self.hparams.lr,
        )
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=self.hparams.lr,
            total_steps=int(self.trainer.estimated_stepping_batches),
            pct_start=0.25,
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 1}]


# --- callbacks ---


class LogPredictions(Callback):
    """Draws the first masks of each validation in TensorBoard."""

    def __init__(self, num_images=2):
        self.num_images = num_images

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        if batch_idx > 0 or trainer.sanity_checking:
            return
        n = self.num_images
        pred = PALETTE[outputs["logits"][:n].argmax(1).cpu()]
        truth = PALETTE[batch["mask"][:n].cpu()]
        rows = torch.cat([truth, pred], dim=2).permute(0, 3, 1, 2)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_images("val/masks", rows, global_step=trainer.global_step)


class MaskWriter(BasePredictionWriter):
    def __init__(self, output_dir, write_interval="batch_and_epoch"):
        super().__init__(write_interval)
        self.output_dir = Path(output_dir)

    def write_on_batch_end(
        self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx
    ):
        self.output_dir.mkdir(parents=True, exist_ok=True)
        for name, mask in zip(prediction["name"], prediction["mask"], strict=False):
            torch.save(mask.cpu(), self.output_dir / f"{name}_mask.pt")

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        confidence = {
            name: round(float(value), 4)
            for batch in predictions
            for name, value in zip(batch["name"], batch["confidence"], strict=False)
        }
        report = {"confidence": confidence, "indices": batch_indices}
        (self.output_dir / "report.json").write_text(json.dumps(report, indent=2))


def parse_args(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--output_dir", default="outputs")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--max_epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=42)
    parser = SegmentationModel.add_model_specific_args(parser)
    return parser.parse_args(argv)


def main(argv=(), **trainer_options):
    args = parse_args(argv)
    pl.seed_everything(args.seed, workers=True)
    datamodule = ShapesDataModule(args.data_dir, batch_size=args.batch_size)
    model = SegmentationModel(**vars(args))
    checkpoint = ModelCheckpoint(
        monitor="val/iou",
        mode="max",
        save_top_k=2,
        save_last=True,
        filename="epoch={epoch:02d}-iou={val/iou:.3f}",
        auto_insert_metric_name=False,
    )
    masks = Path(args.output_dir, "masks")
    trainer = pl.Trainer(
        default_root_dir=args.output_dir,
        callbacks=[
            checkpoint,
            LearningRateMonitor(logging_interval="step"),
            EarlyStopping(monitor="val/loss", patience=10, mode="min"),
            ModelSummary(max_depth=2),
            TQDMProgressBar(refresh_rate=5),
            LogPredictions(),
            MaskWriter(masks),
        ],
        logger=[
            TensorBoardLogger(args.output_dir, name="tb", log_graph=False),
            CSVLogger(args.output_dir, name="csv"),
        ],
        log_every_n_steps=2,
        **{"max_epochs": args.max_epochs} | trainer_options,
    )
    trainer.fit(model, datamodule=datamodule)
    print("best", checkpoint.best_model_path, float(checkpoint.best_model_score))

    (results,) = trainer.test(ckpt_path="best", datamodule=datamodule)
    assert set(results) >= {"test/loss", "test/iou", "test/iou_disc"}
    trainer.predict(ckpt_path="best", datamodule=datamodule, return_predictions=False)

    best = SegmentationModel.load_from_checkpoint(checkpoint.best_model_path, map_location="cpu")
    best.eval()
    datamodule.setup("test")
    for item in list(datamodule.test_set)[:6]:
        with torch.no_grad():
            expected = best(item["image"][None]).argmax(1)[0]
        written = torch.load(masks / f"{item['name']}_mask.pt")
        assert (written == expected).float().mean() > 0.99
    return trainer, model


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
