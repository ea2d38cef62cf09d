"""The small module and its random data with which reports of problems begin.

They draw the numbers that Lightning's draw, so that a report ends with the same weights here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ...translation.refusals import refuse_import
from ..core import LightningDataModule, LightningModule

__all__ = [
    "BoringDataModule",
    "BoringDataModuleNoLen",
    "BoringModel",
    "DemoModel",
    "IterableBoringDataModule",
    "ManualOptimBoringModel",
    "RandomDataset",
    "RandomDictDataset",
    "RandomIterableDataset",
    "RandomIterableDatasetWithLen",
]

_WIDTH, _SAMPLES = 32, 64
_PARTS = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


class RandomDataset(Dataset[Any]):
    """Normally distributed samples, drawn at once.

    Args:
        size: Values of a sample.
        length: Samples.

    Example:
        >>> data = RandomDataset(32, 64)
        >>> len(data), data[0].shape
        (64, torch.Size([32]))
    """

    def __init__(self, size: int, length: int) -> None:
        self.len, self.data = length, torch.randn(length, size)

    def __len__(self) -> int:
        return self.len

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class RandomDictDataset(RandomDataset):
    """The same as ``{"a": sample, "b": sample + 2}``."""

    def __getitem__(self, index: int) -> Any:
        return {"a": self.data[index], "b": self.data[index] + 2}


class RandomIterableDataset(IterableDataset[Tensor]):
    """A stream of normally distributed samples, each drawn when it is read.

    Args:
        size: Values of a sample.
        count: Samples.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.randn(self.size) for _ in range(self.count))


class RandomIterableDatasetWithLen(RandomIterableDataset):
    """The same with a length."""

    def __len__(self) -> int:
        return self.count


class BoringModel(LightningModule):
    """A linear layer of 32 values to 2, whose loss is its squared distance from 1; subclass it.

    Example:
        >>> import paceline.compat.lightning as L
        >>> model = BoringModel()
        >>> model.training_step(torch.zeros(4, 32), 0)["loss"].shape
        torch.Size([])
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]

    def loss(self, preds: Tensor, labels: Tensor | None = None) -> Tensor:
        """The squared distance from labels, 1 unless given."""
        return nn.functional.mse_loss(preds, torch.ones_like(preds) if labels is None else labels)

    def step(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]

    def train_dataloader(self) -> Any:
        return DataLoader(RandomDataset(_WIDTH, _SAMPLES))

    def val_dataloader(self) -> Any:
        return DataLoader(RandomDataset(_WIDTH, _SAMPLES))

    def test_dataloader(self) -> Any:
        return DataLoader(RandomDataset(_WIDTH, _SAMPLES))

    def predict_dataloader(self) -> Any:
        return DataLoader(RandomDataset(_WIDTH, _SAMPLES))


class ManualOptimBoringModel(BoringModel):
    """The same, which updates its weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class DemoModel(LightningModule):
    """A linear layer of 32 values, whose loss is the sum of what is above 0.

    Args:
        out_dim: Outputs of the layer.
        learning_rate: Of Adam.
    """

    def __init__(self, out_dim: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.l1, self.learning_rate = nn.Linear(_WIDTH, out_dim), learning_rate

    def forward(self, x: Tensor) -> Tensor:
        return self.l1(x.flatten(1)).relu()  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        return self(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class _OfParts(LightningDataModule):
    """Loaders of the data sets that ``setup`` makes."""

    def _loader(self, part: str) -> Any:
        return DataLoader(getattr(self, f"random_{part}"))

    def train_dataloader(self) -> Any:
        return self._loader("train")

    def val_dataloader(self) -> Any:
        return self._loader("val")

    def test_dataloader(self) -> Any:
        return self._loader("test")

    def predict_dataloader(self) -> Any:
        return self._loader("predict")


class BoringDataModule(_OfParts):
    """64 random samples of 32 values for each stage.

    Example:
        >>> data = BoringDataModule()
        >>> data.setup("fit")
        >>> len(data.train_dataloader()), len(data.val_dataloader())
        (64, 64)
    """

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(_WIDTH, 4 * _SAMPLES)

    def setup(self, stage: str) -> None:
        order = ("train", "val", "test", "predict")
        for part in _PARTS[stage]:
            first = order.index(part) * _SAMPLES
            setattr(self, f"random_{part}", Subset(self.random_full, range(first, first + _SAMPLES)))


class BoringDataModuleNoLen(_OfParts):
    """Streams of 512, 128, 256 and 64 such samples."""

    def setup(self, stage: str) -> None:
        counts = {"train": 512, "val": 128, "test": 256, "predict": 64}
        for part in _PARTS[stage]:
            setattr(self, f"random_{part}", RandomIterableDataset(_WIDTH, counts[part]))


class IterableBoringDataModule(_OfParts):
    """Two loaders for each stage, over a data set and over a stream, with samples of 4 values."""

    def setup(self, stage: str) -> None:
        counts = {"train": 16, "val": 32, "test": 64, "predict": 128}
        for part in _PARTS[stage]:
            two = [RandomDataset(4, counts[part]), RandomIterableDataset(4, counts[part])]
            setattr(self, f"{part}_datasets", two)

    def _loader(self, part: str) -> Any:
        return [DataLoader(one) for one in getattr(self, f"{part}_datasets")]


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {"Net": "a model of your own"})
