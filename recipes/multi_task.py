"""Two tasks, one network: few labelled images, and many of which it tells how they were turned.

paceline fit multi-task                        # samples of both tasks in a step, by a weighted mixture
paceline fit multi-task together=loaders       # a loader for each task, a batch of each in a step
paceline fit multi-task preset=tiny            # handwritten digits, on a CPU in a minute
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paceline import Mixture, TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.recipes.data.images import Images, channel_statistics, cifar10_or_digits, few_labels
from paceline.recipes.networks.resnet import ResNet

TASKS = {"classes": 10, "turns": 4}
"""The tasks, and the answers that each has."""


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
    labels_per_class: PositiveInt = 400
    """Images of each class whose label is used."""
    together: Literal["mixture", "loaders"] = "mixture"
    """Samples of both tasks from one loader, or a loader for each."""
    turns: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The share of turned images in the samples of a step; with ``loaders``, in the loss."""
    epochs: PositiveInt = 100
    """Passes: over as many images as both tasks have; with ``loaders``, of the longer loader."""
    batch_size: PositiveInt = 256
    """Images in a step, over all devices."""
    workers: int = Field(default=8, ge=0)
    """Processes that read, for each rank."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """Of AdamW, at the start; a cosine ends at 0."""


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "data": "digits",
        "widths": [16, 32],
        "blocks": 1,
        "stride": 4,
        "labels_per_class": 5,
        "epochs": 15,
        "batch_size": 64,
        "workers": 0,
        "learning_rate": 1e-2,
    },
}


class Task(Dataset[tuple[Tensor, Tensor, int]]):
    """Images with the answer of one task, and the number of the task.

    Args:
        images: With their classes.
        task: ``classes``, or ``turns``: images are turned by 0 to 3 quarters (Gidaris et al., 2018,
            arXiv:1803.07728).
    """

    def __init__(self, images: Images, task: str) -> None:
        self.images, self.task = images, [*TASKS].index(task)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        image, answer = self.images[index]
        if self.task:
            answer = torch.randint(4, ())
            image = image.rot90(int(answer), (1, 2))
        return image, answer, self.task


class MultiTask(TrainModule):
    """A residual network with a head for each task.

    Args:
        widths: Channels of each stage.
        blocks: Blocks in each stage.
        stride: Of the first convolution.
        turns: With a loader for each task, what the turned images count in the loss.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        blocks: int = 2,
        stride: int = 1,
        turns: float = 0.5,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__()
        self.body = ResNet(tuple(widths), blocks, stride).body
        self.heads = nn.ModuleList(nn.Linear(widths[-1], answers) for answers in TASKS.values())

    def forward(self, images: Tensor) -> list[Tensor]:
        """The logits of each task."""
        features = self.body(images)
        return [head(features) for head in self.heads]

    def losses(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss of each sample by its own task, and whether it is right."""
        images, answers, tasks = batch
        losses, right = torch.zeros_like(answers, dtype=torch.float32), torch.zeros_like(answers)
        for task, logits in enumerate(self(images)):
            allowed = answers.clamp_max(logits.shape[1] - 1)  # those of the other task are not used
            mine = tasks == task
            losses = torch.where(mine, F.cross_entropy(logits, allowed, reduction="none"), losses)
            right = torch.where(mine, (logits.argmax(1) == answers).long(), right)
        return losses, right.float()

    def training_step(self, batch: Any) -> Tensor:
        if not isinstance(batch, dict):
            return self.losses(batch)[0].mean()
        images, answers, tasks = (torch.cat(part) for part in zip(*batch.values(), strict=True))
        losses, _ = self.losses((images, answers, tasks))  # one pass, so that norms see both tasks
        turns = self.hparams["turns"]
        return (losses * torch.where(tasks == 1, 2 * turns, 2 * (1 - turns))).mean()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> dict[str, Tensor]:
        losses, right = self.losses(batch)
        return {"loss": losses.mean(), "accuracy": right.mean()}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams["learning_rate"])
        return {"optimizer": optimizer, "lr_scheduler": "cosine"}


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the weights with the best accuracy of classes are kept."""
    dataset, (train, test) = cifar10_or_digits(config.data, config.data_dir)
    trainer = config.make_trainer(
        name="multi-task",
        max_epochs=config.epochs,
        global_batch_size=config.batch_size,
        sync_batchnorm=True,
        callbacks=[Checkpoint(monitor="val/classes/accuracy")],
    )
    options: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    statistics, flip = channel_statistics(train[0]), dataset == "cifar10"
    labelled = few_labels(train[1], config.labels_per_class)
    parts = {"classes": (train[0][labelled], train[1][labelled]), "turns": train}
    tasks = {
        task: Task(Images(*part, *statistics, crop=2, flip=flip), task) for task, part in parts.items()
    }
    if config.together == "mixture":
        shares = {tasks["classes"]: 1 - config.turns, tasks["turns"]: config.turns}
        mixture = Mixture(shares, seed=trainer.settings.seed)
        loaders: Any = DataLoader(mixture, drop_last=True, **options)  # shuffled already
    else:
        loaders = {
            task: DataLoader(images, shuffle=True, drop_last=True, **options)
            for task, images in tasks.items()
        }
    torch.manual_seed(trainer.settings.seed)
    module = MultiTask(config.widths, config.blocks, config.stride, config.turns, config.learning_rate)
    held_out = Images(*test, *statistics)
    return Experiment(
        trainer,
        module,
        train=loaders,
        val={task: DataLoader(Task(held_out, task), **options) for task in TASKS},
    )
