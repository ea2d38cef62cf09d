"""Multi-task learning: a combined loader, three validation sets, learned weights, a checkpoint a task."""

import argparse
from dataclasses import asdict, dataclass, field
from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
import yaml
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanAbsoluteError, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


@dataclass
class Config:
    tasks: tuple = ("scene", "depth", "edges")
    num_scenes: int = 4
    image_size: int = 8
    width: int = 8
    batch_sizes: dict = field(default_factory=lambda: {"scene": 8, "depth": 4, "edges": 6})
    lrs: dict = field(default_factory=lambda: {"scene": 2e-2, "depth": 1e-2, "edges": 5e-3})
    trunk_lr: float = 5e-3
    weight_decay: float = 1e-2
    seed: int = 2024

    @classmethod
    def from_yaml(cls, path):
        with open(path) as f:
            return cls(**yaml.safe_load(f))


def render(size, image_size, num_scenes, seed):
    """Waves, whose direction is the scene; depth and edges follow from the picture."""
    generator = torch.Generator().manual_seed(seed)
    scene = torch.randint(num_scenes, (size,), generator=generator)
    angle = scene * torch.pi / num_scenes
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, image_size), torch.linspace(-1, 1, image_size), indexing="ij"
    )
    phase = torch.rand(size, 1, 1, generator=generator)
    waves = torch.sin(4 * (angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y) + phase)
    image = (waves + 0.1 * torch.randn(waves.shape, generator=generator))[:, None]
    depth = F.avg_pool2d(image, 3, stride=1, padding=1)
    edges = ((image - depth).abs() > 0.3).float()
    return image, {"scene": scene, "depth": depth, "edges": edges}


class TaskDataset(Dataset):
    def __init__(self, task, size, cfg, seed):
        self.task = task
        self.images, targets = render(size, cfg.image_size, cfg.num_scenes, seed)
        self.targets = targets[task]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "target": self.targets[index], "task": self.task}


class MultiTaskData(pl.LightningDataModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def setup(self, stage):
        sizes = {"scene": 48, "depth": 20, "edges": 30}
        if stage == "fit":
            self.train = {t: TaskDataset(t, sizes[t], self.cfg, i) for i, t in enumerate(self.cfg.tasks)}
        if stage in ("fit", "validate"):
            self.val = {t: TaskDataset(t, 14, self.cfg, 10 + i) for i, t in enumerate(self.cfg.tasks)}
        if stage == "test":
            self.test = {t: TaskDataset(t, 10, self.cfg, 20 + i) for i, t in enumerate(self.cfg.tasks)}

    def train_dataloader(self):
        loaders = {
            task: DataLoader(data, batch_size=self.cfg.batch_sizes[task], drop_last=True)
            for task, data in self.train.items()
        }
        return CombinedLoader(loaders, mode="max_size_cycle")

    def val_dataloader(self):
        return [
            DataLoader(self.val[task], batch_size=self.cfg.batch_sizes[task]) for task in self.cfg.tasks
        ]

    def test_dataloader(self):
        return [DataLoader(self.test[task], batch_size=5) for task in self.cfg.tasks]


class UncertaintyWeights(nn.Module):
    """Kendall et al., 2018: a log variance for each task."""

    def __init__(self, tasks):
        super().__init__()
        self.log_vars = nn.ParameterDict({task: nn.Parameter(torch.zeros(())) for task in tasks})

    def forward(self, losses):
        return sum(
            torch.exp(-self.log_vars[t]) * loss + 0.5 * self.log_vars[t] for t, loss in losses.items()
        )


class MultiTaskNet(pl.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.save_hyperparameters({"config": asdict(cfg)})
        width = cfg.width
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width), nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
        )  # fmt: skip
        self.heads = nn.ModuleDict(
            {
                "scene": nn.Sequential(
                    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, cfg.num_scenes)
                ),
                "depth": nn.Conv2d(width, 1, 1),
                "edges": nn.Conv2d(width, 1, 1),
            }
        )
        self.weighting = UncertaintyWeights(cfg.tasks)
        scene_metrics = MetricCollection(
            {"acc": MulticlassAccuracy(cfg.num_scenes), "f1": MulticlassF1Score(cfg.num_scenes)}
        )
        self.val_scene = scene_metrics.clone(prefix="val/scene_")
        self.test_scene = scene_metrics.clone(prefix="test/scene_")
        self.val_mae = MeanAbsoluteError()
        self.validation_losses = {task: [] for task in cfg.tasks}

    def forward(self, image, task):
        return self.heads[task](self.trunk(image))

    def task_loss(self, task, output, target):
        if task == "scene":
            return F.cross_entropy(output, target)
        if task == "depth":
            return F.l1_loss(output, target)
        return F.binary_cross_entropy_with_logits(output, target)

    def training_step(self, batch, batch_idx):
        losses = {}
        for task, part in batch.items():
            losses[task] = self.task_loss(task, self(part["image"], task), part["target"])
            self.log(
                f"train/{task}_loss",
                losses[task],
                on_step=False,
                on_epoch=True,
                batch_size=len(part["image"]),
            )
        loss = self.weighting(losses)
        self.log("train/loss", loss, prog_bar=True, batch_size=self.cfg.batch_sizes["scene"])
        return loss

    def on_train_epoch_end(self):
        for task, log_var in self.weighting.log_vars.items():
            self.log(f"weights/{task}", torch.exp(-log_var))

    def on_validation_epoch_start(self):
        for values in self.validation_losses.values():
            values.clear()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        task = self.cfg.tasks[dataloader_idx]
        output = self(batch["image"], task)
        loss = self.task_loss(task, output, batch["target"])
        size = len(batch["image"])
        self.log("val/loss", loss, batch_size=size)
        self.log(f"val/{task}_loss", loss, add_dataloader_idx=False, batch_size=size)
        if task == "scene":
            self.val_scene.update(output, batch["target"])
            self.log_dict(self.val_scene, add_dataloader_idx=False, batch_size=size)
        elif task == "depth":
            self.val_mae(output, batch["target"])
            self.log(
                "val/depth_mae", self.val_mae, add_dataloader_idx=False, on_epoch=True, batch_size=size
            )
        else:
            hits = ((output > 0) == batch["target"].bool()).float().mean()
            self.log("val/edges_acc", hits, add_dataloader_idx=False, batch_size=size)
        self.validation_losses[task].append(loss.detach())

    def on_validation_epoch_end(self):
        means = {task: torch.stack(losses).mean() for task, losses in self.validation_losses.items()}
        self.log("val/mean_loss", torch.stack(list(means.values())).mean(), prog_bar=True)

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        task = self.cfg.tasks[dataloader_idx]
        output = self(batch["image"], task)
        self.log("test/loss", self.task_loss(task, output, batch["target"]))
        if task == "scene":
            self.test_scene(output, batch["target"])
            self.log_dict(self.test_scene, add_dataloader_idx=False)

    def configure_optimizers(self):
        groups = [{"params": self.trunk.parameters(), "lr": self.cfg.trunk_lr, "name": "trunk"}]
        for task in self.cfg.tasks:
            groups.append({"params": self.heads[task].parameters(), "lr": self.cfg.lrs[task], "name": task})
        groups.append(
            {"params": self.weighting.parameters(), "lr": 1e-2, "weight_decay": 0.0, "name": "weights"}
        )
        optimizer = torch.optim.AdamW(groups, weight_decay=self.cfg.weight_decay)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in groups],
            total_steps=self.trainer.estimated_stepping_batches,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def task_checkpoints(dirpath):
    monitors = {
        "scene": ("val/scene_acc", "max"),
        "depth": ("val/depth_mae", "min"),
        "edges": ("val/edges_loss", "min"),
    }
    return {
        task: ModelCheckpoint(
            dirpath=dirpath / task,
            filename="best-{epoch}",
            monitor=monitor,
            mode=mode,
            save_top_k=1,
            save_weights_only=True,
        )
        for task, (monitor, mode) in monitors.items()
    }


def main(max_epochs=4, **trainer_options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    args = parser.parse_args([])
    with open(args.config, "w") as f:
        yaml.safe_dump({"width": 10, "seed": 7}, f)

    cfg = Config.from_yaml(args.config)
    pl.seed_everything(cfg.seed)
    data, model = MultiTaskData(cfg), MultiTaskNet(cfg)
    checkpoints = task_checkpoints(args.out / "checkpoints")
    overall = ModelCheckpoint(
        monitor="val/mean_loss", save_last="link", save_top_k=-1, filename="{epoch}-{val/mean_loss:.3f}"
    )
    csv_logger = CSVLogger(args.out, name="csv", flush_logs_every_n_steps=1)
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        callbacks=[
            *checkpoints.values(),
            overall,
            EarlyStopping("val/loss/dataloader_idx_0", patience=10),
            LearningRateMonitor("step"),
        ],
        logger=[csv_logger, TensorBoardLogger(args.out, name="tb", default_hp_metric=False)],
        log_every_n_steps=3,
        check_val_every_n_epoch=1,
        **trainer_options,
    )
    trainer.fit(model, datamodule=data)

    rows = pd.read_csv(Path(csv_logger.log_dir) / "metrics.csv")
    assert rows["val/mean_loss"].notna().sum() == trainer.current_epoch
    assert rows["val/loss/dataloader_idx_2"].notna().sum() == trainer.current_epoch
    assert any(column.startswith("lr-AdamW") for column in rows.columns)
    assert len(overall.best_k_models) == trainer.current_epoch
    for task, checkpoint in checkpoints.items():
        rank_zero_info(f"{task}: {checkpoint.best_model_score:.4f} {checkpoint.best_model_path}")
        assert Path(checkpoint.best_model_path).parent.name == task
        results = trainer.test(model, datamodule=data, ckpt_path=checkpoint.best_model_path, verbose=False)
        assert len(results) == len(cfg.tasks)
        assert "test/loss/dataloader_idx_1" in results[1]
        assert "test/scene_acc" in results[0]

    best = MultiTaskNet.load_from_checkpoint(overall.best_model_path, cfg=cfg)
    assert best.hparams.config["width"] == 10
    validated = trainer.validate(best, datamodule=data, verbose=False)
    assert abs(validated[0]["val/mean_loss"] - float(overall.best_model_score)) < 1e-5
    return trainer, best


if __name__ == "__main__":
    main()
