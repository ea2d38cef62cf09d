"""Distillation (Hinton et al., 2015, arXiv:1503.02531): a small network learns from a large, frozen one.

paceline fit resnet-cifar10 && paceline fit distill     # CIFAR-10; the teacher is runs/resnet-cifar10/1
paceline fit resnet-cifar10 preset=tiny && paceline fit distill preset=tiny       # digits, on a CPU
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from paceline import PacelineError, Run, TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.recipes.data.images import Images, channel_statistics, cifar10_or_digits
from paceline.recipes.networks.resnet import ResNet
from paceline.recipes.resnet_cifar10 import ResNetClassifier

Part = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(RunConfig):
    """Settings of the recipe."""

    teacher: Path = Path("runs/resnet-cifar10/1")
    """The folder of a run of ``resnet-cifar10``; its best weights are taken."""
    data: Literal["auto", "cifar10", "digits"] = "auto"
    """``auto``: CIFAR-10 where its files exist or can be downloaded, else scikit-learn's digits."""
    data_dir: Path = Path("data")
    """Where the files of CIFAR-10 are, or are downloaded to."""
    widths: tuple[PositiveInt, ...] = (16, 32, 64)
    """Channels of each stage of the student."""
    blocks: PositiveInt = 1
    """Blocks in each stage of the student."""
    stride: PositiveInt = 1
    """Of the student's first convolution."""
    soft: Part = 0.9
    """What the teacher's answers count in the loss; the labels count the rest."""
    temperature: Positive = 4.0
    """Divides the logits of both: the higher, the more the unlikely classes count."""
    epochs: PositiveInt = 100
    """Passes over the training data."""
    batch_size: PositiveInt = 128
    """Images in a step, over all devices."""
    workers: int = Field(default=8, ge=0)
    """Processes that read, for each rank."""
    learning_rate: Positive = 2e-3
    """Of AdamW, at the start; a cosine ends at 0."""


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "data": "digits",
        "widths": [8, 16],
        "stride": 4,
        "soft": 1,
        "temperature": 2,
        "epochs": 20,
        "batch_size": 64,
        "workers": 0,
        "learning_rate": 1e-2,
    },
}


class Distill(TrainModule):
    """Trains a student to give the probabilities of its teacher.

    The teacher's weights are frozen, without gradients and optimizer state; checkpoints have them.

    Args:
        teacher: Arguments of ``ResNetClassifier``.
        widths: Channels of each stage of the student.
        blocks: Blocks in each stage of the student.
        stride: Of the student's first convolution.
        soft: What the teacher counts in the loss, from 0 to 1.
        temperature: Divides the logits of both.
    """

    def __init__(
        self,
        teacher: dict[str, Any],
        widths: tuple[int, ...],
        blocks: int = 1,
        stride: int = 1,
        soft: float = 0.9,
        temperature: float = 4.0,
        learning_rate: float = 2e-3,
    ) -> None:
        super().__init__()
        self.student = ResNet(tuple(widths), blocks, stride)
        self.teacher = ResNetClassifier(**teacher).requires_grad_(False).eval()

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        images, labels = batch
        soft, temperature = self.hparams["soft"], self.hparams["temperature"]
        logits = self.student(images)
        with torch.no_grad():
            wanted = self.teacher(images)
        taught = F.kl_div(
            F.log_softmax(logits / temperature, 1),
            F.log_softmax(wanted / temperature, 1),
            log_target=True,
            reduction="batchmean",
        )
        loss = soft * temperature**2 * taught + (1 - soft) * F.cross_entropy(logits, labels)
        return {"loss": loss, "agreement": (logits.argmax(1) == wanted.argmax(1)).float().mean()}

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        images, labels = batch
        found = {"accuracy": self.student(images), "teacher": self.teacher(images)}
        return {name: (logits.argmax(1) == labels).float().mean() for name, logits in found.items()}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.student.parameters(), self.hparams["learning_rate"])
        return {"optimizer": optimizer, "lr_scheduler": "cosine"}


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the student with the best accuracy is kept."""
    folder = config.teacher.expanduser()
    if not folder.exists():
        fix = "paceline fit resnet-cifar10, with the preset of this run; or teacher=FOLDER"
        raise PacelineError(
            "there is no run of a teacher", code="run-not-found", where=str(folder), fix=fix
        )
    dataset, (train, test) = cifar10_or_digits(config.data, config.data_dir)
    trainer = config.make_trainer(
        name="distill",
        max_epochs=config.epochs,
        global_batch_size=config.batch_size,
        sync_batchnorm=True,
        callbacks=[Checkpoint(monitor="val/accuracy")],
    )
    run = Run(folder)
    teacher = run.load(ResNetClassifier)
    learned = run.config["config"]["data"]
    if learned not in ("auto", dataset):
        fix = f"data={learned}, or a teacher that learned {dataset}"
        raise PacelineError(
            "the teacher learned other data",
            code="recipe-settings",
            where=str(folder),
            got=learned,
            fix=fix,
        )
    torch.manual_seed(trainer.settings.seed)
    module = Distill(
        dict(teacher.hparams),
        config.widths,
        config.blocks,
        config.stride,
        config.soft,
        config.temperature,
        config.learning_rate,
    )
    module.teacher.load_state_dict(teacher.state_dict())
    statistics = channel_statistics(train[0])
    options: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    augmented = Images(*train, *statistics, crop=2, flip=dataset == "cifar10")
    return Experiment(
        trainer,
        module,
        train=DataLoader(augmented, shuffle=True, drop_last=True, **options),
        val=DataLoader(Images(*test, *statistics), **options),
    )
