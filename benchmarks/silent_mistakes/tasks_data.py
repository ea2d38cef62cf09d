"""Data with a relation that can be learned, and small modules, for programs of several families."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from paceline import TrainModule


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(rows: int = 320, columns: int = 8, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal columns; the class is the largest of some sums of them."""
    x = torch.randn(rows, columns, generator=drawn(seed))
    weights = torch.randn(columns, classes, generator=drawn(99))
    return x, (x @ weights).argmax(1)


def prices(rows: int = 320, columns: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal columns, and a smooth function of them of shape (rows, 1)."""
    x = torch.randn(rows, columns, generator=drawn(seed))
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3].tanh()
    return x, y + 0.05 * torch.randn(rows, 1, generator=drawn(seed + 1))


def pictures(count: int = 240, classes: int = 3, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Grey pictures of bytes (count, 1, size, size); the class is the band of rows that is bright."""
    y = torch.randint(classes, (count,), generator=drawn(seed))
    x = torch.randint(0, 150, (count, 1, size, size), generator=drawn(seed + 1))
    band = torch.arange(size) * classes // size
    x = x + 100 * (band[None, :] == y[:, None])[:, None, :, None]
    return x.byte(), y


def standard(images: Tensor) -> Tensor:
    """Bytes as floats with a mean of about 0 and a deviation of about 1."""
    return (images.float() / 255 - 0.42) / 0.25


def sentences(count: int = 256, length: int = 12, words: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Words from 1 on, 0 is padding; two classes, each of which prefers one half of the vocabulary."""
    y = torch.randint(2, (count,), generator=drawn(seed))
    own = torch.rand(count, length, generator=drawn(seed + 1)) < 0.8
    half = torch.where(own, y[:, None], 1 - y[:, None])
    x = 1 + half * (words // 2) + torch.randint(words // 2 - 1, (count, length), generator=drawn(seed + 2))
    return x, y


def waves(count: int = 256, length: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy sine waves (count, length, 1) of unit amplitude, and the value that follows."""
    phase = 6.28 * torch.rand(count, 1, generator=drawn(seed))
    speed = 0.3 + 0.4 * torch.rand(count, 1, generator=drawn(seed + 1))
    wave = torch.sin(phase + speed * torch.arange(length + 1))
    wave = wave + 0.05 * torch.randn(wave.shape, generator=drawn(seed + 2))
    return wave[:, :-1, None], wave[:, -1:]


def graphs(count: int = 256, nodes: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of nodes, adjacency, and whether neighbours are alike."""
    x = torch.randn(count, nodes, 4, generator=drawn(seed))
    edges = (torch.rand(count, nodes, nodes, generator=drawn(seed + 1)) < 0.4).float()
    edges = ((edges + edges.transpose(1, 2)) > 0).float()
    alike = (x[..., :1] @ x[..., :1].transpose(1, 2) * edges).mean((1, 2))
    return x, edges, (alike > alike.median()).long()


def parts(dataset: Dataset, share: float = 0.75) -> tuple[Dataset, Dataset]:
    """Two disjoint parts of a dataset."""
    return tuple(random_split(dataset, [share, 1 - share], generator=drawn(3)))


def loaders(*tensors: Tensor, batch: int = 16) -> tuple[DataLoader, DataLoader]:
    """A loader of the training part, shuffled, and one of the validation part."""
    train, val = parts(TensorDataset(*tensors))
    return DataLoader(train, batch, shuffle=True), DataLoader(val, 40)


def mlp(inputs: int, outputs: int, width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def convolutions(classes: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


class Words(nn.Module):
    """A bag of words with a hidden layer."""

    def __init__(self, words: int = 60, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 16, padding_idx=0)
        self.head = mlp(16, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


class Classifier(TrainModule):
    """Any model of logits, trained with Adam."""

    def __init__(self, model: nn.Module, lr: float = 0.01) -> None:
        super().__init__()
        self.model = model
        self.lr = lr

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch):
        x, y = batch
        return cross_entropy(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        logits = self(x)
        self.log("loss", cross_entropy(logits, y))
        self.log("accuracy", (logits.argmax(1) == y).float().mean())

    def test_step(self, batch):
        self.validation_step(batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Regressor(TrainModule):
    """Any model of values, trained with Adam on squared errors."""

    def __init__(self, model: nn.Module, lr: float = 0.01) -> None:
        super().__init__()
        self.model = model
        self.lr = lr

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y)

    def validation_step(self, batch):
        x, y = batch
        self.log("loss", nn.functional.mse_loss(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)
