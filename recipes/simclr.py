"""SimCLR (Chen et al., 2020, arXiv:2002.05709): features of images without labels, then a few labels.

paceline fit simclr                       # CIFAR-10, ResNet-18
paceline fit simclr preset=tiny           # handwritten digits, on a CPU in a minute
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.recipes.data.images import Images, channel_statistics, cifar10_or_digits, few_labels
from paceline.recipes.networks.resnet import ResNet
from paceline.schedules import Cosine

Part = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(RunConfig):
    """Settings of the recipe."""

    data: Literal["auto", "cifar10", "digits"] = "auto"
    """``auto``: CIFAR-10 where its files exist or can be downloaded, else scikit-learn's digits."""
    data_dir: Path = Path("data")
    """Where the files of CIFAR-10 are, or are downloaded to."""
    widths: tuple[PositiveInt, ...] = (64, 128, 256, 512)
    """Channels of each stage of the residual network."""
    blocks: PositiveInt = 2
    """Blocks in each stage."""
    stride: PositiveInt = 1
    """Of the first convolution."""
    projection: PositiveInt = 128
    """Numbers in the vector that the loss compares."""
    temperature: PositiveAmount = 0.5
    """Divides similarities in the loss."""
    smallest_crop: Part = 0.2
    """The smallest part of an image's area in a view."""
    rotate: Amount = 0.0
    """By how many degrees views are rotated at most."""
    jitter: Part = 0.4
    """By how much brightness, contrast and saturation change at most."""
    labels_per_class: PositiveInt = 10
    """Labelled images per class that held-out images are compared with in a validation."""
    epochs: PositiveInt = 1000
    """Passes over the training data."""
    batch_size: PositiveInt = 512
    """Images in a step, over all devices; each is compared with all others."""
    workers: int = Field(default=8, ge=0)
    """Processes that read, for each rank."""
    learning_rate: PositiveAmount = 0.6
    """Of SGD with momentum 0.9, at its highest; a cosine follows."""


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "data": "digits",
        "widths": [16, 32, 64],
        "blocks": 1,
        "stride": 4,
        "projection": 32,
        "temperature": 0.7,
        "smallest_crop": 0.6,
        "rotate": 15,
        "jitter": 0.1,
        "epochs": 50,
        "batch_size": 256,
        "workers": 0,
        "learning_rate": 0.05,
    },
}


class Views(Dataset[tuple[Tensor, Tensor]]):
    """Two random views of each image: a part of it at the old size, in other colours.

    Args:
        images: Of mean 0 and deviation 1 per channel.
        flip: Mirror half of the views.
    """

    def __init__(
        self, images: Tensor, smallest_crop: float, rotate: float, jitter: float, flip: bool
    ) -> None:
        self.images, self.smallest_crop, self.rotate = images, smallest_crop, rotate
        self.jitter, self.flip = jitter, flip

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.view(self.images[index]), self.view(self.images[index])

    def view(self, image: Tensor) -> Tensor:
        """A random view (3, height, width)."""
        area, ratio, x, y, angle, flip, bright, contrast, colour, grey = torch.rand(10).tolist()
        area, ratio = 1 - (1 - self.smallest_crop) * area, (3 / 4) ** (1 - 2 * ratio)
        width, height = (min(1.0, (area * r) ** 0.5) for r in (ratio, 1 / ratio))
        angle = math.radians(self.rotate) * (2 * angle - 1)
        mirror = -1 if self.flip and flip < 0.5 else 1
        place = [
            [mirror * width * math.cos(angle), -height * math.sin(angle), (1 - width) * (2 * x - 1)],
            [mirror * width * math.sin(angle), height * math.cos(angle), (1 - height) * (2 * y - 1)],
        ]
        grid = F.affine_grid(torch.tensor([place]), [1, *image.shape], align_corners=False)
        view: Tensor = F.grid_sample(image[None], grid, padding_mode="border", align_corners=False)[0]
        mean = view.mean(0, keepdim=True)
        saturation = 0 if self.flip and grey < 0.2 else 1 + self.jitter * (2 * colour - 1)
        view = mean + saturation * (view - mean)
        view *= 1 + self.jitter * (2 * contrast - 1)
        return view.add_(self.jitter * (2 * bright - 1))


class SimCLR(TrainModule):
    """Learns to tell the two views of an image from the views of all others in the step.

    Validation classifies held-out images by the most similar of a few labelled ones.

    Args:
        widths: Channels of each stage.
        blocks: Blocks in each stage.
        stride: Of the first convolution.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        blocks: int = 2,
        stride: int = 1,
        projection: int = 128,
        temperature: float = 0.5,
        learning_rate: float = 0.6,
    ) -> None:
        super().__init__()
        self.network = ResNet(tuple(widths), blocks, stride).body
        width = widths[-1]
        self.project = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection))
        self.labelled: list[tuple[Tensor, Tensor]] = []
        self.held_out: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)
        return features

    def training_step(self, batch: Any) -> Tensor:
        views = torch.cat(batch)  # the first views, then the second ones
        mine = F.normalize(self.project(self(views)).float(), dim=1)
        everyone = self.all_gather(mine, sync_grads=True).flatten(0, 1)
        places = torch.arange(len(mine), device=mine.device) + self.trainer.ranks.data_rank * len(mine)
        similarity = mine @ everyone.T / self.hparams["temperature"]
        similarity.scatter_(1, places[:, None], float("-inf"))  # a view is not compared with itself
        return F.cross_entropy(similarity, places.roll(len(mine) // 2))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        images, labels = batch
        found = (self.labelled, self.held_out)[dataloader_idx]
        found.append((F.normalize(self(images).float(), dim=1), labels))

    def on_validation_end(self, trainer: Any) -> None:
        labelled = [pair for rank in trainer.ranks.gather_data(self.labelled) for pair in rank]
        bank, classes = (torch.cat(part).to(self.device) for part in zip(*labelled, strict=True))
        for features, labels in self.held_out:
            found = classes[(features @ bank.T).argmax(1)]
            self.log("val/accuracy", (found == labels).float().mean(), weight=len(labels))
        self.labelled, self.held_out = [], []

    def configure_optimizers(self) -> Any:
        rate = self.hparams["learning_rate"]
        optimizer = torch.optim.SGD(self.parameters(), rate, momentum=0.9, weight_decay=1e-6)
        return {"optimizer": optimizer, "lr_scheduler": Cosine(warmup="2%", end=1e-3)}


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the best accuracy with few labels is kept."""
    dataset, (train, test) = cifar10_or_digits(config.data, config.data_dir)
    trainer = config.make_trainer(
        name="simclr",
        max_epochs=config.epochs,
        global_batch_size=config.batch_size,
        sync_batchnorm=True,
        callbacks=[Checkpoint(monitor="val/accuracy")],
    )
    statistics = channel_statistics(train[0])
    images = Images(*train, *statistics)
    chosen = few_labels(train[1], config.labels_per_class)
    torch.manual_seed(trainer.settings.seed)
    module = SimCLR(
        config.widths,
        config.blocks,
        config.stride,
        config.projection,
        config.temperature,
        config.learning_rate,
    )
    views = Views(
        images.images, config.smallest_crop, config.rotate, config.jitter, flip=dataset == "cifar10"
    )
    options: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    return Experiment(
        trainer,
        module,
        train=DataLoader(views, shuffle=True, drop_last=True, **options),
        val={
            "labelled": DataLoader(Images(train[0][chosen], train[1][chosen], *statistics), **options),
            "held_out": DataLoader(Images(*test, *statistics), **options),
        },
    )
