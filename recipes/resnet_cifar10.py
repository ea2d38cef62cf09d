"""A residual network on CIFAR-10, and the fastest known way to 94 %.

paceline fit resnet-cifar10               # ResNet-18
paceline fit resnet-cifar10 preset=94     # airbench94: 94.01 % published, 9.9 epochs
paceline fit resnet-cifar10 preset=tiny   # handwritten digits, on a CPU in a minute
"""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from paceline import PacelineError, TrainModule
from paceline.callbacks import Checkpoint, Lookahead
from paceline.config import Experiment, RunConfig
from paceline.recipes.data.image_batches import ImageBatches, ImageData
from paceline.recipes.data.images import channel_statistics, cifar10_or_digits
from paceline.recipes.networks.resnet import ResNet, SpeedNet

Part = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(RunConfig):
    """Settings of the recipe."""

    data: Literal["auto", "cifar10", "digits"] = "auto"
    """``auto``: CIFAR-10 where its files exist or can be downloaded, else scikit-learn's digits."""
    data_dir: Path = Path("data")
    """Where the files of CIFAR-10 are, or are downloaded to."""
    model: Literal["resnet", "speed"] = "resnet"
    """``resnet``: ResNet-18 with the default widths; ``speed``: the network of airbench."""
    widths: tuple[PositiveInt, ...] = (64, 128, 256, 512)
    """Channels of each stage."""
    blocks: PositiveInt = 2
    """Blocks in each stage of ``resnet``."""
    stride: PositiveInt = 1
    """Of the first convolution of ``resnet``."""
    epochs: PositiveAmount = 30
    """Passes over the training data. If not a whole number, validation runs at the end only."""
    batch_size: PositiveInt = 512
    """Samples in a step, over all devices. What does not fill a step at the end of an epoch is dropped."""
    learning_rate: PositiveAmount = 0.4
    """Of SGD with Nesterov momentum, at its highest."""
    momentum: Part = 0.9
    """Of SGD."""
    weight_decay: Amount = 5e-4
    """Of SGD."""
    bias_rate: PositiveAmount = 1.0
    """Learning rate of the biases of norms, over ``learning_rate``."""
    label_smoothing: Part = 0.1
    """Of the training loss."""
    shift: NonNegativeInt = 4
    """Images are shifted by up to so many pixels."""
    lookahead: bool = False
    """Pull the weights to their average every 5 steps, more and more."""
    tta: bool = False
    """Evaluate the mean over mirrored and shifted images."""
    on_device: bool = False
    """Keep the data set in the memory of the accelerator."""


PRESETS: dict[str, dict[str, Any]] = {
    "94": {  # legacy/airbench94.py of github.com/KellerJordan/cifar10-airbench
        "model": "speed",
        "widths": [64, 256, 256],
        "epochs": 9.9,
        "batch_size": 1024,
        "learning_rate": 1.5,  # 11.5 / (1 + 1 / (1 - 0.85)), of the mean over the batch
        "momentum": 0.85,
        "weight_decay": 0.0153 / 11.5,  # independent of the learning rate there
        "bias_rate": 64,
        "label_smoothing": 0.2,
        "shift": 2,
        "lookahead": True,
        "tta": True,
        "on_device": True,
        "trainer": {"precision": "fp16", "channels_last": True},
    },
    "tiny": {  # digits are not mirrored
        "data": "digits",
        "widths": [16, 32, 64],
        "blocks": 1,
        "stride": 2,
        "epochs": 12,
        "batch_size": 64,
        "learning_rate": 0.1,
        "shift": 2,
        "trainer": {"sync_batchnorm": True},
    },
}


class ResNetClassifier(TrainModule):
    """Trains a network on images with SGD and a triangular learning rate.

    Args:
        model: ``resnet`` or ``speed``.
        widths: Channels of each stage.
        blocks: Blocks in each stage of ``resnet``.
        stride: Of the first convolution of ``resnet``.
    """

    def __init__(
        self,
        model: str = "resnet",
        widths: tuple[int, ...] = (64, 128, 256, 512),
        blocks: int = 2,
        stride: int = 1,
        learning_rate: float = 0.4,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        bias_rate: float = 1.0,
        label_smoothing: float = 0.1,
        tta: bool = False,
    ) -> None:
        super().__init__()
        self.model = SpeedNet(tuple(widths)) if model == "speed" else ResNet(tuple(widths), blocks, stride)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        images, labels = batch
        return measured(self(images), labels, self.hparams["label_smoothing"])

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        images, labels = batch
        return measured(averaged(self, images) if self.hparams["tta"] else self(images), labels)

    def test_step(self, batch: Any) -> dict[str, Tensor]:
        return self.validation_step(batch)

    def predict_step(self, batch: Any) -> Tensor:
        classes: Tensor = self(batch[0]).argmax(1)
        return classes

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        bias = self.model.whiten.bias if isinstance(self.model, SpeedNet) else None
        if bias is not None and self.epoch >= 3:
            bias.grad = None  # it is trained in the first three epochs only

    def configure_optimizers(self) -> Any:
        chosen = self.hparams
        rate, decay, scale = chosen["learning_rate"], chosen["weight_decay"], chosen["bias_rate"]
        norms = [m.bias for m in self.modules() if hasattr(m, "running_mean")]
        others = [p for p in self.parameters() if p.requires_grad and all(p is not b for b in norms)]
        groups = [
            {"params": norms, "lr": rate * scale, "weight_decay": decay / scale},
            {"params": others, "lr": rate, "weight_decay": decay},
        ]
        optimizer = torch.optim.SGD(groups, rate, chosen["momentum"], nesterov=True)
        total = self.trainer.total_steps or 1
        schedule = LambdaLR(optimizer, lambda step: triangle(step / total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def measured(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> dict[str, Tensor]:
    """The loss, and the part of the labels that is right."""
    right = (logits.detach().argmax(1) == labels).float().mean()
    return {"loss": F.cross_entropy(logits, labels, label_smoothing=smoothing), "accuracy": right}


def triangle(done: float, start: float = 0.2, peak: float = 0.23, end: float = 0.07) -> float:
    """The learning rate over its highest one, when a part ``done`` of the run is done."""
    if done < peak:
        return start + (1 - start) * done / peak
    return 1 + (end - 1) * (done - peak) / (1 - peak)


def averaged(network: Any, images: Tensor) -> Tensor:
    """Mean logits: one half of the images as they are, one of two shifted by a pixel, each mirrored too."""
    height, width = images.shape[2:]
    padded = F.pad(images, [1] * 4, mode="reflect")
    views = [images, padded[:, :, :height, :width], padded[:, :, 2:, 2:]]
    plain, first, second = (network(view) + network(view.flip(3)) for view in views)
    mean: Tensor = plain / 4 + (first + second) / 8
    return mean


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the best accuracy on the test set is kept."""
    dataset, (train, test) = cifar10_or_digits(config.data, config.data_dir)
    if config.batch_size > len(train[0]):
        raise PacelineError(
            "batch_size is above the number of training images",
            code="recipe-settings",
            got=config.batch_size,
            allowed=f"at most {len(train[0])}",
        )
    callbacks: list[Any] = [Checkpoint(monitor="val/accuracy")]
    if config.lookahead:
        callbacks.append(Lookahead(every=5, alpha=lambda done: 1 - 0.95**5 * done**3))
    steps = math.ceil(config.epochs * (len(train[0]) // config.batch_size))
    trainer = config.make_trainer(
        name="resnet-cifar10",
        global_batch_size=config.batch_size,
        max_steps=steps,
        validate_every="1ep" if config.epochs.is_integer() else steps,
        callbacks=callbacks,
    )
    statistics = channel_statistics(train[0])
    data = ImageData(
        ImageBatches(*train, *statistics, config.shift, dataset == "cifar10", seed=trainer.settings.seed),
        ImageBatches(*test, *statistics),
        config.batch_size,
        config.on_device,
    )
    torch.manual_seed(trainer.settings.seed)
    chosen = config.model_dump(include=set(inspect.signature(ResNetClassifier).parameters))
    module = ResNetClassifier(**chosen)
    if isinstance(module.model, SpeedNet):
        module.model.whiten_as(data.train.images[:5000])
    return Experiment(trainer, module, datamodule=data)
