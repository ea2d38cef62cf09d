"""Small data with a relation that can be learned, and small networks, for programs of this benchmark.

All is drawn from a seed, so that a program trains on the same data in each run. Inputs have a mean of about
0 and a deviation of about 1; targets are long integers for classes and floats of shape (n,) for regression.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Loader = DataLoader[Any]


def drawn(seed: int) -> torch.Generator:
    """A generator with its own seed."""
    return torch.Generator().manual_seed(seed)


def loader(*tensors: Tensor, batch: int = 32, shuffle: bool = True, **options: Any) -> Loader:
    """A loader of these tensors' rows."""
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, **options)


def loaders(*tensors: Tensor, batch: int = 32, valid: float = 0.2) -> tuple[Loader, Loader]:
    """A shuffled loader of the first rows, and one in order of the others."""
    cut = round(len(tensors[0]) * (1 - valid))
    training = [tensor[:cut] for tensor in tensors]
    validation = [tensor[cut:] for tensor in tensors]
    return loader(*training, batch=batch), loader(*validation, batch=batch, shuffle=False)


def clusters(n: int = 320, features: int = 8, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of a table around one centre for each class, and the classes."""
    centres = 1.5 * torch.randn(classes, features, generator=drawn(seed + 1000))
    classes_of_rows = torch.randint(classes, (n,), generator=drawn(seed + 1))
    rows = centres[classes_of_rows] + torch.randn(n, features, generator=drawn(seed + 2))
    return (rows - rows.mean(0)) / rows.std(0), classes_of_rows


def two_classes(n: int = 320, features: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of a table, and a class of 0.0 or 1.0 that depends on three columns."""
    rows = torch.randn(n, features, generator=drawn(seed + 3))
    score = rows[:, 0] + rows[:, 1] * rows[:, 2] + 0.2 * torch.randn(n, generator=drawn(seed + 4))
    return rows, (score > 0).float()


def regression(n: int = 320, features: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of a table, and a number of mean about 0 and deviation about 1 for each."""
    rows = torch.randn(n, features, generator=drawn(seed + 5))
    values = rows[:, 0] - 0.5 * rows[:, 1] + torch.sin(2 * rows[:, 2])
    values = values + 0.1 * torch.randn(n, generator=drawn(seed + 6))
    return rows, (values - values.mean()) / values.std()


def several_labels(n: int = 320, features: int = 8, count: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of a table, and for each which of some labels it has, as floats of 0 and 1."""
    rows = torch.randn(n, features, generator=drawn(seed + 7))
    directions = torch.randn(features, count, generator=drawn(seed + 8))
    return rows, (rows @ directions > 0).float()


def pictures(
    n: int = 256, classes: int = 4, channels: int = 1, size: int = 8, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Normalised pictures (n, channels, size, size) of noise over a pattern for each class."""
    classes_of_pictures = torch.randint(classes, (n,), generator=drawn(seed + 9))
    patterns = torch.randn(classes, channels, size, size, generator=drawn(seed + 10))
    noise = 0.7 * torch.randn(n, channels, size, size, generator=drawn(seed + 11))
    return (patterns[classes_of_pictures] + noise) / 1.22, classes_of_pictures


def masks(n: int = 128, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pictures (n, 1, size, size) with a bright rectangle, and the class of each pixel (n, size, size)."""
    places = torch.randint(0, size // 2, (n, 2), generator=drawn(seed + 12))
    rows = torch.arange(size)
    inside = (rows >= places[:, :1]) & (rows < places[:, :1] + size // 2)
    across = (rows >= places[:, 1:]) & (rows < places[:, 1:] + size // 2)
    truth = inside[:, :, None] & across[:, None, :]
    noise = 0.4 * torch.randn(n, size, size, generator=drawn(seed + 13))
    pixels = truth.float() + noise
    return ((pixels - pixels.mean()) / pixels.std())[:, None], truth.long()


def sentences(
    n: int = 256, length: int = 12, words: int = 30, classes: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (n, length) padded with 0 at the end, their lengths, and a class that some words tell.

    Each sentence has two words that its class alone uses, at random places.
    """
    lengths = torch.randint(length // 2, length + 1, (n,), generator=drawn(seed + 14))
    classes_of_sentences = torch.randint(classes, (n,), generator=drawn(seed + 15))
    tokens = torch.randint(1 + 2 * classes, words, (n, length), generator=drawn(seed + 16))
    places = (torch.rand(n, 2, generator=drawn(seed + 17)) * lengths[:, None]).long()
    telling = 1 + 2 * classes_of_sentences[:, None] + torch.tensor([0, 1])
    tokens.scatter_(1, places, telling)
    tokens[torch.arange(length) >= lengths[:, None]] = 0
    return tokens, lengths, classes_of_sentences


def text(n: int = 200, length: int = 12, words: int = 20, seed: int = 0) -> Tensor:
    """Token sequences (n, length) from 1 to words - 1, in which a token mostly tells the next one."""
    following = 1 + torch.randperm(words - 1, generator=drawn(seed + 18))
    tokens = [torch.randint(1, words, (n,), generator=drawn(seed + 19))]
    for place in range(1, length):
        other = torch.randint(1, words, (n,), generator=drawn(seed + 100 + place))
        kept = torch.rand(n, generator=drawn(seed + 200 + place)) < 0.85
        tokens.append(torch.where(kept, following[tokens[-1] - 1], other))
    return torch.stack(tokens, 1)


def waves(n: int = 256, length: int = 24, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Series (n, length, 1) of waves with noise, and the class of their frequency."""
    classes_of_waves = torch.randint(classes, (n,), generator=drawn(seed + 20))
    phases = 6.28 * torch.rand(n, 1, generator=drawn(seed + 21))
    times = torch.arange(length) / length * 6.28
    series = torch.sin((1 + 2 * classes_of_waves[:, None]) * times + phases)
    noise = 0.2 * torch.randn(n, length, generator=drawn(seed + 22))
    return (1.4 * (series + noise))[:, :, None], classes_of_waves


def forecasts(n: int = 300, window: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Windows (n, window, 1) of one long series in the order of time, and the value that follows each."""
    times = torch.arange(n + window).float()
    series = torch.sin(times / 4) + 0.5 * torch.sin(times / 11)
    series = series + 0.1 * torch.randn(n + window, generator=drawn(seed + 23))
    series = (series - series.mean()) / series.std()
    return series.unfold(0, window, 1)[:n, :, None].clone(), series[window:]


def graphs(
    n: int = 200, nodes: int = 8, features: int = 4, classes: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, nodes, features) of small graphs, adjacency with rows of sum 1, and classes."""
    links = torch.rand(n, nodes, nodes, generator=drawn(seed + 24)) < 0.3
    links = links | links.transpose(1, 2) | torch.eye(nodes, dtype=torch.bool)
    adjacency = links.float() / links.float().sum(2, keepdim=True)
    features_of_nodes = torch.randn(n, nodes, features, generator=drawn(seed + 25))
    classes_of_graphs = torch.randint(classes, (n,), generator=drawn(seed + 26))
    centres = torch.randn(classes, features, generator=drawn(seed + 27))
    features_of_nodes = features_of_nodes + centres[classes_of_graphs][:, None]
    features_of_nodes = (features_of_nodes - features_of_nodes.mean((0, 1))) / features_of_nodes.std((0, 1))
    return features_of_nodes, adjacency, classes_of_graphs


def ring(n: int = 512, seed: int = 0) -> Tensor:
    """Points (n, 2) around eight places on a circle, for generators and diffusion."""
    angles = torch.randint(8, (n,), generator=drawn(seed + 28)) * (6.2832 / 8)
    places = 1.4 * torch.stack([angles.cos(), angles.sin()], 1)
    return places + 0.05 * torch.randn(n, 2, generator=drawn(seed + 29))


def views(n: int = 256, features: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two noisy views (n, features) of the same things, for contrastive training."""
    things = torch.randn(n, features, generator=drawn(seed + 30))
    first, second = 0.4 * torch.randn(2, n, features, generator=drawn(seed + 31))
    return things + first, things + second


def mlp(inputs: int, outputs: int, hidden: int = 24) -> nn.Sequential:
    """A network of two linear layers."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def convolutions(classes: int = 4, channels: int = 1, width: int = 8) -> nn.Sequential:
    """A small network for pictures, with batch norms."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


@functools.cache
def _pretrained(channels: int, width: int) -> nn.Sequential:
    inputs, targets = pictures(512, 8, channels, seed=50)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = convolutions(8, channels, width)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        for step in range(60):
            rows = slice(64 * (step % 8), 64 * (step % 8 + 1))
            loss = nn.functional.cross_entropy(network(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return network[:-1]


def backbone(channels: int = 1, width: int = 12) -> nn.Sequential:
    """A network that was trained on other pictures, in training mode: features (n, 2 * width)."""
    return copy.deepcopy(_pretrained(channels, width))
