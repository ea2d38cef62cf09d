"""A vision model of Hugging Face with a new head, on folders of images: all of it, or the head alone.

paceline fit finetune-vision                  # a small random ViT on handwritten digits, on a CPU
paceline fit finetune-vision preset=vit data=FOLDER    # of FOLDER/train/CLASS/*.jpg and FOLDER/val
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import PacelineError, TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.optimizers import has_fused_kernels
from paceline.recipes.data.hugging_face import TINY, ExportAtEnd, require_packages
from paceline.recipes.data.images import Images, channel_statistics, digits, normalised
from paceline.recipes.data.tiny_models import no_folder_too, tiny_vit
from paceline.schedules import Cosine

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


class Config(RunConfig):
    """Settings of the recipe."""

    model: Annotated[str, BeforeValidator(no_folder_too)] = TINY
    """A name on the Hugging Face hub, a folder, or ``tiny``: a small random ViT."""
    data: Path | None = None
    """A folder with ``train/CLASS/IMAGE`` and ``val/CLASS/IMAGE``; none: scikit-learn's digits."""
    trained: Literal["all", "head"] = "all"
    """Train all weights, or the new head alone."""
    batch_size: PositiveInt = 32
    """Images on each device."""
    workers: NonNegativeInt = 0
    """Processes that read, for each rank."""
    epochs: PositiveInt = 25
    """Passes over the data."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-3
    """The highest; a cosine follows."""
    warmup: Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")] = "10%"
    """The part of the run in which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Of AdamW."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of the training loss."""


PRESETS: dict[str, dict[str, Any]] = {
    "vit": {
        "model": "google/vit-base-patch16-224-in21k",
        "epochs": 5,
        "learning_rate": 5e-5,
        "workers": 8,
        "trainer": {"precision": "bf16"},
    }
}


class VisionClassifier(TrainModule):
    """Trains an image classifier of transformers with cross entropy.

    Args:
        model: A name, a folder, or ``tiny``.
        labels: Their names, in order.
        trained: ``all`` or ``head``.
    """

    def __init__(
        self,
        model: str,
        labels: list[str],
        trained: str = "all",
        learning_rate: float = 2e-3,
        warmup: str = "10%",
        weight_decay: float = 0.01,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        self.model = load_classifier(model, labels)
        if trained == "head":
            self.model.base_model.requires_grad_(False).eval()

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        return self._step(batch, self.hparams["label_smoothing"])

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self._step(batch)

    test_step = validation_step

    def _step(self, batch: Any, smoothing: float = 0.0) -> dict[str, Tensor]:
        images, labels = batch
        size = self.model.config.image_size
        if images.shape[-1] != size:
            images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
        logits = self.model(pixel_values=images).logits
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return {"loss": F.cross_entropy(logits, labels, label_smoothing=smoothing), "accuracy": accuracy}

    def configure_optimizers(self) -> Any:
        settings = self.hparams
        optimizer = torch.optim.AdamW(
            [parameter for parameter in self.parameters() if parameter.requires_grad],
            settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            fused=has_fused_kernels(self.device) or None,
        )
        return {"optimizer": optimizer, "lr_scheduler": Cosine(warmup=settings["warmup"])}


def load_classifier(model: str, labels: list[str]) -> Any:
    """The model in training mode, with its weights on the CPU, and a new head where the labels differ."""
    if model == TINY:
        return tiny_vit(labels)
    from transformers import AutoModelForImageClassification

    names = dict(enumerate(labels))
    return AutoModelForImageClassification.from_pretrained(
        model,
        id2label=names,
        label2id={name: number for number, name in names.items()},
        ignore_mismatched_sizes=True,
    ).train()


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images in a folder for each class, as floats (3, size, size).

    Args:
        folder: With a folder for each class.
        size: Height and width that the model takes.
        mean: Of each channel, of pixels from 0 to 1.
        std: The standard deviation of each channel, likewise.
        augment: Take a random part of each image and mirror half of them (Szegedy et al. 2014,
            https://arxiv.org/abs/1409.4842); else its middle.

    Raises:
        PacelineError: for a folder without images.
    """

    def __init__(self, folder: Path, size: int, mean: list[float], std: list[float], augment: bool) -> None:
        self.labels = (
            sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        )
        self.files = [
            (file, number)
            for number, label in enumerate(self.labels)
            for file in sorted((folder / label).rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        if not self.files:
            raise PacelineError(
                f"there are no images in {folder}", code="file-not-found", allowed=f"{folder}/CLASS/IMAGE"
            )
        self.size, self.mean, self.std, self.augment = size, mean, std, augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        file, label = self.files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
            box = random_part(*image.size) if self.augment else middle(*image.size)
            image = image.resize((self.size, self.size), Image.Resampling.BICUBIC, box)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if self.augment and torch.rand(()) < 0.5:
            pixels = pixels.flip(-1)
        return normalised(pixels, self.mean, self.std), label


def random_part(width: int, height: int) -> tuple[float, float, float, float]:
    """The box (left, top, right, bottom) of 35 to 100 % of an image, 3/4 to 4/3 as wide as high."""
    area = width * height * float(torch.empty(()).uniform_(0.35, 1.0))
    ratio = math.exp(float(torch.empty(()).uniform_(math.log(3 / 4), math.log(4 / 3))))
    wide, high = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    left, top = (float(torch.rand(())) * room for room in (width - wide, height - high))
    return left, top, left + wide, top + high


def middle(width: int, height: int) -> tuple[float, float, float, float]:
    """The box of the largest square in the middle of an image."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def digit_images() -> tuple[Images, Images]:
    """scikit-learn's digits, shifted by up to a pixel to train on."""
    (pixels, classes), test = digits()
    statistics = channel_statistics(pixels)
    return Images(pixels, classes, *statistics, crop=1), Images(*test, *statistics)


def load_processor(model: str) -> Any:
    """What knows the model's mean and deviation of pixels; None for ``tiny``."""
    if model == TINY:
        return None
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(model)


def image_folders(folder: Path, processor: Any, model: str) -> tuple[ImageFolder, ImageFolder, list[str]]:
    """The images of ``train`` and ``val`` as the model takes them, and their classes.

    Raises:
        PacelineError: where these have other classes.
    """
    size, mean, std = 32, [0.5] * 3, [0.5] * 3
    if processor is not None:
        from transformers import AutoConfig

        size = AutoConfig.from_pretrained(model).image_size
        mean, std = processor.image_mean, processor.image_std
    train = ImageFolder(folder / "train", size, mean, std, augment=True)
    val = ImageFolder(folder / "val", size, mean, std, augment=False)
    if val.labels != train.labels:
        raise PacelineError(
            "train and val have other classes",
            code="records-unusable",
            got=f"{train.labels} and {val.labels}",
        )
    return train, val, train.labels


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    require_packages("finetune-vision", "transformers")
    processor = load_processor(config.model)
    train: Images | ImageFolder
    val: Images | ImageFolder
    if config.data is None:
        labels = [str(number) for number in range(10)]
        train, val = digit_images()
    else:
        train, val, labels = image_folders(config.data.expanduser(), processor, config.model)
    trainer = config.make_trainer(
        name="finetune-vision",
        max_epochs=config.epochs,
        callbacks=[Checkpoint(monitor="val/accuracy"), ExportAtEnd(processor)],
    )
    torch.manual_seed(trainer.settings.seed)
    module = VisionClassifier(
        config.model,
        labels,
        **config.model_dump(
            include={"trained", "learning_rate", "warmup", "weight_decay", "label_smoothing"}
        ),
    )
    shared: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    return Experiment(
        trainer,
        module,
        train=DataLoader(train, shuffle=True, **shared),
        val=DataLoader(val, **shared),
    )
