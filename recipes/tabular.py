"""A table, from a CSV file: what the columns hold is part of the module, so it takes rows as they are.

paceline fit tabular                      # scikit-learn's breast cancer data, on a CPU in seconds
paceline fit tabular data=my.csv target=price
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig
from paceline.recipes.data.tables import Columns, breast_cancer, read_table

Part = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(RunConfig):
    """Settings of the recipe."""

    data: Path | None = None
    """A CSV file with the names of its columns in its first line; None: scikit-learn's breast cancer."""
    target: str = "target"
    """The column to predict. A column of numbers is predicted as a number, any other as a class."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The part of the rows to validate on, drawn at random, always the same."""
    width: PositiveInt = 128
    """Numbers in each hidden layer."""
    depth: PositiveInt = 2
    """Hidden layers."""
    dropout: Part = 0.2
    """The part of the hidden numbers that training sets to 0."""
    epochs: PositiveInt = 40
    """Passes over the rows that are trained on."""
    batch_size: PositiveInt = 32
    """Rows in a step, over all devices."""
    learning_rate: Positive = 1e-3
    """Of AdamW, at the start; a cosine ends at 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Of AdamW."""


PRESETS: dict[str, dict[str, Any]] = {
    "large": {"width": 512, "depth": 4, "epochs": 100, "batch_size": 1024},
}


class Tabular(TrainModule):
    """Predicts one column of a table from the others.

    Numbers get mean 0 and deviation 1, a missing one becomes 0 beside a mark; each value of another column
    has a vector, and values that training did not see share one.

    Args:
        columns: What the columns hold, ``Columns.arguments()``.
        width: Numbers in each hidden layer.
        depth: Hidden layers.
        dropout: The part of the hidden numbers that training sets to 0.

    Example:
        >>> run = Run("runs/tabular/1")
        >>> run.load(Tabular).predictions([{"area": "12.5", "town": "Bergen"}])
    """

    def __init__(
        self,
        columns: dict[str, Any],
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.2,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__()
        self.columns = Columns(**columns)
        values = self.columns.categories.values()
        self.vectors = nn.ModuleList(nn.Embedding(len(known) + 1, vector(len(known))) for known in values)
        layers: list[nn.Module] = []
        inputs = 2 * len(self.columns.numbers) + sum(vector(len(known)) for known in values)
        for size in [width] * depth:
            layers += [nn.Linear(inputs, size), nn.ReLU(), nn.Dropout(dropout)]
            inputs = size
        self.network = nn.Sequential(*layers, nn.Linear(inputs, len(self.columns.classes) or 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Logits (n, classes), or the number (n) in deviations from the mean."""
        missing = numbers.isnan()
        known = [numbers.masked_fill(missing, 0.0), missing.to(numbers.dtype)]
        known += [one(categories[:, k]) for k, one in enumerate(self.vectors)]
        found: Tensor = self.network(torch.cat(known, 1))
        return found if self.columns.classes else found[:, 0]

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        numbers, categories, target = batch
        found = self(numbers, categories)
        if self.columns.classes:
            right = (found.argmax(1) == target).float().mean()
            return {"loss": F.cross_entropy(found, target), "accuracy": right}
        error = (found - target).abs().mean() * self.columns.target_scale[1]
        return {"loss": F.mse_loss(found, target), "mae": error}

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self.training_step(batch)

    def predictions(self, rows: Sequence[Mapping[str, str]]) -> list[Any]:
        """The class or the number for each row: texts by the column's name, empty where missing."""
        numbers, categories = self.columns.inputs(rows)
        weight, mode = next(self.network.parameters()), self.training
        with torch.no_grad():
            found = self.eval()(numbers.to(weight), categories.to(weight.device)).float()
        self.train(mode)
        if self.columns.classes:
            return [self.columns.classes[k] for k in found.argmax(1).tolist()]
        mean, deviation = self.columns.target_scale
        return [mean + deviation * value for value in found.tolist()]

    def configure_optimizers(self) -> Any:
        rate, decay = self.hparams["learning_rate"], self.hparams["weight_decay"]
        optimizer = torch.optim.AdamW(self.parameters(), rate, weight_decay=decay)
        return {"optimizer": optimizer, "lr_scheduler": "cosine"}


def vector(values: int) -> int:
    """Numbers in the vector of a column with so many values."""
    return min(50, (values + 1) // 2 + 1)


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data; the weights with the smallest loss are kept."""
    trainer = config.make_trainer(
        name="tabular",
        max_epochs=config.epochs,
        global_batch_size=config.batch_size,
        callbacks=[Checkpoint(monitor="val/loss")],
    )
    rows = breast_cancer() if config.data is None else read_table(config.data, config.target)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    count = max(1, int(len(rows) * config.held_out))
    train, val = ([rows[k] for k in part] for part in (order[:-count], order[-count:]))
    columns = Columns.of(train, config.target, val)
    torch.manual_seed(trainer.settings.seed)
    module = Tabular(
        columns.arguments(),
        config.width,
        config.depth,
        config.dropout,
        config.learning_rate,
        config.weight_decay,
    )
    datasets = [TensorDataset(*columns.inputs(part), columns.target_of(part)) for part in (train, val)]
    return Experiment(
        trainer,
        module,
        train=DataLoader(datasets[0], config.batch_size, shuffle=True),
        val=DataLoader(datasets[1], config.batch_size),
    )
