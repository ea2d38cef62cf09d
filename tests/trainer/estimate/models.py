"""Models whose memory is estimated and measured: a CNN, a GPT, also partly frozen, and a ViT."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule


class Residual(nn.Module):
    """Two convolutions with batch norms, and what came in."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x):
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(hidden)))


class CNN(TrainModule):
    def __init__(self, width: int = 128, blocks: int = 5):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def training_step(self, batch):
        images, labels = batch
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = block(hidden)
        loss = F.cross_entropy(self.head(hidden.mean((2, 3))), labels)
        self.log("seen", loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    @staticmethod
    def batch(size: int = 16) -> Any:
        return torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,))


class Layer(nn.Module):
    """Attention and an MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class GPT(TrainModule):
    def __init__(self, width: int = 256, layers: int = 6, vocabulary: int = 2048, length: int = 128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, width // 32, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def training_step(self, batch):
        (tokens,) = batch
        hidden = self.tokens(tokens) + self.places.weight
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    @staticmethod
    def batch(size: int = 4) -> Any:
        return (torch.randint(0, 2048, (size, 128)),)


class Frozen(GPT):
    """Attention alone is trained, as by adapters."""

    def __init__(self, layers: int = 6):
        super().__init__(layers=layers)
        self.requires_grad_(False)
        for layer in self.layers:
            layer.qkv.requires_grad_(True)

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-4)


class ViT(TrainModule):
    def __init__(self, width: int = 192, layers: int = 8, patch: int = 4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(torch.zeros(1, (32 // patch) ** 2, width))
        self.layers = nn.ModuleList(Layer(width, 3, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def training_step(self, batch):
        images, labels = batch
        hidden = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            hidden = layer(hidden)
        return {"loss": F.cross_entropy(self.head(self.norm(hidden).mean(1)), labels)}

    def configure_optimizers(self):
        groups = [
            {"params": [p for p in self.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in self.parameters() if p.ndim < 2]},
        ]
        return torch.optim.RMSprop(groups, lr=1e-3)

    @staticmethod
    def batch(size: int = 8) -> Any:
        return torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,))


MODELS: dict[str, Any] = {  # what is measured and traced: layers that are alike show the same
    "cnn": partial(CNN, blocks=3),
    "gpt": partial(GPT, layers=3),
    "vit": partial(ViT, layers=4),
    "frozen": partial(Frozen, layers=3),
    "tiny": partial(ViT, 12, 1),
}
