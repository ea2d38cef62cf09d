"""Data with something to learn in it: tokens, texts of different lengths, series, tables, graphs."""

from __future__ import annotations

import math

import torch

PADDING = 0
"""The token that fills up texts."""


def generator(seed: int) -> torch.Generator:
    """Random numbers of a data set's own, so that it does not depend on what ran before."""
    return torch.Generator().manual_seed(seed)


def sentences(count: int, length: int = 16, words: int = 24, seed: int = 0) -> torch.Tensor:
    """Rows of tokens from 1 on, in which each mostly follows from the one before."""
    draws = generator(seed)
    rows = torch.randint(1, words, (count, length), generator=draws)
    for place in range(1, length):
        follows = rows[:, place - 1] * 5 % (words - 1) + 1
        usual = torch.rand(count, generator=draws) < 0.7
        rows[:, place] = torch.where(usual, follows, rows[:, place])
    return rows


def reviews(
    count: int, longest: int = 20, words: int = 40, seed: int = 0
) -> list[tuple[torch.Tensor, int]]:
    """Texts of different lengths with a class: good, where most words are of the upper half."""
    draws = generator(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(3, longest + 1, (), generator=draws))
        good = int(torch.randint(2, (), generator=draws))
        upper = torch.rand(length, generator=draws) < (0.75 if good else 0.25)
        half = torch.randint(1, words // 2, (length,), generator=draws)
        found.append((half + upper * (words // 2), good))
    return found


def padded(texts: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts as rows of one length, and their classes."""
    tokens = torch.nn.utils.rnn.pad_sequence([text for text, _ in texts], True, PADDING)
    return tokens, torch.tensor([label for _, label in texts])


def series(length: int = 1200, seed: int = 0) -> torch.Tensor:
    """A value an hour: a rhythm of a day, one of a week, and noise that lasts a while; about -2 to 2."""
    hours = torch.arange(length)
    rhythm = torch.sin(hours * (2 * math.pi / 24)) + 0.5 * torch.sin(hours * (2 * math.pi / 168))
    draws = torch.randn(length, generator=generator(seed))
    noise = [draws[0]]
    for draw in draws[1:]:
        noise.append(0.8 * noise[-1] + 0.6 * draw)
    return rhythm + 0.2 * torch.stack(noise)


def windows(values: torch.Tensor, length: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Each ``length`` values in a row as (window, value, 1), and the value that follows them."""
    return values.unfold(0, length, 1)[:-1].unsqueeze(-1), values[length:]


def table(count: int, columns: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardised columns, and a value of each row that follows from some of them, with noise."""
    draws = generator(seed)
    x = torch.randn(count, columns, generator=draws)
    y = x[:, 0] - 2 * x[:, 1] * (x[:, 2] > 0) + 0.5 * x[:, 3].square()
    return x, y - 0.5 + 0.3 * torch.randn(count, generator=draws)


def graph(nodes: int = 300, columns: int = 6, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Features of nodes, edges as (2, count) in both directions, and each node's group of three.

    Edges lie mostly within a group, of which a node's own features say little.
    """
    draws = generator(seed)
    groups = torch.randint(3, (nodes,), generator=draws)
    x = torch.randn(nodes, columns, generator=draws)
    x[torch.arange(nodes), groups] += 1.0
    near = (groups[:, None] == groups[None]).float() * 0.04 + 0.004
    linked = (torch.rand(nodes, nodes, generator=draws) < near).triu(1)
    edges = linked.nonzero().T
    return x, torch.cat([edges, edges.flip(0)], 1), groups
