"""A Vision Transformer on CIFAR-10: the run that this project grew out of.

paceline fit vit-cifar10                  # ViT-B/16 at 224 pixels, as the tutorial has it
paceline fit vit-cifar10 preset=scratch   # a ViT for 32 pixels, augmented: 90.92 % published
paceline fit vit-cifar10 preset=tiny      # a small one that trains on a CPU in a minute
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from paceline import TrainModule
from paceline.callbacks import Checkpoint, Curves
from paceline.config import Experiment, RunConfig
from paceline.optimizers import has_fused_kernels
from paceline.recipes.data.auto_augment import auto_augment
from paceline.recipes.data.images import Images, channel_statistics, cifar10_or_digits
from paceline.recipes.networks.vit import VisionTransformer
from paceline.schedules import Cosine

Part = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Model(BaseModel):
    """Arguments of ``VisionTransformer``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    image: PositiveInt = 224
    """Height and width that images are scaled to, in pixels; a multiple of ``patch``."""
    patch: PositiveInt = 16
    """Height and width of a patch, in pixels."""
    width: PositiveInt = 768
    """Numbers in a token; a multiple of ``heads``."""
    depth: PositiveInt = 12
    """Blocks."""
    heads: PositiveInt = 12
    """Attention heads in a block."""
    mlp_ratio: PositiveAmount = 4.0
    """Width of the hidden layer of a block, over ``width``."""
    dropout: Part = 0.1
    """Rate of dropout, in attention too."""
    drop_path: Part = 0.1
    """Rate at which the last block is skipped; those before it less often."""


class Config(RunConfig):
    """Settings of the recipe."""

    data: Literal["auto", "cifar10", "digits"] = "auto"
    """``auto``: CIFAR-10 where its files exist or can be downloaded, else scikit-learn's digits."""
    data_dir: Path = Path("data")
    """Where the files of CIFAR-10 are, or are downloaded to."""
    model: Model = Model()
    """The Vision Transformer."""
    epochs: PositiveInt = 20
    """Passes over the training data."""
    batch_size: PositiveInt = 128
    """Samples on each device."""
    workers: NonNegativeInt = 8
    """Processes that read, for each rank."""
    optimizer: Literal["adamw", "adam"] = "adamw"
    """Adam adds the weight decay to the gradient."""
    learning_rate: PositiveAmount = 1e-4
    """The highest; a cosine follows."""
    final_rate: Part = 0.0
    """Learning rate at the end, over ``learning_rate``."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs in which the learning rate rises."""
    weight_decay: Amount = 0.01
    """Of the optimizer."""
    label_smoothing: Part = 0.0
    """Of the training loss."""
    shift: NonNegativeInt = 4
    """Training images are shifted by up to so many pixels; those of CIFAR-10 are mirrored too."""
    auto_augment: bool = False
    """Apply AutoAugment's policy for CIFAR-10."""
    dpi: PositiveInt = 300
    """Resolution of curves.png."""


PRESETS: dict[str, dict[str, Any]] = {
    "scratch": {  # 6.3 M parameters, as github.com/omihub777/ViT-CIFAR
        "model": {
            "image": 32,
            "patch": 4,
            "width": 384,
            "depth": 7,
            "heads": 12,
            "mlp_ratio": 1.0,
            "dropout": 0.0,
            "drop_path": 0.0,
        },
        "epochs": 200,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "final_rate": 0.01,
        "warmup_epochs": 5,
        "weight_decay": 5e-5,
        "label_smoothing": 0.1,
        "auto_augment": True,
        "trainer": {"precision": "bf16"},
    },
    "tiny": {
        "data": "digits",
        "model": {
            "image": 32,
            "patch": 8,
            "width": 96,
            "depth": 4,
            "heads": 4,
            "mlp_ratio": 2.0,
            "dropout": 0.0,
            "drop_path": 0.0,
        },
        "shift": 1,
        "epochs": 40,
        "batch_size": 32,
        "workers": 0,
        "learning_rate": 2e-3,
        "warmup_epochs": 5,
        "label_smoothing": 0.1,
    },
}


OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


class ViTClassifier(TrainModule):
    """Trains a Vision Transformer with cross entropy, Adam or AdamW, and a cosine.

    Args:
        model: Arguments of ``VisionTransformer``.
        dataset: What it is trained on; kept with the run.
    """

    def __init__(
        self,
        model: dict[str, Any],
        optimizer: str = "adamw",
        learning_rate: float = 1e-4,
        final_rate: float = 0.0,
        warmup_epochs: int = 0,
        weight_decay: float = 0.01,
        label_smoothing: float = 0.0,
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
        return self._loss_and_accuracy(batch, self.hparams["label_smoothing"])

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self._loss_and_accuracy(batch)

    def test_step(self, batch: Any) -> dict[str, Tensor]:
        return self._loss_and_accuracy(batch)

    def predict_step(self, batch: Any) -> Tensor:
        classes: Tensor = self(batch[0]).argmax(1)
        return classes

    def _loss_and_accuracy(self, batch: Any, smoothing: float = 0.0) -> dict[str, Tensor]:
        images, labels = batch
        logits = self(images)
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return {"loss": F.cross_entropy(logits, labels, label_smoothing=smoothing), "accuracy": accuracy}

    def configure_optimizers(self) -> Any:
        settings = self.hparams
        optimizer = OPTIMIZERS[settings["optimizer"]](
            self.parameters(),
            lr=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            fused=has_fused_kernels(self.device) or None,
        )
        epochs = settings["warmup_epochs"]
        cosine = Cosine(warmup=f"{epochs}ep" if epochs else 0, end=settings["final_rate"])
        return {"optimizer": optimizer, "lr_scheduler": cosine}


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the best accuracy on the test set is kept."""
    trainer = config.make_trainer(
        name="vit-cifar10",
        max_epochs=config.epochs,
        callbacks=[Checkpoint(monitor="val/accuracy"), Curves(dpi=config.dpi)],
    )
    dataset, (train, test) = cifar10_or_digits(config.data, config.data_dir)
    mean, std = channel_statistics(train[0])
    # A mirrored digit is another sign, a mirrored animal is not.
    training = Images(
        *train,
        mean,
        std,
        crop=config.shift,
        flip=dataset == "cifar10",
        augment=auto_augment if config.auto_augment else None,
    )
    shared: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    torch.manual_seed(trainer.settings.seed)
    module = ViTClassifier(
        config.model.model_dump(),
        config.optimizer,
        config.learning_rate,
        config.final_rate,
        config.warmup_epochs,
        config.weight_decay,
        config.label_smoothing,
        dataset,
    )
    return Experiment(
        trainer,
        module,
        train=DataLoader(training, shuffle=True, **shared),
        val=DataLoader(Images(*test, mean, std), **shared),
    )
