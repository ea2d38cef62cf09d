"""A Vision Transformer on CIFAR-10: the run that this project grew out of.

paceline fit vit-cifar10                  # ViT-B/16 at 224 pixels, as the tutorial has it
paceline fit vit-cifar10 preset=tiny      # a small one that trains on a CPU in a minute
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from paceline import Run, Trainer, TrainModule
from paceline.callbacks import Checkpoint, Curves
from paceline.recipes.images import Images, channel_statistics, cifar10_or_digits
from paceline.recipes.vit import VisionTransformer

Part = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(BaseModel):
    """The recipe's settings; ``trainer`` takes any argument of ``Trainer``."""

    model_config = ConfigDict(extra="forbid")

    data: Literal["auto", "cifar10", "digits"] = "auto"
    data_dir: Path = Path("data")
    image: PositiveInt = 224
    patch: PositiveInt = 16
    width: PositiveInt = 768
    depth: PositiveInt = 12
    heads: PositiveInt = 12
    mlp_ratio: PositiveAmount = 4.0
    dropout: Part = 0.1
    drop_path: Part = 0.1
    epochs: PositiveInt = 20
    batch_size: PositiveInt = 128
    workers: NonNegativeInt = 8
    learning_rate: PositiveAmount = 1e-4
    weight_decay: Amount = 0.01
    dpi: PositiveInt = 300
    trainer: dict[str, Any] = {}


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "image": 32,
        "patch": 8,
        "width": 96,
        "depth": 4,
        "heads": 4,
        "mlp_ratio": 2.0,
        "dropout": 0.0,
        "drop_path": 0.0,
        "epochs": 40,
        "batch_size": 32,
        "workers": 0,
        "learning_rate": 1e-3,
    },
}


FUSED = ("cuda", "xpu")
"""Devices on which a fused AdamW saves a wait for the device in each step."""


class ViTClassifier(TrainModule):
    """Trains a Vision Transformer with cross entropy, AdamW and a cosine over the epochs.

    Args:
        model: Arguments of ``VisionTransformer``.
        dataset: What it is trained on; kept with the run.
    """

    def __init__(
        self,
        model: dict[str, Any],
        epochs: int = 20,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
        dataset: str = "cifar10",
    ) -> None:
        super().__init__()
        self.model = VisionTransformer(**model)
        self.image = model.get("image", 224)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] != self.image:
            images = F.interpolate(images, size=self.image, mode="bilinear", align_corners=False)
        logits: Tensor = self.model(images)
        return logits

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        return self._loss_and_accuracy(batch)

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self._loss_and_accuracy(batch)

    def _loss_and_accuracy(self, batch: Any) -> dict[str, Tensor]:
        images, labels = batch
        logits = self(images)
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return {"loss": F.cross_entropy(logits, labels), "accuracy": accuracy}

    def configure_optimizers(self) -> Any:
        settings = self.hparams
        optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            fused=self.device.type in FUSED or None,
        )
        return optimizer, CosineAnnealingLR(optimizer, T_max=settings["epochs"])


def fit(config: Config, resume: str | None = None) -> Run:
    """Train with this configuration; the best accuracy on the test set is kept."""
    arguments: dict[str, Any] = {
        "name": "vit-cifar10",
        "max_epochs": config.epochs,
        "callbacks": [Checkpoint(monitor="val/accuracy"), Curves(dpi=config.dpi)],
    } | config.trainer
    trainer = Trainer(**arguments)  # first of all: a wrong argument is not found after a download
    with trainer.main_process_first(per_node=True):  # one download a machine
        dataset, (train, test) = cifar10_or_digits(config.data, config.data_dir)
    mean, std = channel_statistics(train[0])
    # A mirrored digit is another sign, a mirrored animal is not.
    training = Images(*train, mean, std, crop=4 if dataset == "cifar10" else 2, flip=dataset == "cifar10")
    shared: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    names = ("image", "patch", "width", "depth", "heads", "mlp_ratio", "dropout", "drop_path")
    torch.manual_seed(arguments.get("seed", 0))
    module = ViTClassifier(
        {name: getattr(config, name) for name in names},
        config.epochs,
        config.learning_rate,
        config.weight_decay,
        dataset,
    )
    run = trainer.fit(
        module,
        DataLoader(training, shuffle=True, **shared),
        DataLoader(Images(*test, mean, std), **shared),
        resume=resume,
    )
    best = next(c.best_score for c in trainer.callbacks if isinstance(c, Checkpoint))
    if best is not None and trainer.folder is not None:  # fast_dev_run keeps nothing
        print(f"best test accuracy on {dataset}: {best:.2%}, kept in {run.best}")
    return run
